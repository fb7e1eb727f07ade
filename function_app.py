"""The triggers: decode, call an actor, return. The one place that knows Azure Functions.

Every queue on an order's way has a twin for urgent orders, with a function of its own: urgent work
overtakes all other work and takes nothing from it.

Success completes a message. An exception abandons it, and it comes again. The actors put aside what
cannot be used, and put back what waits for something. So nothing here decides anything.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable

import azure.functions as func

import orders
from sas.bootstrap import Application, bootstrap, checked, closed_with_loop, load_ahead
from sas.config import CONNECTION, queue_named, read_applications, read_functions
from sas.engine.delivery import Delivery

# The worker forwards every record from INFO on, whatever host.json says about its logger. The Azure
# SDK writes some 40 an order, the app itself one at most.
logging.getLogger("azure").setLevel(logging.WARNING)

ENGINE, CALLBACKS = func.Blueprint(), func.Blueprint()
"""Two groups of functions. SAS_FUNCTIONS says which of them this app has: by default both."""

BUSINESS = checked(orders.business(), orders.AGENTS)
"""Checked now, not on the first message. If a setting or a definition is wrong, the host registers
no function, logs why, and takes no message."""

Handler = Callable[[Delivery], Awaitable[object]]


@functools.cache
def application() -> Application:
    """Return this process's application; made on the first message, in the worker's loop."""
    return closed_with_loop(bootstrap(BUSINESS))


def on_queue(name: str, queue: str, handler: Callable[[Application], Handler]) -> None:
    """Register a queue's function, and the one of its urgent lane."""
    register(name, queue, handler, urgent=False)
    register(f"{name}_urgent", f"{queue}-urgent", handler, urgent=True)


def register(
    name: str, queue: str, handler: Callable[[Application], Handler], *, urgent: bool
) -> None:
    """Register one function. Bodies come as bytes: text would change other encodings."""

    async def run(message: func.ServiceBusMessage) -> None:
        delivery = Delivery(
            body=message.get_body(),
            message_id=message.message_id,
            queue=queue_named(queue, application().context.queues),
            urgent=urgent,
            properties=message.application_properties,
            count=message.delivery_count,
            enqueued_at=message.enqueued_time_utc,
            source_queue=message.dead_letter_source,
        )
        await application().receive(handler(application()), delivery)

    trigger = ENGINE.service_bus_queue_trigger(
        arg_name="message",
        queue_name=queue,
        connection=CONNECTION,
        data_type=func.DataType.BINARY,
    )
    ENGINE.function_name(name)(trigger(run))


def agent_handler(agent: str) -> Callable[[Application], Handler]:
    """Return what finds the handler of one agent's requests."""
    return lambda app: app.agents[agent].handle


# name, queue, who handles its messages
on_queue("submission", "%SAS_QUEUE_ORDERS%", lambda app: app.submitter.handle)
for _application in read_applications():
    on_queue(
        f"submission_{_application.replace('-', '_')}",
        f"%SAS_QUEUE_ORDERS%-{_application}",
        lambda app: app.submitter.handle,
    )
on_queue("scheduler", "%SAS_QUEUE_SCHEDULER%", lambda app: app.scheduler.handle)
on_queue("replies", "%SAS_QUEUE_AGENT_REPLIES%", lambda app: app.scheduler.handle_reply)
on_queue("callbacks", "%SAS_QUEUE_CALLBACKS%", lambda app: app.callbacks.handle)
for _agent in orders.AGENTS:
    on_queue(
        f"agent_{_agent.replace('-', '_')}",
        f"%SAS_QUEUE_AGENT_PREFIX%{_agent}",
        agent_handler(_agent),
    )
register(
    "deadletters",
    "%SAS_QUEUE_DEAD_LETTERS%",
    lambda app: app.dead_letters.handle,
    urgent=False,
)
register(
    "deadletters_end",
    "%SAS_QUEUE_DEAD_LETTERS%/$DeadLetterQueue",
    lambda app: app.dead_letters.handle_given_up,
    urgent=False,
)


# Anonymous: the token is the authentication, for this one step (docs/adr/0012).
@CALLBACKS.function_name("callback")
@CALLBACKS.route(
    route="callbacks/{token?}",
    trigger_arg_name="request",
    methods=["POST"],
    auth_level=func.AuthLevel.ANONYMOUS,
)
async def callback(request: func.HttpRequest) -> func.HttpResponse:
    """Take a callback by HTTP; it ends on the queue."""
    answer = await application().callbacks.answer(
        request.route_params.get("token"),
        request.headers.get("Authorization"),
        request.get_body(),
    )
    return func.HttpResponse(
        answer.body,
        status_code=answer.status,
        headers=dict(answer.headers),
        mimetype="application/json",
    )


@ENGINE.function_name("supervisor")
@ENGINE.timer_trigger(arg_name="timer", schedule="%SAS_SUPERVISOR_SCHEDULE%", use_monitor=False)
async def supervisor(timer: func.TimerRequest) -> None:  # noqa: ARG001  the binding's name
    """Find what has expired and have it recovered."""
    await application().run(application().supervisor.sweep)


@ENGINE.function_name("purge")
@ENGINE.timer_trigger(arg_name="timer", schedule="%SAS_PURGE_SCHEDULE%", use_monitor=False)
async def purge(timer: func.TimerRequest) -> None:  # noqa: ARG001  the binding's name
    """Remove finished orders that are older than the retention."""
    await application().run(application().purger.run)


app = func.FunctionApp()
for _group in read_functions():
    app.register_functions({"engine": ENGINE, "callbacks": CALLBACKS}[_group])

load_ahead()

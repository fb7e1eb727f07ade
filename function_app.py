"""The triggers: decode, call an actor, return. The one place that knows Azure Functions.

Urgent orders have queues, and so functions, of their own: they overtake all others and take
nothing from them.

Success completes a message; an exception abandons it, and it comes again. What cannot be
used is put aside by the actors themselves, so nothing here decides anything.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable

import azure.functions as func

import orders
from sas.actors.dead_letters import DeadLetter
from sas.bootstrap import Application, bootstrap, checked
from sas.config import CONNECTION

app = func.FunctionApp()

BUSINESS = checked(orders.business(), orders.AGENTS)
"""Now, and not upon the first message: where a setting or a definition is wrong, no function is
there, the host says why, and no message is used up."""


@functools.cache
def application() -> Application:
    """Return this process's application; made on the first message, in the worker's loop."""
    return bootstrap(BUSINESS)


def on_queue(name: str, queue_name: str) -> Callable[..., Callable[..., Awaitable[None]]]:
    """Register a function for a queue. Bodies come as bytes: text would mangle other encodings."""

    def register(handler: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        triggered = app.service_bus_queue_trigger(
            arg_name="message",
            queue_name=queue_name,
            connection=CONNECTION,
            data_type=func.DataType.BINARY,
        )
        app.function_name(name)(triggered(handler))
        return handler

    return register


@on_queue("submission", "%SAS_QUEUE_ORDERS%")
async def submission(message: func.ServiceBusMessage) -> None:
    """Write the order and its state records together."""
    await application().submitter.handle(
        message.get_body(), message.message_id, message.application_properties
    )


@on_queue("submission_urgent", "%SAS_QUEUE_ORDERS%-urgent")
async def submission_urgent(message: func.ServiceBusMessage) -> None:
    """Write an urgent order and its state records together."""
    await application().submitter.handle(
        message.get_body(), message.message_id, message.application_properties, urgent=True
    )


@on_queue("scheduler", "%SAS_QUEUE_SCHEDULER%")
async def scheduler(message: func.ServiceBusMessage) -> None:
    """Claim what is ready and send its requests; carry out an operator's command."""
    await application().scheduler.handle(
        message.get_body(), message.message_id, message.application_properties
    )


@on_queue("scheduler_urgent", "%SAS_QUEUE_SCHEDULER%-urgent")
async def scheduler_urgent(message: func.ServiceBusMessage) -> None:
    """Claim what is ready of urgent orders; carry out commands upon them."""
    await application().scheduler.handle(
        message.get_body(), message.message_id, message.application_properties, urgent=True
    )


@on_queue("replies", "%SAS_QUEUE_AGENT_REPLIES%")
async def replies(message: func.ServiceBusMessage) -> None:
    """Record what an agent answered and start what has become possible."""
    await application().scheduler.handle_reply(
        message.get_body(),
        message.message_id,
        message.application_properties,
        delivery_count=message.delivery_count,
        enqueued_at=message.enqueued_time_utc,
    )


@on_queue("replies_urgent", "%SAS_QUEUE_AGENT_REPLIES%-urgent")
async def replies_urgent(message: func.ServiceBusMessage) -> None:
    """Record what an agent answered for an urgent order and start what has become possible."""
    await application().scheduler.handle_reply(
        message.get_body(),
        message.message_id,
        message.application_properties,
        delivery_count=message.delivery_count,
        enqueued_at=message.enqueued_time_utc,
        urgent=True,
    )


def agent_function(
    agent: str, *, urgent: bool
) -> Callable[[func.ServiceBusMessage], Awaitable[None]]:
    """Return the function of one lane of one agent."""

    async def handle(message: func.ServiceBusMessage) -> None:
        await (
            application()
            .agents[agent]
            .handle(
                message.get_body(),
                message.message_id,
                message.application_properties,
                delivery_count=message.delivery_count,
                enqueued_at=message.enqueued_time_utc,
                urgent=urgent,
            )
        )

    return handle


def register_agent(agent: str) -> None:
    """Register the functions of one agent."""
    name, queue = agent.replace("-", "_"), f"%SAS_QUEUE_AGENT_PREFIX%{agent}"
    on_queue(f"agent_{name}", queue)(agent_function(agent, urgent=False))
    on_queue(f"agent_{name}_urgent", f"{queue}-urgent")(agent_function(agent, urgent=True))


for _agent in orders.AGENTS:
    register_agent(_agent)


@on_queue("deadletters", "%SAS_QUEUE_DEAD_LETTERS%")
async def deadletters(message: func.ServiceBusMessage) -> None:
    """Finish what was recorded, fence what was not, never decide."""
    letter = DeadLetter(
        body=message.get_body(),
        message_id=message.message_id,
        source_queue=message.dead_letter_source,
        reason=message.application_properties.get("DeadLetterReason"),
        description=message.application_properties.get("DeadLetterErrorDescription"),
    )
    await application().dead_letters.handle(letter, message.application_properties)


@on_queue("callbacks_urgent", "%SAS_QUEUE_CALLBACKS%-urgent")
async def callbacks_urgent(message: func.ServiceBusMessage) -> None:
    """Let an event outside end the step of an urgent order."""
    await application().callbacks.handle(
        message.get_body(), message.message_id, message.application_properties, urgent=True
    )


@on_queue("callbacks", "%SAS_QUEUE_CALLBACKS%")
async def callbacks(message: func.ServiceBusMessage) -> None:
    """Let an event outside end the step that it is about."""
    await application().callbacks.handle(
        message.get_body(), message.message_id, message.application_properties
    )


# Anonymous: the token is the authentication, of this one step (docs/adr/0012).
@app.function_name("callback")
@app.route(
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


@app.function_name("supervisor")
@app.timer_trigger(arg_name="timer", schedule="%SAS_SUPERVISOR_SCHEDULE%", use_monitor=False)
async def supervisor(timer: func.TimerRequest) -> None:  # noqa: ARG001  the binding's name
    """Find what has expired and have it recovered."""
    await application().supervisor.sweep()


@app.function_name("purge")
@app.timer_trigger(arg_name="timer", schedule="%SAS_PURGE_SCHEDULE%", use_monitor=False)
async def purge(timer: func.TimerRequest) -> None:  # noqa: ARG001  the binding's name
    """Remove finished orders that are older than the retention."""
    await application().purger.run()

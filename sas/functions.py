"""The triggers of a function app: decode, call an actor, return.

Every queue that an order passes has a second queue for urgent orders, with a function of its own.
So urgent orders never wait for ordinary ones.

If a function returns, the host completes its message. If it raises, the host abandons the message,
and Service Bus delivers it again. The actors put aside messages that cannot be used, and put back
messages that wait for a dependency. So the functions decide nothing.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import azure.functions as func

from sas.bootstrap import Application, bootstrap, checked, closed_with_loop, load_ahead, made
from sas.config import queue_named, read_applications
from sas.engine.delivery import Delivery
from sas.environment import CONNECTION
from sas.ports import Business, PayloadCodec
from sas.saga.business import business_of, check_settings, with_smoke
from sas.saga.definition import Saga

# The worker forwards every record from INFO on, and ignores host.json for its logger. The Azure
# SDK writes about 40 records for each order, the app itself at most one.
logging.getLogger("azure").setLevel(logging.WARNING)

Handler = Callable[[Delivery], Awaitable[object]]


class FunctionApp(func.FunctionApp):
    """The functions of one business.

    ``application`` returns this process's actors. Its first call makes them, in the worker's loop.
    ``agents`` are the names of its agents.
    """

    def __init__(self, business: Business) -> None:
        super().__init__()
        self.agents = list(business.agents)
        make_application = functools.partial(_application, business)
        self.application: Callable[[], Application] = functools.cache(make_application)

    def on_queue(self, name: str, queue: str, handler: Callable[[Application], Handler]) -> None:
        """Register a queue's function, and the one of its urgent lane."""
        self.on(name, queue, handler, urgent=False)
        self.on(f"{name}_urgent", f"{queue}-urgent", handler, urgent=True)

    def on(
        self, name: str, queue: str, handler: Callable[[Application], Handler], *, urgent: bool
    ) -> None:
        """Register one function. Bodies come as bytes: text would change other encodings."""

        async def run(message: func.ServiceBusMessage) -> None:
            application = await made(self.application)
            delivery = Delivery(
                body=message.get_body(),
                message_id=message.message_id,
                queue=queue_named(queue, application.context.queues),
                urgent=urgent,
                properties=message.application_properties,
                count=message.delivery_count,
                enqueued_at=message.enqueued_time_utc,
                source_queue=message.dead_letter_source,
            )
            await application.receiver.receive(handler(application), delivery)

        trigger = self.service_bus_queue_trigger(
            arg_name="message",
            queue_name=queue,
            connection=CONNECTION,
            data_type=func.DataType.BINARY,
        )
        self.function_name(name)(trigger(run))


def _application(business: Business) -> Application:
    return closed_with_loop(bootstrap(business))


def function_app(*sagas: Saga[Any], codec: PayloadCodec | None = None) -> FunctionApp:
    """Return the function app of sagas: a function for each queue, each agent, the callbacks, the
    supervisor and the purge.

    The sagas and the settings are checked now, not on the first message. If something is wrong,
    the host registers no function, logs why, and takes no message.

    ``codec`` encodes the content of orders and results, in place of the one that SAS_PAYLOAD_KEYS
    makes.

    Raises:
        SettingError, WorkflowError, TelemetryError: the text says what to change.
    """
    check_settings(sagas)
    return app_of(business_of(sagas, codec))


def app_of(business: Business) -> FunctionApp:
    """Return the function app of a business, with the workflow that tests a deployment."""
    app = FunctionApp(checked(with_smoke(business)))
    _add_queues(app)
    _add_agents(app, business.agents)
    _add_callback(app)
    _add_timers(app)
    load_ahead()
    return app


def _add_queues(app: FunctionApp) -> None:
    # name, queue, who handles its messages
    app.on_queue("submission", "%SAS_QUEUE_ORDERS%", lambda app: app.submitter.handle)
    for application in read_applications():
        app.on_queue(
            f"submission_{application.replace('-', '_')}",
            f"%SAS_QUEUE_ORDERS%-{application}",
            lambda app: app.submitter.handle,
        )
    app.on_queue("scheduler", "%SAS_QUEUE_SCHEDULER%", lambda app: app.scheduler.handle)
    app.on(
        "deadletters",
        "%SAS_QUEUE_DEAD_LETTERS%",
        lambda app: app.dead_letters.handle,
        urgent=False,
    )
    app.on(
        "deadletters_end",
        "%SAS_QUEUE_DEAD_LETTERS%/$DeadLetterQueue",
        lambda app: app.dead_letters.handle,
        urgent=False,
    )


def _add_agents(app: FunctionApp, agents: Iterable[str]) -> None:
    for agent in agents:
        app.on_queue(
            f"agent_{agent.replace('-', '_')}",
            f"%SAS_QUEUE_AGENT_PREFIX%{agent}",
            _agent_handler(agent),
        )


def _agent_handler(agent: str) -> Callable[[Application], Handler]:
    """Return a function that returns the handler of one agent's requests."""
    return lambda app: app.agents[agent].handle


def _add_callback(app: FunctionApp) -> None:
    # Anonymous: the token is the authentication, for this one step (docs/adr/0012).
    @app.function_name("callback")
    @app.route(
        route="callbacks/{token?}",
        trigger_arg_name="request",
        methods=["POST"],
        auth_level=func.AuthLevel.ANONYMOUS,
    )
    async def callback(request: func.HttpRequest) -> func.HttpResponse:
        """Take a callback by HTTP; it ends on the queue."""
        answer = await app.application().callbacks.answer(
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


def _add_timers(app: FunctionApp) -> None:
    @app.function_name("supervisor")
    @app.timer_trigger(arg_name="timer", schedule="%SAS_SUPERVISOR_SCHEDULE%", use_monitor=False)
    async def supervisor(timer: func.TimerRequest) -> None:  # noqa: ARG001  the binding's name
        """Find what has expired and have it recovered."""
        await app.application().run(app.application().supervisor.sweep)

    @app.function_name("purge")
    @app.timer_trigger(arg_name="timer", schedule="%SAS_PURGE_SCHEDULE%", use_monitor=False)
    async def purge(timer: func.TimerRequest) -> None:  # noqa: ARG001  the binding's name
        """Remove finished orders that are older than the retention."""
        await app.application().run(app.application().purger.run)

"""The credit of a link whose messages lost their locks before they were sent."""

from devstack.servicebus.core.message import parse_message
from devstack.servicebus.core.namespace import Namespace
from devstack.servicebus.core.properties import QueueProperties
from devstack.servicebus.tokens import TokenValidator
from devstack.servicebus.wire.context import Context, Limits, Output
from devstack.servicebus.wire.links import QueueSenderLink
from devstack.servicebus.wire.performatives import Attach
from devstack.servicebus.wire.session import AmqpSession
from devstack.tests.queue_kit import raw


def test_a_link_that_gets_its_credit_back_gets_the_message_again() -> None:
    now = 0.0
    namespace = Namespace()
    queue = namespace.create("q", QueueProperties(lock_duration_s=1.0))
    context = Context(
        namespace=namespace,
        clock=lambda: now,
        commit=lambda: None,
        tokens=TokenValidator(None),
        limits=Limits(),
    )
    session = AmqpSession(Output(context), 0, [None, 0, 100, 100, None, None, None, None])
    attach = Attach(
        name="l",
        handle=0,
        receives=True,
        sender_settle_mode=0,
        receiver_settle_mode=0,
        source=b"\x40",
        target=b"\x40",
        source_address="q",
        target_address=None,
        filters={},
        initial_delivery_count=0,
        properties={},
    )
    link = QueueSenderLink(session, attach, queue)
    session.links[0] = link
    link.open(0.0)
    session.on_flow([1, 100, 0, 100, 0, 0, 1, None, None, None, None], 0.0)
    session.output.blocked = True
    queue.enqueue([parse_message(raw())], 1.0)
    namespace.tick(3.0)  # the lock ends while the message waits for the socket
    assert not queue.locked
    now = 3.0
    session.output.blocked = False
    session.send_unsent()
    assert queue.locked  # the link has its credit back, and so it gets the message again
    assert (link.credit, queue.messages[1].delivery_count) == (0, 1)

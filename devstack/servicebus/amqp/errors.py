"""Errors of bytes that are not correct AMQP."""


class AmqpError(Exception):
    """A peer broke AMQP 1.0; its connection is closed with ``condition``.

    ``condition`` is an error symbol of AMQP 1.0 (part 2.8.14 to 2.8.18). The message says which
    bytes are wrong.
    """

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.condition = condition
        self.description = description


class DecodeError(AmqpError):
    """Bytes that are not an AMQP value: cut short, too deep, or of an unknown constructor."""

    def __init__(self, description: str) -> None:
        super().__init__("amqp:decode-error", description)


class FramingError(AmqpError):
    """A frame with an impossible header: too small, too large, or a bad data offset."""

    def __init__(self, description: str) -> None:
        super().__init__("amqp:connection:framing-error", description)

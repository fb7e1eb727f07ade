"""Who knocks on the AMQP port without speaking AMQP 1.0, and what they should do."""

_HTTP = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI")


def stranger(header: bytes) -> str:
    """Say what a peer that began with these eight bytes speaks, and what it should do."""
    if header.startswith(b"\x16\x03"):
        return (
            "it speaks TLS, and this port is plain TCP: put UseDevelopmentEmulator=true into its "
            "connection string"
        )
    if header.startswith(_HTTP):
        return (
            "it speaks HTTP: administration is on the management port, and AMQP over websockets "
            "is not served"
        )
    if header.startswith(b"AMQP"):
        return f"it speaks another AMQP ({header!r}): this broker speaks 1.0, plain or with SASL"
    return f"it began with {header!r}, which is no AMQP: check which program uses this port"

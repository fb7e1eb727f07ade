"""Bounds on what one peer may cost the broker. Past each there is an error that says so."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Times are seconds. The idle time-out is the service's own (4 minutes), and so
    is the wait for a session of a client that names none."""

    connections: int = 1000
    sessions_per_connection: int = 1024
    links_per_session: int = 1024
    replies_waiting_per_link: int = 1000
    unsettled_per_session: int = 100_000
    handshake_s: float = 15.0
    idle_s: float = 240.0
    stalled_s: float = 60.0
    write_buffer_bytes: int = 1 << 20
    session_wait_s: float = 65.0
    session_wait_max_s: float = 600.0

"""The five services in the caller's event loop, each on its own port."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from aiohttp import web

from devstack.inputs import make_directory
from devstack.lifecycle import AsyncRunnable
from samples.services.carrier import Carrier
from samples.services.contract import CONTRACTS, SERVICES
from samples.services.faults import Faults
from samples.services.ledger import RECORDS_MAX_DEFAULT, LedgerView
from samples.services.service import Service

HOST = "127.0.0.1"
CONNECTIONS_MAX = 1_000
"""Open connections of a service; it closes any further connection at once."""

_KIND: Mapping[str, type[Service]] = {"carrier": Carrier}
_SHUTDOWN_SECONDS = 0.1  # do not wait for slow answers at the end
_IDLE_SECONDS_MAX = 60.0


class RemoteServices(AsyncRunnable):
    """Stock, payment, shipping, mail and carrier, running between ``start`` and ``stop``.

    ``faults`` applies to all services, or is a mapping by service name. Services without an entry
    never fail. With ``port_base`` N they listen on N and the next four ports, else on free ports.
    A ledger with ``ledger_max`` keys refuses new keys with 507. With a directory ``data`` the
    ledgers outlive the process.
    """

    def __init__(
        self,
        faults: Faults | Mapping[str, Faults] | None = None,
        *,
        port_base: int | None = None,
        ledger_max: int = RECORDS_MAX_DEFAULT,
        connections_max: int = CONNECTIONS_MAX,
        data: Path | None = None,
    ) -> None:
        self._port_base = port_base
        self._connections_max = connections_max
        by_name = faults if isinstance(faults, Mapping) else dict.fromkeys(SERVICES, faults)
        for name in by_name:
            _check_service(name)
        self._services = {
            name: _KIND.get(name, Service)(
                contract,
                by_name.get(name) or Faults(),
                ledger_max,
                make_directory(data) / f"{name}.jsonl" if data else None,
            )
            for name, contract in CONTRACTS.items()
        }
        self._urls: dict[str, str] = {}
        self._running: list[tuple[web.AppRunner, asyncio.Server]] = []

    @property
    def urls(self) -> dict[str, str]:
        """Base URL by service name, without a slash at the end."""
        return dict(self._urls)

    def ledger(self, service: str) -> LedgerView:
        """Return what ``GET /ledger`` of a service would answer."""
        return self._services[_check_service(service)].ledger()

    def counts(self, service: str) -> tuple[int, int]:
        """Return the number of calls of a service, and the number of injected faults."""
        return self._services[_check_service(service)].counts()

    def faults(self, service: str) -> Faults:
        """Return the current faults of a service."""
        return self._services[_check_service(service)].faults

    def set_faults(self, faults: Faults, *services: str) -> None:
        """Set the faults of the named services (default: all) from the next call on."""
        for name in services or SERVICES:
            self._services[_check_service(name)].faults = faults

    async def start(self) -> None:
        """Listen on all ports; if one is taken, close the others and raise OSError."""
        try:
            for index, (name, service) in enumerate(self._services.items()):
                port = 0 if self._port_base is None else self._port_base + index
                self._urls[name] = f"http://{HOST}:{await self._listen(service, port)}"
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close every port and connection; calls in progress are aborted."""
        running, self._running = self._running, []
        for _, server in running:
            server.close()
        await asyncio.gather(*(runner.cleanup() for runner, _ in running))
        for service in self._services.values():
            service.close()

    async def _listen(self, service: Service, port: int) -> int:
        runner = web.AppRunner(
            service.app(),
            access_log=None,
            shutdown_timeout=_SHUTDOWN_SECONDS,
            keepalive_timeout=_IDLE_SECONDS_MAX,
        )
        await runner.setup()
        accept = runner.server
        if accept is None:
            raise RuntimeError("aiohttp's runner was set up without a server: report this")

        def protocol() -> asyncio.Protocol:
            full = len(accept.connections) >= self._connections_max
            return _Refuse() if full else accept()

        try:
            server = await asyncio.get_running_loop().create_server(protocol, HOST, port)
        except BaseException:
            await runner.cleanup()
            raise
        self._running.append((runner, server))
        listening: int = server.sockets[0].getsockname()[1]
        return listening


class _Refuse(asyncio.Protocol):
    """Closes a connection above the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            transport.abort()


def _check_service(name: str) -> str:
    if name not in CONTRACTS:
        raise KeyError(f"there is no service {name!r}: use one of {', '.join(SERVICES)}")
    return name

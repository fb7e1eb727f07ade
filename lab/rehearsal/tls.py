"""A certificate of this machine, and TLS in front of the broker as Service Bus has it.

``aiohttp`` reads SSL_CERT_FILE when it is imported, so this module imports none of it.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

AMQPS_PORT = 5671
"""The port of every namespace: a setting names the host alone."""
_CHUNK = 65_536


@dataclass(frozen=True)
class Certificate:
    """PEM files: a certificate of this machine, which is its own authority, and its key."""

    certificate: Path
    key: Path

    def server(self) -> ssl.SSLContext:
        """Return the context of a server."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


def certificate(folder: Path, *addresses: str) -> Certificate:
    """Make a certificate for these IP addresses."""
    key, now, day = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC), timedelta(days=1)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "rehearsal")])
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(text)) for text in addresses])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name)
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - day).not_valid_after(now + day)
    signed = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    files = Certificate(folder / "tls.pem", folder / "key.pem")
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    files.certificate.write_bytes(signed.public_bytes(pem))
    files.key.touch(mode=0o600)
    files.key.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return files


def namespace_host() -> str:
    """Return an address of this machine whose port 5671 no other rehearsal takes."""
    return f"127.{random.randrange(1, 255)}.{random.randrange(1, 255)}.{random.randrange(1, 255)}"


@asynccontextmanager
async def amqps(host: str, tls: ssl.SSLContext, port: int) -> AsyncIterator[None]:
    """Serve TLS on port 5671 of ``host``, and pass it on to the plain ``port`` of the broker."""
    running: set[asyncio.Task[None]] = set()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        ways = ((reader, inner_writer), (inner_reader, writer))
        for source, target in ways:
            task = asyncio.create_task(_pass_on(source, target))
            running.add(task)
            task.add_done_callback(running.discard)

    server = await asyncio.start_server(relay, host, AMQPS_PORT, ssl=tls)
    try:
        yield
    finally:
        server.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while content := await source.read(_CHUNK):
            target.write(content)
            await target.drain()
    target.close()

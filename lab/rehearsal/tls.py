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


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """PEM files: a certificate of this machine with its key, and the authority that signed it."""

    authority: Path
    certificate: Path
    key: Path

    def server(self) -> ssl.SSLContext:
        """Return the context of a server."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


def certificate(folder: Path, *addresses: str) -> Certificate:
    """Make an authority, and a certificate for these IP addresses."""
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name, name = (
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])
        for text in ("rehearsal authority", "rehearsal")
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
    usage = dict.fromkeys(
        (
            *("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
            *("encipher_only", "decipher_only"),
        ),
        False,
    )
    ca_usage = x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **usage)
    ca = _builder(ca_name, ca_name, ca_key.public_key())
    ca = ca.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    ca = ca.add_extension(ca_usage, critical=True).add_extension(identifier, critical=False)
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(text)) for text in addresses])
    signer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    server = _builder(name, ca_name, key.public_key())
    server = server.add_extension(names, critical=False).add_extension(signer, critical=False)
    files = Certificate(
        authority=folder / "authority.pem", certificate=folder / "tls.pem", key=folder / "key.pem"
    )
    pem = serialization.Encoding.PEM
    files.authority.write_bytes(ca.sign(ca_key, hashes.SHA256()).public_bytes(pem))
    files.certificate.write_bytes(server.sign(ca_key, hashes.SHA256()).public_bytes(pem))
    files.key.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(
        now + timedelta(days=1)
    )


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

"""HttpService signs in to real servers: by headers of the adopter, or a client certificate."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sas.adapters.remote import HttpService
from sas.ports import RefusedError, TransientError

Answer = Callable[[web.Request], Awaitable[web.Response]]


@asynccontextmanager
async def serving(answer: Answer, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    port = runner.addresses[0][1]
    try:
        yield f"{'https' if context else 'http'}://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def show(request: web.Request) -> web.Response:
    """Answer with the headers that came."""
    return web.json_response(dict(request.headers))


async def api_key() -> Mapping[str, str]:
    return {"X-Api-Key": "k3y"}


async def called(url: str, **sign_in: Any) -> dict[str, str]:
    service = HttpService(url, name="stock", attempt_seconds=20, **sign_in)
    try:
        return dict(await service.call("POST", "/", key="k-1", body={}))
    finally:
        await service.close()


async def test_a_service_gets_the_headers_that_sign_in() -> None:
    async with serving(show) as url:
        headers = await called(url, headers=api_key)
        assert (headers["X-Api-Key"], headers["Idempotency-Key"]) == ("k3y", "k-1")


async def test_a_service_that_asks_for_nothing_gets_nothing() -> None:
    async with serving(show) as url:
        assert "X-Api-Key" not in await called(url)


async def test_without_the_headers_a_call_is_made_again_later() -> None:
    async def away() -> Mapping[str, str]:
        raise OSError("s3cr3t")

    async with serving(show) as url:
        with pytest.raises(TransientError, match="headers for stock are not available") as failed:
            await called(url, headers=away)
    assert failed.value.kind == "sign-in"
    assert "s3cr3t" not in str(failed.value)


async def test_a_401_is_about_the_key_and_fails_no_step_for_good() -> None:
    async def unknown(_request: web.Request) -> web.Response:
        return web.json_response({"detail": "who are you?"}, status=401)

    async with serving(unknown) as url:
        with pytest.raises(TransientError) as failed:
            await called(url, headers=api_key)
        with pytest.raises(RefusedError):
            await called(url)
    assert failed.value.kind == "http-401"
    assert (failed.value.answered, failed.value.error_answer) == (False, False)


class Authority:
    """Issues certificates for 127.0.0.1."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        self.pem = self._signed(self.name, self.key, authority=True)

    def issue(self, name: str) -> str:
        """Return the PEM text of a certificate with its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        plain = serialization.NoEncryption()
        form = serialization.PrivateFormat.PKCS8
        text = key.private_bytes(serialization.Encoding.PEM, form, plain).decode()
        return self._signed(subject, key, authority=False) + text

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, authority: bool
    ) -> str:
        now = datetime.now(UTC)
        here = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        ours = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        theirs = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        uses = x509.KeyUsage(True, False, False, False, False, authority, authority, False, False)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(here, critical=False)
            .add_extension(ours, critical=False)
            .add_extension(theirs, critical=False)
            .add_extension(uses, critical=True)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        signed = builder.sign(self.key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM).decode()


async def test_a_service_knows_the_app_by_its_client_certificate(tmp_path: Path) -> None:
    authority = Authority()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=authority.pem)
    (tmp_path / "server.pem").write_text(authority.issue("server"))
    context.load_cert_chain(tmp_path / "server.pem")
    context.verify_mode = ssl.CERT_REQUIRED

    async def who(request: web.Request) -> web.Response:
        assert request.transport is not None
        certificate = request.transport.get_extra_info("peercert")
        return web.json_response({"name": certificate["subject"][0][0][1]})

    def signed_by(issuer: Authority) -> ssl.SSLContext:
        pem = tmp_path / "client.pem"
        pem.write_text(issuer.issue("orders"))
        client = ssl.create_default_context(cadata=authority.pem)
        client.load_cert_chain(pem)
        return client

    async with serving(who, context) as url:
        assert await called(url, tls=signed_by(authority)) == {"name": "orders"}
        with pytest.raises(TransientError):
            await called(url, tls=signed_by(Authority()))

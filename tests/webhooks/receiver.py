"""A program that receives webhooks over TLS, with a separate certificate."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from keyturn.gateway.client.outgoing import trusted

HOST = "hooks.test"


class Names(AbstractResolver):
    """A resolver that gives another answer each time; the last one stays."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the next answer."""
        self.asked.append(host)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [
            ResolveResult(
                hostname=host,
                host=one,
                port=port,
                family=socket.AF_INET6 if ":" in one else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for one in answer
        ]

    async def close(self) -> None:
        """Close nothing."""


Answers = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Received:
    """One request."""

    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        """Return the id of the message."""
        return self.headers["webhook-id"]


def answering(*statuses: int, **headers: str) -> Answers:
    """Return what answers with these, one after another, and stays with the last."""
    left = list(statuses)

    async def answer(_: web.Request) -> web.StreamResponse:
        status = left.pop(0) if len(left) > 1 else left[0]
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=status, headers=named)

    return answer


def waiting_for(event: asyncio.Event) -> Answers:
    """Return what answers once an event comes."""

    async def answer(_: web.Request) -> web.StreamResponse:
        await event.wait()
        return web.Response()

    return answer


@dataclass
class Receiver:
    """A receiving server, its requests, and its answers."""

    port: int = 0
    certificates: Path = Path()
    requests: list[Received] = field(default_factory=list[Received])
    answer: Answers = field(default_factory=lambda: answering(204))

    def url(self, host: str = HOST, path: str = "/keyturn") -> str:
        """Return where it is, by a name."""
        return f"https://{host}:{self.port}{path}"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Remember a request, and answer."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append(Received(headers, await request.read()))
        return await self.answer(request)


def make_certificate(folder: Path, days: float = 0) -> tuple[Path, Path]:
    """Write a self-signed certificate, and its key.

    It is valid now, or this many days later or earlier, by less than two.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "keyturn tests")])
    now = datetime.fromtimestamp(time.time(), UTC)  # noqa: TID251 - a certificate is
    # valid by the clock of this machine.
    now += timedelta(days=days)
    names = [x509.DNSName(one) for one in (HOST, "localhost")]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, SHA256())
    )
    certificate, private = folder / "hooks.crt", folder / "hooks.key"
    certificate.write_bytes(made.public_bytes(Encoding.PEM))
    private.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    return certificate, private


@contextmanager
def trusting(receiver: Receiver) -> Generator[None]:
    """Trust a receiver's certificate alone, in this process and those it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(receiver.certificates))
        trusted.cache_clear()
        yield
    trusted.cache_clear()


@asynccontextmanager
async def receiving(folder: Path) -> AsyncGenerator[Receiver]:
    """Receive on this machine while the block runs."""
    if not (folder / "hooks.crt").exists():
        make_certificate(folder)
    certificate, private = folder / "hooks.crt", folder / "hooks.key"
    receiver = Receiver(certificates=certificate)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", receiver.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, private)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    receiver.port = runner.addresses[0][1]
    try:
        yield receiver
    finally:
        await runner.cleanup()

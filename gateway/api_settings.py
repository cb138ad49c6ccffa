"""Settings of the HTTP API for agents in other processes."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

_LAST_PORT = 65_535
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


class Address(NamedTuple):
    """Host and port of a server."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Return True if only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def url_host(self) -> str:
        """Return host and port in URL form (RFC 3986, section 3.2.2)."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return f"{shown}:{self.port}"


def address_of(text: str) -> Address:
    """Read ``host:port``, with an IPv6 host in brackets.

    Raises:
        ValueError: for any other text.
    """
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    is_port = port.isascii() and port.isdigit() and int(port) <= _LAST_PORT
    if not (host and colon and is_port):
        raise ValueError(
            f"{text!r} is no address; write host:port, such as 127.0.0.1:8780."
        )
    return Address(host, int(port))


def _address(text: str) -> str:
    address_of(text)
    return text


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def _https(url: str) -> str:
    parts = urlsplit(url)
    is_local = parts.scheme == "http" and parts.hostname in _LOOPBACK
    if not parts.hostname or not (parts.scheme == "https" or is_local):
        raise ValueError(
            f"{url!r} could be answered by anybody on the way; write https://…, or "
            "http:// on this machine."
        )
    return url


class PersonSettings(_Model):
    """A person's identity in Slack.

    Attributes:
        user: their Slack user id.
        usergroups: ids of their user groups.
        name: for the card and the audit log.
    """

    user: str = Field(
        pattern=r"^[UW][A-Z0-9]{1,30}$",
        description="the id of a Slack user, such as U012AB3CD",
    )
    usergroups: tuple[Annotated[str, Field(pattern=r"^S[A-Z0-9]{1,30}$")], ...] = Field(
        default=(), description="the id of a Slack user group, such as S012AB3CD"
    )
    name: str = Field(default="", max_length=80)


class PeopleSettings(_Model):
    """People who may decide over HTTP, identified by an OpenID Connect issuer.

    Attributes:
        issuer: the ``iss`` of tokens; its keys are discovered from there.
        audience: the ``aud`` of tokens for this gateway.
        claim: the token's claim that names the person; ``email`` counts only if the
            issuer has verified it.
        team: id of the Slack workspace.
        reviewers: the claim's value to the person in Slack; only these people decide.
        keys_url: URL of the issuer's keys; None: from the issuer's own document.
    """

    issuer: Annotated[str, AfterValidator(_https)]
    audience: str = Field(min_length=1)
    claim: str = Field(
        default="sub",
        pattern=r"^[A-Za-z0-9_:/.-]{1,100}$",
        description="the name of a claim of the token, such as sub",
    )
    team: str = Field(
        pattern=r"^T[A-Z0-9]{1,30}$",
        description="the id of a Slack workspace, such as T0123456789",
    )
    reviewers: dict[str, PersonSettings] = Field(min_length=1)
    keys_url: Annotated[str, AfterValidator(_https)] | None = None


class ApiSettings(_Model):
    """Settings of the HTTP API for agents in other processes.

    Attributes:
        listen: ``host:port``; empty: there is no HTTP API.
        certificate: file of the TLS certificate and its intermediate certificates.
        private_key: file of its private key.
        behind_proxy: a proxy in front ends TLS, so plain HTTP from other machines is
            accepted.
        requests_per_minute: limit for one API key in one process.
        megabytes_per_day: most data that one API key may store through one process in
            a day.
        connections: most open connections of one process.
        people: the people who may decide over HTTP; None: decisions in Slack only.
    """

    listen: Annotated[str, AfterValidator(_address)] | None = None
    certificate: Path | None = None
    private_key: Path | None = None
    behind_proxy: bool = False
    requests_per_minute: int = Field(default=6000, ge=1, le=1_000_000)
    megabytes_per_day: int = Field(default=1024, ge=1, le=10_000_000)
    connections: int = Field(default=1000, ge=10, le=100_000)
    people: PeopleSettings | None = None

    @model_validator(mode="after")
    def _safe(self) -> ApiSettings:
        if (self.certificate is None) is not (self.private_key is None):
            raise ValueError(
                "TLS needs both 'certificate' and 'private_key'; name both files."
            )
        address = self.address
        has_tls = self.certificate is not None or self.behind_proxy
        if address is not None and not address.is_loopback and not has_tls:
            raise ValueError(
                f"{self.listen!r} can be reached from other machines, and API keys "
                "would travel in the clear; name 'certificate' and 'private_key', or "
                "set 'behind_proxy: true' where a proxy in front ends TLS."
            )
        return self

    @property
    def address(self) -> Address | None:
        """Return the server's address; None without an API."""
        return None if self.listen is None else address_of(self.listen)

    def below(self, base: Path) -> ApiSettings:
        """Return the settings with file names relative to a folder."""
        return self.model_copy(
            update={
                name: base / path.expanduser()
                for name in ("certificate", "private_key")
                if (path := getattr(self, name)) is not None
            }
        )

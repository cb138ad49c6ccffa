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
    """Where a server listens."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine reaches it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def url_host(self) -> str:
        """Return host and port as they stand in a URL (RFC 3986, section 3.2.2)."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return f"{shown}:{self.port}"


def address_of(text: str) -> Address:
    """Read ``host:port``; an IPv6 host stands in brackets.

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
    """Who somebody is in Slack, as far as a decision needs it.

    Attributes:
        user: their Slack user id.
        usergroups: ids of the user groups in which they are.
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
    """Who may decide over HTTP: an OpenID Connect issuer says who somebody is.

    Attributes:
        issuer: as tokens name it; its keys are found from there.
        audience: as tokens name this gateway.
        claim: which of a token's claims names the person; ``email`` counts only where
            the issuer has verified it.
        team: id of the Slack workspace.
        reviewers: value of the claim to who that is in Slack; nobody else decides.
        keys_url: where the issuer's keys are; None: as the issuer's own document says.
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
    """How agents in other processes reach the gateway.

    Attributes:
        listen: ``host:port``; empty: there is no HTTP API.
        certificate: file of the TLS certificate, with those between it and the root.
        private_key: file of its private key.
        behind_proxy: a proxy in front ends TLS, so plain HTTP from other machines is
            accepted.
        requests_per_minute: how many requests one API key may send to one process.
        megabytes_per_day: how much one API key may have one process store in a day.
        connections: how many connections one process keeps at once.
        people: who may decide over HTTP; None: people decide in Slack alone.
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
        """Return where it listens; None: nowhere."""
        return None if self.listen is None else address_of(self.listen)

    def below(self, base: Path) -> ApiSettings:
        """Return the settings with file names that start at a folder."""
        return self.model_copy(
            update={
                name: base / path.expanduser()
                for name in ("certificate", "private_key")
                if (path := getattr(self, name)) is not None
            }
        )

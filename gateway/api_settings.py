"""Settings of the HTTP API for agents in other processes."""

from __future__ import annotations

import ipaddress
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from keyturn.gateway.setting_forms import FolderPath, SettingsModel, is_safe_url

_LAST_PORT = 65_535


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


def _address(given: object) -> Address:
    """Read ``host:port``, with an IPv6 host in brackets."""
    text = str(given)
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


ListenAddress = Annotated[Address, BeforeValidator(_address)]
"""The address of a server, written as ``host:port``."""


def _https(url: str) -> str:
    if not is_safe_url(url):
        raise ValueError(
            f"{url!r} could be answered by anybody on the way; write https://…, or "
            "http:// on this machine."
        )
    return url


class PersonSettings(SettingsModel):
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


class PeopleSettings(SettingsModel):
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


class ApiSettings(SettingsModel):
    """Settings of the HTTP API for agents in other processes.

    Attributes:
        listen: the address; None: there is no HTTP API.
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

    listen: ListenAddress | None = None
    certificate: FolderPath | None = None
    private_key: FolderPath | None = None
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
        has_tls = self.certificate is not None or self.behind_proxy
        if self.listen is not None and not self.listen.is_loopback and not has_tls:
            raise ValueError(
                f"{self.listen.url_host!r} can be reached from other machines, and "
                "API keys would travel in the clear; name 'certificate' and "
                "'private_key', or set 'behind_proxy: true' where a proxy in front "
                "ends TLS."
            )
        return self

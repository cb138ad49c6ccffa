"""Settings of the HTTP API, the metrics and the webhooks."""

from __future__ import annotations

import ipaddress
import re
from datetime import datetime, time, timedelta
from typing import Annotated, Literal, NamedTuple, get_args
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from keyturn.gateway.documents import read_text
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.setting_forms import (
    AgentName,
    ChannelName,
    FolderPath,
    Pause,
    SafeUrl,
    SettingsModel,
    Time,
    parse_share,
)


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


def parse_address(given: object) -> Address:
    """Parse ``host:port``, with an IPv6 host in brackets.

    Raises:
        ValueError: it is no address.
    """
    text = str(given)
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
        is_address = parts.netloc == text and "@" not in text
    except ValueError:  # such as an invalid port
        host, port, is_address = None, None, False
    if not is_address or not host or port is None:
        raise ValueError(
            f"{text!r} is no address; write host:port, such as 127.0.0.1:8780."
        )
    return Address(host, port)


ListenAddress = Annotated[Address, BeforeValidator(parse_address)]
"""The address of a server, written as ``host:port``."""


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

    issuer: SafeUrl
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
    keys_url: SafeUrl | None = None


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


Percent = Annotated[int, BeforeValidator(parse_share)]

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


class DigestSettings(SettingsModel):
    """Time of the weekly digest: a day, a time and its zone."""

    day: Day = "mon"
    at: str = Field(
        default="09:00",
        pattern="^([01][0-9]|2[0-3]):[0-5][0-9]$",
        description="a time of the day, such as '09:00'",
    )
    zone: ZoneInfo = ZoneInfo("UTC")

    def last_due(self, now: datetime) -> datetime:
        """Return the due time of the newest digest; ``now`` is aware."""
        local = now.astimezone(self.zone)
        back = (local.weekday() - get_args(Day).index(self.day)) % 7
        date = local.date() - timedelta(days=back)
        at = time.fromisoformat(self.at)
        due = datetime.combine(date, at, local.tzinfo)
        # By local clock time, even across a change to or from summer time.
        return due if due <= now else due - timedelta(days=7)

    def week_of(self, due: datetime) -> tuple[datetime, datetime]:
        """Return the seven whole days before the day of a digest."""
        until = datetime.combine(due.date(), time(), due.tzinfo)
        return until - timedelta(days=7), until


class AlertSettings(SettingsModel):
    """Thresholds of the immediate alerts.

    Attributes:
        waiting: a call waits for longer than this.
        corrected: more than this share of the decisions of the last 24 hours, in
            percent, were an edit or a rejection; of at least ``decisions``.
        corrected_of: the same for the decisions about single tools or tiers, by name.
        decisions: with fewer decisions there is no alert.
    """

    waiting: Time | None = None
    corrected: Percent | None = None
    corrected_of: dict[str, Percent] = Field(default_factory=dict)
    decisions: int = Field(default=20, ge=1)


class MetricsSettings(SettingsModel):
    """Posted metrics and their channel, and the metrics server.

    ``listen`` is the address of a server for ``/metrics`` and ``/readyz`` alone; None:
    only a bot serves them, on its port for Slack. ``channel`` empty is the channel of
    the policy's defaults.
    """

    listen: ListenAddress | None = None
    channel: ChannelName = ""
    digest: DigestSettings | None = None
    alert: AlertSettings = AlertSettings()


_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}", re.ASCII)
_LONGEST_URL = 2048


def _target_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is no name of a target; write up to 40 lower-case letters, "
            "digits, '-' and '_', a letter or digit first."
        )
    return name


def _is_name(host: str) -> bool:
    """Return True for a host name, False for an address in any spelling."""
    if ":" in host or not _HOST.fullmatch(host):
        return False
    # A host that ends with a number is an address, such as 127.1, 2130706433 and
    # 0x7f000001 (URL Standard, "ends in a number").
    last = host.rstrip(".").rpartition(".")[2].lower()
    return not (last.isdigit() or re.fullmatch("0x[0-9a-f]*", last))


def _url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_usable = (
            parts.scheme == "https"
            and _is_name(parts.hostname or "")
            and "@" not in parts.netloc
            and parts.port != 0
            and url.isascii()
            and url.isprintable()
            and len(url) <= _LONGEST_URL
        )
    except ValueError:  # such as an invalid port
        is_usable = False
    if not is_usable:
        # Without the URL, which may have a password.
        raise ValueError(
            "write https://host/path, with a host name, which the certificate names, "
            "and without a user name or password."
        )
    return url


def _host(name: str) -> str:
    if not _is_name(name):
        raise ValueError(f"{name!r} is no host name.")
    return name.lower().rstrip(".")


class WebhookTarget(SettingsModel):
    """One program that gets webhooks.

    Attributes:
        url: ``https://…`` with a host name.
        agents: agents of its threads; ``*`` is all of them.
        secrets: numbers of its secrets, the current one first: each message is signed
            with all of them, so that a receiver can change from one to the next.
    """

    url: Annotated[str, AfterValidator(_url)]
    agents: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=1)
    secrets: tuple[Annotated[int, Field(ge=1, le=1_000_000)], ...] = Field(
        default=(1,), min_length=1, max_length=3
    )

    @property
    def host(self) -> str:
        """Return the host of the URL."""
        return (urlsplit(self.url).hostname or "").rstrip(".")

    def is_of(self, agent: str) -> bool:
        """Return True if it gets webhooks for threads of an agent."""
        return bool({agent, "*"} & {*self.agents})


class HookSettings(SettingsModel):
    """Settings of the hooks of coding agents.

    Attributes:
        gated_servers: names of MCP servers that are behind a gate of Keyturn: their
            calls are asked about there, and not a second time by a hook.
    """

    gated_servers: tuple[
        Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")], ...
    ] = ()


class WebhookSettings(SettingsModel):
    """Programs that get notice of decisions in their threads.

    Attributes:
        targets: a name, which never changes, to each program.
        private_hosts: names of hosts that may have a private address.
        timeout_s: time limit for a receiver's answer.
        retry_for: time for which a message is sent again until it is given up.
    """

    targets: dict[Annotated[str, AfterValidator(_target_name)], WebhookTarget] = Field(
        default_factory=dict
    )
    private_hosts: tuple[Annotated[str, AfterValidator(_host)], ...] = ()
    timeout_s: float = Field(default=10.0, ge=0.5, le=60.0)
    retry_for: Time = timedelta(hours=24)


class ServedGraph(SettingsModel):
    """A graph on an Agent Server: the name of its agent in policy and cards."""

    agent: AgentName


class ServerSettings(SettingsModel):
    """An Agent Server of LangGraph, whose agents wait for people.

    Attributes:
        url: its address.
        key_file: file with its API key; None: it needs none.
        graphs: the names of its graphs, with their agents; others are left alone.
        every: pause between two looks at the server.
    """

    url: SafeUrl
    key_file: FolderPath | None = None
    graphs: dict[str, ServedGraph] = Field(min_length=1)
    every: Pause = timedelta(seconds=2)

    def read_key(self) -> str:
        """Return the API key; "" without a file.

        Raises:
            SettingsError: it cannot be read, or is none.
        """
        if self.key_file is None:
            return ""
        key = read_text(self.key_file, "the server's key", hint=_KEY_FILE).strip()
        if not (key.isascii() and key.isprintable() and key):
            why = "is not one line of plain characters" if key else "is empty"
            raise SettingsError(f"{str(self.key_file)!r} {why}. {_KEY_FILE}")
        return key


_KEY_FILE = "Write the API key of the Agent Server into it, and nothing else."

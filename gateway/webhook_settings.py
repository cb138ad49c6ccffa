"""Settings of webhooks: the programs that get notice of decisions in their threads."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from keyturn.gateway.setting_forms import SettingsModel, Time

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
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ValueError(f"{url!r} is no URL; write https://host/path.") from error
    is_plain = url.isascii() and url.isprintable() and len(url) <= _LONGEST_URL
    if parts.scheme != "https" or not host or port == 0 or not is_plain:
        raise ValueError(f"{url!r} cannot be used; write https://host/path.")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a name or password in a URL would be in logs; leave it out.")
    if parts.fragment:
        raise ValueError(f"{url!r} has a part after '#', which is never sent.")
    if not _is_name(host):
        raise ValueError(
            f"{host!r} is no host name; a webhook needs one, which its certificate "
            "names."
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

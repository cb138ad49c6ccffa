"""Parse `--at`, `--windows`, `--recent` and the call file into policy facts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import MAXYEAR, MINYEAR, UTC, date, datetime

from pydantic import Field

from keyturn.cli.command_context import CommandContext
from keyturn.gateway.errors import KeyturnError, SettingsError
from keyturn.gateway.policy.evaluate import Facts
from keyturn.gateway.policy.expressions import RECENT
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.policy.windows import micro, window_uses
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.validation_errors import did_you_mean, near

# Checked before `int`, which accepts digits of every script, underscores and spaces.
_COUNT = re.compile(r"[0-9]{1,9}", re.ASCII)


def parse_time(text: str, option: str = "--at") -> datetime:
    """Parse a time with its zone, such as ``2026-07-04T02:30Z``.

    Args:
        text: the time.
        option: the option's name, for the error.

    Raises:
        SettingsError: when it is not a time, or has no zone.
    """
    when = None
    with suppress(ValueError):
        when = datetime.fromisoformat(text)
    # No default zone: business hours would depend on the machine of the command.
    if when is None or when.tzinfo is None or not MINYEAR < when.year < MAXYEAR:
        raise SettingsError(
            f"{option} {text!r} is not a time with its zone; write 2026-07-04T02:30Z "
            "or 2026-07-04T02:30+01:00."
        )
    return when.astimezone(UTC)


def parse_moment(text: str, option: str) -> datetime:
    """Parse a time like `parse_time`; a date alone begins in UTC."""
    with suppress(ValueError):
        text = f"{date.fromisoformat(text)}T00:00Z"
    return parse_time(text, option)


def parse_ms(text: str, option: str) -> int | None:
    """Parse a time like `parse_time`, in Unix milliseconds; None without one."""
    return int(parse_time(text, option).timestamp() * 1000) if text else None


def ensure_spelled(
    command: CommandContext, *, tools: Iterable[str] = (), agents: Iterable[str] = ()
) -> None:
    """Refuse misspelled names of tools and agents; others may exist elsewhere.

    Without a readable policy, names are not checked.

    Raises:
        SettingsError: names the probable spelling.
    """
    try:
        policy, listed = command.policy(), command.settings().agents
    except KeyturnError:
        return
    named = [("tool", name, policy.tool_names) for name in tools]
    known = frozenset({*policy.agents, *listed})
    named += [("agent", name, known) for name in agents]
    for kind, name, names in named:
        if meant := did_you_mean(name, names):
            raise SettingsError(f"There is no {kind} {name!r}; {meant}")


class CallFile(Record):
    """The format of ``--call``: one call as an agent would propose it."""

    tool: str
    args: JsonObject = Field(default_factory=dict)
    agent: str = ""
    args_schema: JsonObject | None = None
    requester: str = ""


def facts_of(
    policy: Policy,
    call: CallFile,
    when: datetime,
    *,
    windows: Iterable[str] = (),
    recent: Iterable[str] = (),
) -> Facts:
    """Return the facts of the options, and this call's share of every other total.

    Args:
        policy: the policy with the windows.
        call: the proposed call.
        when: the time.
        windows: ``name=value``, a total including this call.
        recent: ``name=count``; ``requests_10m`` includes this call, as in the gateway.

    Raises:
        SettingsError: for an unknown name, or a value that is not a number.
    """
    found = window_uses(
        policy,
        agent=call.agent,
        tool=call.tool,
        args=call.args,
        requester=call.requester,
    )
    # By default each total contains only this call: a window without other calls.
    totals = {use.window: use.amount_micro for use in found.uses}
    for text in windows:
        name, _, value = text.partition("=")
        totals[_known("--windows", name, policy.windows)] = _total(name, value)
    counts = {"requests_10m": 1}
    for text in recent:
        name, _, value = text.partition("=")
        counts[_known("--recent", name, RECENT)] = _count(name, value)
    return Facts(
        now_ms=int(when.timestamp()) * 1000,
        windows=totals,
        requester=call.requester,
        problems=found.problems,
        **counts,
    )


def _known(option: str, name: str, known: Iterable[str]) -> str:
    names = tuple(known)
    if name not in names:
        raise SettingsError(f"{option}: there is no {name!r}; {near(name, names)}")
    return name


def _total(name: str, value: str) -> int:
    try:
        return micro(value)
    except ValueError as error:
        text = f"--windows {name}={value}: {value!r} {error}; write {name}=147.50."
        raise SettingsError(text) from error


def _count(name: str, value: str) -> int:
    if not _COUNT.fullmatch(value):
        raise SettingsError(f"--recent {name}={value}: write a count, as {name}=3.")
    return int(value)

"""Parse field values of a policy: durations, Slack ids, paths, templates."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from keyturn.gateway.policy import formats, hours
from keyturn.gateway.policy.expressions import compiled
from keyturn.gateway.setting_forms import is_name, parse_duration, parse_share
from keyturn.gateway.validation_errors import shortened

_USER = re.compile(r"[UW][A-Z0-9]{2,20}", re.ASCII)
_USERGROUP = re.compile(r"S[A-Z0-9]{2,20}", re.ASCII)
# Names of channels may have letters of any alphabet, so not `re.ASCII`.
_CHANNEL = re.compile(r"[CGD][A-Z0-9]{2,20}|#[\w.-]{1,80}")
_ROLE = re.compile(r"[a-z][a-z0-9_-]{0,63}", re.ASCII)
_PATH = re.compile(r"args(?:\.[^.{}\s]+)+")
_PLACEHOLDER = re.compile(r"\{(?P<path>[^{}|]*)(?:\|(?P<format>[^{}]*))?\}")
_NAME = r"[a-z0-9-]+(?:\.[a-z0-9-]+)+(?::[0-9]{1,5})?"
_HOST_NAME = re.compile(_NAME, re.ASCII)
_HOST = re.compile(rf"https://(?P<host>{_NAME})/", re.ASCII)
_URL = re.compile(r"[\w.~:/?#@!$&'()*+,;=%-]+", re.ASCII)
_WINDOW = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
RESERVED_WORDS = frozenset(
    {"as", "break", "const", "continue", "else", "false", "for", "function", "if"}
    | {"import", "in", "let", "loop", "namespace", "null", "package", "return"}
    | {"true", "var", "void", "while"}
)
"""Words that CEL does not read as a name."""
_SOURCES = ("requester", "call.agent", "call.tool")
_LONGEST_REASON = 200
_ACT = re.compile(r"[A-Za-z][A-Za-z-]{0,15}")
MAX_LINK = 300
"""Longest link in characters, both as a template and filled in."""


def is_user_id(text: str) -> bool:
    """Return whether this has the form of a Slack user id."""
    return _USER.fullmatch(text) is not None


def is_usergroup_id(text: str) -> bool:
    """Return whether this has the form of a Slack user group id."""
    return _USERGROUP.fullmatch(text) is not None


def is_slack_id(text: str) -> bool:
    """Return whether this has the form of the id of a Slack user or user group."""
    return is_user_id(text) or is_usergroup_id(text)


def is_channel(text: str) -> bool:
    """Return whether this is ``#name`` or has the form of a Slack channel id."""
    return _CHANNEL.fullmatch(text) is not None


def placeholders(template: str) -> Iterator[re.Match[str]]:
    """Yield every ``{path}`` and ``{path|format}`` of a template; these are groups."""
    return _PLACEHOLDER.finditer(template)


def fill(template: str, value_of: Callable[[re.Match[str]], str]) -> str:
    """Fill a template; a value that looks like a placeholder stays as it is."""
    return _PLACEHOLDER.sub(value_of, template)


def _checked(is_one: Callable[[str], object], problem: str) -> AfterValidator:
    """Return a validator that quotes a bad string and describes the problem."""

    def check(text: str) -> str:
        if not is_one(text):
            raise ValueError(f"{shortened(text)!r} {problem}")
        return text

    return AfterValidator(check)


def one_or_many(value: object) -> object:
    """Accept one string in place of a list of one."""
    return [value] if isinstance(value, str) else value


def _template(text: str) -> str:
    for match in placeholders(text):
        if _PATH.fullmatch(match["path"]) is None:
            raise ValueError(f"{match[0]!r} is not known here; write {{args.name}}.")
        if match["format"] is not None and not formats.is_known(match["format"]):
            raise ValueError(
                f"{match[0]!r} has an unknown format; write {formats.KNOWN}."
            )
    left_over = _PLACEHOLDER.sub("", text)
    if "{" in left_over or "}" in left_over:
        raise ValueError(
            f"{shortened(text)!r} has a brace without its pair; write {{args.name}}."
        )
    return text


def _total(text: str) -> str:
    path, _, name = text.partition("|")
    if _PATH.fullmatch(path) is None:
        raise ValueError(f"{text!r} is no argument; write args.amount|eur.")
    if name == "date" or ("|" in text and not formats.is_known(name)):
        raise ValueError(
            f"{text!r} has a format without a sum; write {formats.KNOWN_NUMBERS}."
        )
    return text


def _link(text: str) -> str:
    _template(text)
    if any(match["format"] is not None for match in placeholders(text)):
        raise ValueError(
            f"{shortened(text)!r} has a format; a link takes each value as it is."
        )
    fixed = _PLACEHOLDER.sub("", text)
    # The host is written out: no value of a call may choose the target of a link.
    if _HOST.match(text) is None or _URL.fullmatch(fixed) is None:
        raise ValueError(
            f"{shortened(text)!r} is not a link; write https, a host and a path, such "
            "as https://shop.example/orders/{args.order_id}."
        )
    if len(text) > MAX_LINK:
        raise ValueError(f"it has {len(text)} characters; {MAX_LINK} are the most.")
    return text


def host_of(link: str) -> str:
    """Return the host that a link of a policy leads to, with its port."""
    found = _HOST.match(link)
    return found["host"] if found else ""


def _expression(text: str) -> str:
    try:
        compiled(text)
    except ValueError as error:
        problem = str(error)
        end = "" if problem.endswith(("?", ".")) else "."
        raise ValueError(f"{problem}{end}") from error
    return text


def _zone(name: str) -> str:
    hours.zone(name)
    return name


def _added(value: object) -> object:
    """Return None for 1, which counts calls."""
    # `type(...) is`: 1 == True == 1.0 in Python.
    return None if type(value) is int and value == 1 else value


def _distinct(values: tuple[str, ...]) -> tuple[str, ...]:
    for place, value in enumerate(values):
        if value in values[:place]:
            raise ValueError(f"{str(value)!r} appears twice; remove one.")
    return values


def capped(longest: str) -> AfterValidator:
    """Return a validator that limits a duration, such as ``10m``."""
    most = parse_duration(longest)

    def check(given: timedelta) -> timedelta:
        if given > most:
            raise ValueError(f"{longest} is the most; shorten it.")
        return given

    return AfterValidator(check)


Distinct = AfterValidator(_distinct)
Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(lambda value: int(value.total_seconds()), return_type=int),
]
"""``90s``, ``30m``, ``1h`` or ``2d``; 30 days at most."""
UserId = Annotated[
    str,
    _checked(
        is_user_id,
        "is not a Slack user id; ids look like U012AB3CD (Slack profile, ⋮, Copy "
        "member ID).",
    ),
]
"""A Slack user id, such as ``U012AB3CD``."""
UsergroupId = Annotated[
    str,
    _checked(
        is_usergroup_id,
        "is not a Slack user group id; ids look like S012AB3CD (they are in the "
        "group's link, not its @name).",
    ),
]
"""A Slack user group id, such as ``S012AB3CD``."""
ChannelRef = Annotated[
    str, _checked(is_channel, "is not a channel; write #name or an id like C012AB.")
]
"""A channel: ``"#name"`` in quotes, or an id such as ``C012AB3CD``."""
RoleName = Annotated[
    str,
    _checked(
        _ROLE.fullmatch, "cannot name a role; use lower-case letters, digits, - and _."
    ),
]
"""A key of ``roles``: lower-case letters, digits, ``-`` and ``_``."""
ReviewerRef = Annotated[
    str,
    _checked(
        lambda text: is_slack_id(text) or _ROLE.fullmatch(text),
        "is neither a role of this file nor a Slack user id (U…, W…) or user group id "
        "(S…); write one of these.",
    ),
]
Reviewers = Annotated[tuple[ReviewerRef, ...], BeforeValidator(one_or_many), Distinct]
"""A role, a Slack user id or a user group id, or a list of these."""
Needs = Annotated[Reviewers, Field(min_length=1)]
"""People, or the name of one of ``requirements``."""
ArgsPath = Annotated[
    str,
    _checked(_PATH.fullmatch, "is not a path; write args.name or args.card.number."),
]
"""An argument, such as ``args.amount`` or ``args.card.number``."""
ArgsPaths = Annotated[tuple[ArgsPath, ...], BeforeValidator(one_or_many), Distinct]
"""A path, or a list of paths."""
AddedUp = Annotated[ArgsPath | None, BeforeValidator(_added)]
"""A path, or ``1``."""
Template = Annotated[str, AfterValidator(_template)]
"""Text with values of the call: ``{args.name}``, or with a format
``{args.amount|eur}``. Formats are currency codes (``eur``, or ``eur_minor`` for cents),
``number`` and ``date``. A value that does not fit is shown as it is."""
Act = Annotated[
    str,
    # Slack's limit for the button of a form is 24 characters, with "Approve".
    _checked(_ACT.fullmatch, "is not one word of up to 16 letters, such as refund."),
]
"""A word of at most 16 letters and hyphens, such as ``refund``."""
Host = Annotated[
    str,
    _checked(
        _HOST_NAME.fullmatch,
        "is no host; write its name alone, in small letters, such as shop.example.",
    ),
]
"""A host name in lower case, such as ``shop.example``."""
Link = Annotated[str, AfterValidator(_link)]
"""An ``https`` address with its host written out, such as
``https://shop.example/orders/{args.order_id}``; 300 characters at most."""
Totals = Annotated[
    tuple[Annotated[str, AfterValidator(_total)], ...],
    BeforeValidator(one_or_many),
    Field(max_length=3),
    Distinct,
]
"""A path with the format of a number, such as ``args.amount|eur``, or a list of these.
"""
WindowName = Annotated[
    str,
    _checked(
        lambda text: _WINDOW.fullmatch(text) and text not in RESERVED_WORDS,
        "cannot name a window; use lower-case letters, digits and _.",
    ),
]
Share = Annotated[int, BeforeValidator(parse_share), Field(ge=1, le=99)]
"""``1%`` to ``99%``."""
Condition = Annotated[str, AfterValidator(_expression)]
"""An expression in CEL, of at most 1,000 characters."""
Reason = Annotated[
    str,
    AfterValidator(str.strip),
    _checked(
        lambda text: text and text.isprintable() and len(text) <= _LONGEST_REASON,
        "is not a reason that fits on a card; write one line of at most "
        f"{_LONGEST_REASON} characters.",
    ),
]
"""One line of at most 200 characters."""
CountedBy = Annotated[
    str,
    _checked(
        lambda text: text in _SOURCES or _PATH.fullmatch(text),
        f"cannot be counted by; write args.x, {', '.join(_SOURCES)}.",
    ),
]
"""``args.NAME``, ``requester``, ``call.agent`` or ``call.tool``."""
EscalationTarget = Annotated[
    str,
    _checked(
        lambda text: is_channel(text) or is_user_id(text) or _ROLE.fullmatch(text),
        "is neither a role of this file nor a channel (#name, C…) nor a Slack user id "
        "(U…); write one of these.",
    ),
]
"""A role, a Slack user id or a channel."""
Day = Annotated[str, AfterValidator(hours.holiday)]
"""``2026-04-03`` for one day, or ``12-25`` for every year."""
ExactName = Annotated[
    str,
    _checked(
        # Text such as "refund_*" is meant as a pattern and would match nothing.
        lambda text: "*" not in text and is_name(text),
        "cannot be a name; write it as the agent's code does, without * and without "
        "spaces around it.",
    ),
]
"""The exact name of a tool or an agent; patterns are refused."""
RequirementName = Annotated[
    str,
    _checked(
        _ROLE.fullmatch,
        "cannot name a requirement; use lower-case letters, digits, - and _.",
    ),
]
"""A key of ``requirements``: lower-case letters, digits, ``-`` and ``_``."""
Audience = Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,200}$")]
Zone = Annotated[str, AfterValidator(_zone)]
"""An IANA name, such as ``Europe/London``; daylight saving is followed."""
StrictBool = Annotated[bool, Field(strict=True)]
Count = Annotated[int, Field(strict=True)]

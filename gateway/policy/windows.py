"""Compute a call's use of rate-limit and sum windows, as a pure function."""

from __future__ import annotations

import re
import unicodedata
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation

from pydantic import JsonValue

from keyturn.gateway.approvals.invisible_characters import is_hidden
from keyturn.gateway.errors import BadJson
from keyturn.gateway.policy.expressions import value_at
from keyturn.gateway.policy.rules import Policy, WindowRule
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.protocol.strict_json import MAX_INTEGER, JsonObject

# Normalize the `by` value of a window into one aggregation key.
#
# Totals are kept by this key. Two resources with the same key by mistake are only
# counted together, which can raise a call but never lower one.

# Strings that pydantic reads as numbers: with a sign, leading zeros, or underscores
# between digits.
# https://docs.pydantic.dev/latest/concepts/conversion_table/
_NUMBER = re.compile(
    r"[+-]?(?=\.?[0-9])[0-9_]*(?:\.[0-9_]*)?(?:e[+-]?[0-9]{1,3})?", re.ASCII
)
_MAX_DIGITS = 300
"""A longer string is kept unchanged."""


def window_key(value: JsonValue) -> str:
    """Return the key of a resource, under which its uses are added up.

    Spellings of one resource share a key: 7, ``"07"``, ``"+7"`` and ``" 7.0 "``, upper
    and lower case, with and without invisible characters, also inside a list or an
    object.

    Raises:
        ValueError: when the value is empty or a truth value.
    """
    # An empty key would be one total for everyone; the call is raised instead.
    keyed = "" if value is None or isinstance(value, bool) else _keyed(value)
    if keyed in ("", [], {}):
        raise ValueError("has no usable value")
    return _canonical(keyed)


def _keyed(value: JsonValue) -> JsonValue:
    match value:
        case int() | float() if not isinstance(value, bool):
            return _text(_canonical(value))
        case str():
            return _number(_text(value))
        case list():
            return [_keyed(one) for one in value]
        case dict():
            return {name: _keyed(one) for name, one in value.items()}
        case _:
            return value


def _text(value: str) -> str:
    """Fold a string; folding is idempotent."""
    # Strip invisible characters first; otherwise equal keys would differ. Twice,
    # because casefold can produce characters that NFKC folds again.
    text = unicodedata.normalize("NFKC", _seen(value)).casefold()
    text = unicodedata.normalize("NFKC", _seen(unicodedata.normalize("NFKC", text)))
    return " ".join(text.split())


def _seen(text: str) -> str:
    spaced = (" " if one.isspace() else one for one in text)
    return "".join(one for one in spaced if not is_hidden(one))


def _number(text: str) -> str:
    """Return the number spelled by a folded text; other texts are unchanged."""
    # Bounded before the conversion: int() of a Decimal writes out every digit.
    if len(text) > _MAX_DIGITS or not _NUMBER.fullmatch(text):
        return text
    number = Decimal(text.replace("_", ""))
    if number == number.to_integral_value():
        return str(int(number))
    return _text(_canonical(float(number)))


def _canonical(value: JsonValue) -> str:
    try:
        return digest.canonical(value).decode()
    except BadJson as error:
        raise ValueError("is not strict JSON") from error


MICRO = 1_000_000
"""Millionths in one; a count adds this much."""

MAX_MICRO = MAX_INTEGER
"""The largest share that a store can add up without losing digits (2^53-1)."""

_AMOUNT = re.compile(r"[0-9]{1,16}(?:\.[0-9]{1,30})?", re.ASCII)


class WindowUse(Record):
    """The share of one call in one window.

    Attributes:
        window: the window's name.
        key: key of the resource; empty if the window has one total.
        amount_micro: the share in millionths; 1,000,000 for a count.
        within_ms: how long it counts.
        is_request: it also counts if the call does not run.
    """

    window: str
    key: str
    amount_micro: int
    within_ms: int
    is_request: bool = False


class WindowUses(Record):
    """The shares of one call in all windows, and the problems with unknown shares.

    Each problem is fixed text, and raises the call to ``escalate``.
    """

    uses: tuple[WindowUse, ...] = ()
    problems: tuple[str, ...] = ()


def window_uses(
    policy: Policy, *, agent: str, tool: str, args: JsonObject, requester: str = ""
) -> WindowUses:
    """Return the shares of a call in the windows of a policy; never raises.

    Args:
        policy: the loaded policy.
        agent: name of the agent that asks.
        tool: name of the tool.
        args: the arguments that would run.
        requester: Slack id of the requester.
    """
    uses: list[WindowUse] = []
    problems: list[str] = []
    values: JsonObject = {
        "args": args,
        "call": {"agent": agent, "tool": tool},
        "requester": requester,
    }
    for name, rule in policy.windows.items():
        if not rule.covers(tool):
            continue
        try:
            use = WindowUse(
                window=name,
                key=_key(rule, values),
                amount_micro=_amount(rule, values),
                within_ms=int(rule.within.total_seconds() * 1000),
                is_request=rule.counts == "requests",
            )
        except ValueError as error:
            problems.append(f"The total {name!r} is not known: {error}.")
        else:
            uses.append(use)
    return WindowUses(uses=tuple(uses), problems=tuple(problems))


def micro(value: JsonValue) -> int:
    """Return an amount in millionths, exact and rounded half up.

    Args:
        value: a number, or a decimal number as text.

    Raises:
        ValueError: when it is no such number, negative, or too large to be added up.
    """
    # From the text of the number: Decimal(0.1) has the float's 55 digits.
    text = "" if isinstance(value, bool) else str(value)
    # Decimal also accepts "1e9", "NaN" and digits of other alphabets, which a tool may
    # read differently.
    if isinstance(value, str) and not _AMOUNT.fullmatch(value):
        text = ""
    try:
        amount = Decimal(text)
    except InvalidOperation as error:
        raise ValueError("is not a number that can be added up") from error
    if not amount.is_finite():
        raise ValueError("is not a number that can be added up")
    # A negative amount would make room for other calls above the limit.
    if amount < 0:
        raise ValueError("is negative")
    if amount > MAX_MICRO // MICRO:
        raise ValueError("is too large to be added up")
    return int((amount * MICRO).to_integral_value(ROUND_HALF_UP))


def _key(rule: WindowRule, values: JsonObject) -> str:
    if rule.by is None:
        return ""
    try:
        return window_key(_at(rule.by, values))
    except ValueError as error:
        raise ValueError(f"{rule.by} {error}") from error


def _amount(rule: WindowRule, values: JsonObject) -> int:
    if rule.sum is None:
        return MICRO
    try:
        return micro(_at(rule.sum, values))
    except ValueError as error:
        raise ValueError(f"{rule.sum} {error}") from error


def _at(path: str, values: JsonObject) -> JsonValue:
    try:
        return value_at(values, tuple(path.split(".")))
    except LookupError as error:
        raise ValueError("is missing") from error

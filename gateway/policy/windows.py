"""Compute a call's use of rate-limit and sum windows, as a pure function."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation

from pydantic import JsonValue

from keyturn.gateway.approvals.invisible_characters import is_hidden
from keyturn.gateway.errors import BadJson
from keyturn.gateway.policy.effective_rules import EffectiveRules
from keyturn.gateway.policy.expressions import value_at
from keyturn.gateway.policy.rules import Policy, WindowRule
from keyturn.gateway.policy.schemas import shape_at
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.protocol.strict_json import MAX_INTEGER, JsonObject
from keyturn.gateway.protocol.work import one_budget

# Normalize the `by` value of a window into one aggregation key.
#
# The key is what totals are kept under. Two resources that share a key by mistake are
# only counted together, which can raise a call and never lowers one.

_NUMERIC = frozenset({"integer", "number"})

# What pydantic reads as a number when a string stands in its place: with a sign, with
# zeros, with underscores between digits.
# https://docs.pydantic.dev/latest/concepts/conversion_table/
_NUMBER = re.compile(
    r"[+-]?(?=\.?[0-9])[0-9_]*(?:\.[0-9_]*)?(?:e[+-]?[0-9]{1,3})?", re.ASCII
)
_NUMBER_BEGINS = frozenset("+-.0123456789")
_MAX_DIGITS = 300
"""A longer string is kept as it is."""


def window_key(
    value: JsonValue, schema: JsonObject | None = None, path: Sequence[str] = ()
) -> str:
    """Return a resource as the text under which its uses are added up.

    Spellings of one resource share a key: 7, ``"7"`` and ``" 7 "`` do, and so do
    upper and lower case, with invisible characters and without, also inside a list or
    an object. Where a number is declared, ``"07"``, ``"+7"`` and ``"7.0"`` do, too.

    Args:
        value: what names the resource.
        schema: JSON Schema of the arguments; None when nobody declares them.
        path: where the value stands below the arguments.

    Raises:
        ValueError: when the value names nothing, or its schema is too long to look
            through (`TooMuchWork`).
    """
    # Nobody's total would be everybody's: the call is raised instead.
    if value is None or isinstance(value, bool) or value in ("", [], {}):
        raise ValueError("names nobody")
    with one_budget():
        keyed = _keyed(value, schema, tuple(path))
    if keyed == "":
        raise ValueError("names nobody")
    return _canonical(keyed)


def _keyed(
    value: JsonValue, schema: JsonObject | None, path: tuple[str, ...]
) -> JsonValue:
    match value:
        case int() | float() if not isinstance(value, bool):
            return _text(_canonical(value))
        case str():
            text = _text(value)
            # What begins otherwise spells no number, whatever is declared.
            if schema is None or text[:1] not in _NUMBER_BEGINS:
                return text
            kinds = shape_at(schema, path).kinds
            is_number = bool(kinds) and kinds <= _NUMERIC | {"null"}
            return _number(text) if is_number else text
        case list():
            return [
                _keyed(one, schema, (*path, str(index)))
                for index, one in enumerate(value)
            ]
        case dict():
            return {
                name: _keyed(one, schema, (*path, name)) for name, one in value.items()
            }
        case _:
            return value


def _text(value: str) -> str:
    """Fold a string; one that is folded stays as it is."""
    # What is invisible goes first: it would keep apart what belongs together.
    # Twice, because casefold can make characters that NFKC folds again, and a folded
    # text has to fold to itself.
    text = unicodedata.normalize("NFKC", _seen(value)).casefold()
    text = unicodedata.normalize("NFKC", _seen(unicodedata.normalize("NFKC", text)))
    return " ".join(text.split())


def _seen(text: str) -> str:
    spaced = (" " if one.isspace() else one for one in text)
    return "".join(one for one in spaced if not is_hidden(one))


def _number(text: str) -> str:
    """Return the number that a folded text spells; the text when it spells none."""
    # Bounded before it is converted: int() of a Decimal writes out every digit.
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
"""Millionths in one: what a count adds."""

MAX_MICRO = MAX_INTEGER
"""The largest share that a store can add up without losing digits (2^53-1)."""

_AMOUNT = re.compile(r"[0-9]{1,16}(?:\.[0-9]{1,30})?", re.ASCII)


class WindowUse(Record):
    """What one call adds to one window.

    Attributes:
        window: the window's name.
        key: the resource whose total it is, as text; empty when the window has none.
        amount_micro: its share in millionths; 1,000,000 for a count.
        within_ms: how long it stays in the total.
        is_request: it stays there, also when the call does not run.
    """

    window: str
    key: str
    amount_micro: int
    within_ms: int
    is_request: bool = False


class WindowUses(Record):
    """What one call adds to all windows, and why a share is not known.

    Each problem is a sentence of ours and raises the call to ``escalate``.
    """

    uses: tuple[WindowUse, ...] = ()
    problems: tuple[str, ...] = ()


def window_uses(
    policy: Policy,
    *,
    agent: str,
    tool: str,
    args: JsonObject,
    requester: str = "",
    declared_schema: JsonObject | None = None,
) -> WindowUses:
    """Return what a call adds to the windows of a policy; never raises.

    Args:
        policy: the loaded policy.
        agent: name of the agent that asks.
        tool: name of the tool.
        args: the arguments that would run.
        requester: Slack id of the person who asked the agent.
        declared_schema: JSON Schema of the arguments as the agent declares it; the
            policy's own wins.
    """
    # By the same schema as rules and edits: it decides whether "07" and 7 are one
    # resource.
    schema = EffectiveRules(policy, agent, tool).first.args_schema or declared_schema
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
                key=_key(rule, values, schema),
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
    # From the text of the number: Decimal(0.1) would be the float's 55 digits.
    text = "" if isinstance(value, bool) else str(value)
    # Decimal also reads "1e9", "NaN" and digits of other alphabets, which a tool may
    # read as something else.
    if isinstance(value, str) and not _AMOUNT.fullmatch(value):
        text = ""
    try:
        amount = Decimal(text)
    except InvalidOperation as error:
        raise ValueError("is not a number that can be added up") from error
    if not amount.is_finite():
        raise ValueError("is not a number that can be added up")
    # A negative amount would let other calls exceed the limit of the total.
    if amount < 0:
        raise ValueError("is negative")
    if amount > MAX_MICRO // MICRO:
        raise ValueError("is too large to be added up")
    return int((amount * MICRO).to_integral_value(ROUND_HALF_UP))


def _key(rule: WindowRule, values: JsonObject, schema: JsonObject | None) -> str:
    if rule.by is None:
        return ""
    try:
        root, *path = rule.by.split(".")
        return window_key(
            _at(rule.by, values), schema if root == "args" else None, path
        )
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

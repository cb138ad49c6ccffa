"""Prove that each call of a tool has at least a tier or a number of people.

A condition that only compares arguments with constants has the same result for all
numbers between two neighbouring constants, for all other texts, and for all values of
another type. So one value of each such range represents the range, and the
combinations of these values represent all calls.

Rules only raise a call. A rule with another condition is therefore left out of the
proof, which can make a proof impossible but not wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import TypeGuard, cast

from pydantic import JsonValue

from keyturn.gateway.approvals.quorum import tally
from keyturn.gateway.approvals.requirement import Requirement
from keyturn.gateway.policy.cel_tokens import Kind, Row, literal, tokens
from keyturn.gateway.policy.effective_rules import EffectiveRules
from keyturn.gateway.policy.evaluate import Facts, evaluate, fired
from keyturn.gateway.policy.expressions import Expression, ask, scope
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.edits import argument_errors
from keyturn.gateway.protocol.records import Record, Tier, join
from keyturn.gateway.protocol.strict_json import JsonObject

MOST_CASES = 20_000
"""Combinations that are tried, which takes some seconds."""

_LARGEST = 2.0**52
"""Above it, a double may have no other double within 1."""

_ABSENT = object()
_WINDOWS = "the windows of the tool"
_EVERYBODY = 1_000_000
"""People of a call that never runs."""

_JOINS = frozenset({"&&", "||", "!", "(", ")", "?", ":"})
_ORDERS = frozenset({"<", "<=", ">", ">="})
_NAMED: dict[str, JsonValue] = {"true": True, "false": False, "null": None}
_LIMITS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "const")
_EXACT = {*_LIMITS, "enum", "type", "title", "description", "default", "examples"}
"""Keywords of an argument's schema whose ranges are represented."""

_BY_TYPE: dict[str, JsonValue] = {
    **dict.fromkeys(["integer", "number"], 0),
    "string": "x",
    "boolean": False,
    "null": None,
    "array": [],
    "object": {},
}


class Proof(Record):
    """The result: proven, a call that has less, or conditions that prevent a proof.

    Attributes:
        cases: number of combinations that the claim is about; 0: it says nothing.
        unproven: conditions, or parts of the schema, that prevent the proof.
        agent: agent of the call that has less; "" for an unlisted one.
        args: its arguments; None if no such call was found.
        tier: its tier.
        people: number of people who have to approve it.
    """

    cases: int = 0
    unproven: tuple[str, ...] = ()
    agent: str = ""
    args: JsonObject | None = None
    tier: Tier = Tier.DENY
    people: int = 0

    @property
    def is_proven(self) -> bool:
        """Return True if no call has less."""
        return self.args is None and not self.unproven


class _Unbounded(Exception):
    """A condition does more than to compare arguments with constants."""


@dataclass(frozen=True)
class Claim:
    """The claim that calls of a tool have at least a tier and a number of people.

    Attributes:
        policy: the policy.
        tool: name of the tool.
        tier: the least tier.
        people: the least number of people.
        where: a condition; the claim is only about calls for which it is true.
        schema: the claim is only about calls that fit it. None: about all calls, and
            those that do not fit the policy's schema are escalated.
        facts: returns the facts of a call, for a call that may have less.
    """

    policy: Policy
    tool: str
    tier: Tier
    people: int
    where: Expression
    schema: JsonObject | None
    facts: Callable[[str, JsonObject], Facts]

    def proof(self, agents: Iterable[str]) -> Proof:
        """Return the proof for these agents, or the first call that has less."""
        cases, unproven = 0, dict[str, None]()
        for agent in agents:
            found = self._proof_of(agent)
            if found.args is not None:
                return found
            cases += found.cases
            unproven |= dict.fromkeys(found.unproven)
        return Proof(cases=cases, unproven=tuple(unproven))

    def _proof_of(self, agent: str) -> Proof:
        rules = EffectiveRules(self.policy, agent, self.tool)
        # The run of an agent may ask for less.
        rules = EffectiveRules(
            self.policy, agent, self.tool, Tier.AUTO if rules.overridable else None
        )
        schema = self.schema or rules.first.args_schema or {}
        bounded = [one for one in rules.raising() if _is_bounded(one.when)]
        others = [one for one in rules.raising() if one not in bounded]
        sources = [one.when for one in bounded]
        unproven = dict[str, None]()
        if _is_bounded(self.where.source):
            sources.append(self.where.source)
        else:
            unproven[self.where.source] = None
        values = _values(sources, schema)
        count, cases = math.prod(map(len, values.values())), 0
        if count > MOST_CASES:
            return Proof(unproven=(f"{count} combinations of {', '.join(values)}",))
        for chosen in product(*values.values()):
            given = dict(zip(values, chosen, strict=True))
            args = _filled(given, schema)
            if not self._is_claimed(args):
                continue
            is_fit = not (schema and argument_errors(schema, args))
            is_misfit = not is_fit and _is_misfit(given, schema)
            if is_misfit and self.schema:
                continue
            cases += 1
            raised = fired(self.policy, bounded, self._call(agent, rules), args, None)
            tier = join(rules.tier()[0], *(one.to for one in raised))
            # A call that does not fit the policy's schema can run, too.
            if is_misfit:
                tier, is_fit = join(tier, Tier.ESCALATE), True
            needs = [one.needs for one in raised if one.needs]
            # A higher tier never needs fewer people.
            if not self._is_less(tier, rules.requirement(tier, needs)):
                continue
            if not is_fit:
                unproven["the schema of the arguments"] = None
                continue
            found = evaluate(
                self.policy,
                agent=agent,
                tool=self.tool,
                args=args,
                facts=self.facts(agent, args),
                requested_tier=Tier.AUTO if rules.overridable else None,
            )
            if self._is_less(found.tier, found.requirement):
                people = _people(found.tier, found.requirement)
                return Proof(agent=agent, args=args, tier=found.tier, people=people)
            reasons = [one.when for one in others] or [_WINDOWS]
            unproven |= dict.fromkeys(reasons)
        return Proof(cases=cases, unproven=tuple(unproven))

    def _call(self, agent: str, rules: EffectiveRules) -> JsonObject:
        return {"agent": agent, "tool": self.tool, "effect": rules.effect}

    def _is_claimed(self, args: JsonObject) -> bool:
        return ask(self.where, scope(args, {}, holidays=self.policy.holidays)).holds

    def _is_less(self, tier: Tier, requirement: Requirement) -> bool:
        is_lower = tier.rank < self.tier.rank
        return is_lower or _people(tier, requirement) < self.people


def _people(tier: Tier, requirement: Requirement) -> int:
    if tier is Tier.DENY:
        return _EVERYBODY
    return tally(requirement, (), "").need if tier.needs_people else 0


def _is_bounded(source: str) -> bool:
    try:
        # A longer path is a method, or a value inside an argument.
        return all(len(path) == 1 for path, _ in _comparisons(tokens(source)))
    except _Unbounded:
        return False


def _comparisons(row: Row) -> Iterator[tuple[tuple[str, ...], list[JsonValue]]]:
    """Yield the arguments that a condition reads, with the constants compared to them.

    Raises:
        _Unbounded: it does anything else.
    """
    at = 0
    while at < len(row):
        text = row[at].text
        if text in _JOINS or text in {"true", "false"}:
            at += 1
        elif text == "has" and row[at + 1 : at + 2] == ((Kind.SYMBOL, "("),):
            path, _, at = _operand(row, at + 2)
            yield path, []
        else:
            path, constants, at = _operand(row, at)
            sign = row[at].text if at < len(row) else ""
            if sign in {"==", "!=", "in", *_ORDERS}:
                # A list has other lists next to it that no value represents.
                is_list = row[at + 1].text == "["
                other, more, at = _operand(row, at + 1)
                is_text = sign in _ORDERS and any(
                    not isinstance(it, float) for it in constants + more
                )
                if sign == "in":
                    is_usable = bool(path) and is_list
                else:
                    is_usable = bool(path) is not bool(other) and not is_list
                if is_text or not is_usable:
                    raise _Unbounded
                path, constants = path or other, constants + more
            if not path:
                raise _Unbounded
            yield path, constants


def _operand(row: Row, at: int) -> tuple[tuple[str, ...], list[JsonValue], int]:
    """Return the path or the constants at a position, and the position after them."""
    texts = [one.text for one in row[at:]] or [""]
    if texts[0] == "args":
        end = 1
        while texts[end : end + 1] == ["."]:
            end += 2
        if end == 1:
            raise _Unbounded
        return tuple(texts[2:end:2]), [], at + end
    if texts[0] == "[" and row[at - 1].text == "in":
        end = texts.index("]")
        parts = [row[at + 1 + n : at + 2 + n] for n in range(0, end - 1, 2)]
        if any(one != "," for one in texts[2:end:2]):
            raise _Unbounded
        return (), [_constant(one) for one in parts], at + end + 1
    length = 2 if texts[0] == "-" else 1
    return (), [_constant(row[at : at + length])], at + length


def _constant(row: Row) -> JsonValue:
    *sign, token = row
    if token.kind is Kind.NUMBER:
        try:
            value = float("".join(one.text for one in row))
        except ValueError:
            raise _Unbounded from None
        if abs(value) < _LARGEST:
            return value
    elif not sign and token.text in _NAMED:
        return _NAMED[token.text]
    elif not sign and (text := literal(token)) is not None:
        return text
    raise _Unbounded


def _values(sources: Sequence[str], schema: JsonObject) -> dict[str, list[object]]:
    """Return the representatives of each argument that the conditions read."""
    constants: dict[str, list[JsonValue]] = {}
    for source in sources:
        for (name,), more in _comparisons(tokens(source)):
            constants.setdefault(name, []).extend(more)
    return {
        name: _representatives([*found, *_limits(_schema_of(schema, name))])
        for name, found in constants.items()
    }


def _limits(own: JsonObject) -> list[JsonValue]:
    """Return the constants of an argument's schema."""
    return [*(own[one] for one in _LIMITS if one in own), *_listed(own.get("enum"))]


def _representatives(constants: Sequence[JsonValue]) -> list[object]:
    numbers = sorted({float(it) for it in constants if _is_number(it)})
    found: list[object] = [_ABSENT, None, False, True, [], {}]
    texts = {it for it in constants if isinstance(it, str)}
    found += [*sorted(texts), "-".join(["other", *sorted(texts)])]
    found += [int(it) if it.is_integer() else it for it in numbers]
    for low, high in pairwise([-math.inf, *numbers, math.inf]):
        found += _between(low, high)
    return found


def _between(low: float, high: float) -> Iterator[int | float]:
    """Yield an integer and a fraction between two numbers, if there are any."""
    start = math.floor(low) if low > -math.inf else math.floor(min(high, 1)) - 2
    if start + 1 < high:
        yield start + 1
    end = min(high, start + 2)
    middle = max(low, start) / 2 + end / 2
    for one in (middle, max(low, start) / 2 + middle / 2):
        if low < one < high and not one.is_integer():
            yield one
            return


def _schema_of(schema: JsonObject, name: str) -> JsonObject:
    properties = schema.get("properties")
    own = properties.get(name) if isinstance(properties, dict) else None
    return own if isinstance(own, dict) else {}


def _required(schema: JsonObject) -> list[str]:
    required = schema.get("required")
    return cast("list[str]", required) if isinstance(required, list) else []


def _filled(given: dict[str, object], schema: JsonObject) -> JsonObject:
    """Return the arguments with an example of each other required one."""
    args = {name: value for name, value in given.items() if value is not _ABSENT}
    for name in _required(schema):
        if name not in given:
            args[name] = _example(_schema_of(schema, name))
    return cast("JsonObject", args)


def _example(schema: JsonObject) -> JsonValue:
    listed = [*_listed(schema.get("examples")), *_listed(schema.get("enum"))]
    named = [schema[one] for one in ("const", "default", "minimum") if one in schema]
    if found := [*named, *listed]:
        return found[0]
    kinds = schema.get("type")
    kind = str(kinds[0] if isinstance(kinds, list) and kinds else kinds)
    if kind == "object":
        return _filled({}, schema)
    return _BY_TYPE.get(kind, "")


def _listed(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


def _is_misfit(given: dict[str, object], schema: JsonObject) -> bool:
    """Return True if no value of the ranges that these values represent fits."""
    for name, value in given.items():
        own = _schema_of(schema, name)
        if value is _ABSENT:
            if name in _required(schema):
                return True
        elif _is_exact(own):
            alone: JsonObject = {"type": "object", "properties": {name: own}}
            if argument_errors(alone, {name: cast("JsonValue", value)}):
                return True
    return False


def _is_exact(own: JsonObject) -> bool:
    """Return True if the representatives have a value of each range of a schema."""
    names = {one for one in own if not one.startswith("x-")}
    is_flat = not any(isinstance(one, list | dict) for one in _limits(own))
    return names <= _EXACT and is_flat and all(map(_is_small, _limits(own)))


def _is_small(value: JsonValue) -> bool:
    return not isinstance(value, int | float) or abs(value) < _LARGEST


def _is_number(value: JsonValue) -> TypeGuard[int | float]:
    is_plain = isinstance(value, int | float) and not isinstance(value, bool)
    return is_plain and _is_small(value)

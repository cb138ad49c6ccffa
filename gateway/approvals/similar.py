"""Bounds of a standing approval: the calls it covers, and its uses.

A standing approval is a separate approval. Its one item is no call: the arguments are
these bounds. People decide it like any call, so the bounds they vote for are hashed and
stored like a call, and cannot change later.

Every argument has to equal that of the reviewed call, except those that the policy lets
differ. An argument that a tool gets later is thus never free by accident.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation

from pydantic import Field, JsonValue

from keyturn.gateway.errors import BadJson
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import Person, Record
from keyturn.gateway.protocol.strict_json import MAX_INTEGER, JsonObject

ALLOW_SIMILAR = "allow_similar"
"""Tool name in the item of a standing approval."""

STANDING_AGENT = "standing approvals"
"""Its agent name: no agent waits for it or is resumed."""

MICRO = 1_000_000
MAX_MICRO = MAX_INTEGER
"""The largest amount in millionths: 2^53-1, so that sums stay exact in the store."""

MOST_USES = 200
"""Maximum number of uses of one standing approval; its record contains each."""

_DECIMAL = re.compile(r"(?:0|[1-9][0-9]{0,15})(?:\.[0-9]{1,6})?", re.ASCII)


class Bounds(Record):
    """Limits of a standing approval.

    Attributes:
        agent: of the covered calls.
        tool: of the covered calls.
        equal: all other arguments of a call, exactly.
        may_differ: paths of the arguments that may have any value, or be missing.
        amount: path of the argument that is added up; "" for none.
        each_micro: maximum amount of one call, in millionths.
        total_micro: maximum amount of all calls.
        uses: maximum number of calls.
        until_ms: end of the coverage, by the store's clock.
        source: the item that it was proposed from.
    """

    agent: str
    tool: str
    equal: JsonObject
    may_differ: tuple[str, ...] = ()
    amount: str = ""
    each_micro: int = Field(default=0, ge=0, le=MAX_MICRO)
    total_micro: int = Field(default=0, ge=0, le=MAX_MICRO)
    uses: int = Field(ge=1, le=MOST_USES)
    until_ms: int = Field(ge=0)
    source: str

    @property
    def free(self) -> tuple[str, ...]:
        """Return the paths of the arguments that need not be equal."""
        return (*self.may_differ, *((self.amount,) if self.amount else ()))

    def amount_of(self, args: JsonObject) -> int | None:
        """Return the amount that a call with these arguments uses, in millionths.

        0 if nothing is added up; None for a call outside the bounds.
        """
        if not self.has_equals(args):
            return None
        if not self.amount:
            return 0
        found = exact_micro(value_at(args, self.amount))
        return found if found is not None and found <= self.each_micro else None

    def has_equals(self, args: JsonObject) -> bool:
        """Return True if all arguments match that must be equal; ignores the amount."""
        try:
            # Compare canonical bytes: 1 is not True, and a missing argument is not
            # null.
            kept = digest.canonical(without(args, self.free))
            return kept == digest.canonical(self.equal)
        except BadJson:
            return False


class Use(Record):
    """One call that a standing approval covered, and its amount."""

    item: str
    amount_micro: int = 0
    at_ms: int = 0


class Cover(Record):
    """The standing approval that covered a call, its givers, and the rest of it.

    ``total_left_micro`` is 0 if nothing is added up.
    """

    approval: str
    given_by: tuple[Person, ...]
    uses_left: int
    total_left_micro: int = 0


def exact_micro(value: JsonValue | None) -> int | None:
    """Return an amount in millionths; None if it is no plain amount.

    The amount is never rounded: 50.0000004 is not 50. A text must be ASCII decimal
    digits without a leading 0, because a tool may parse any other spelling differently.
    """
    if isinstance(value, str):
        text = value if _DECIMAL.fullmatch(value) else ""
    else:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        # Use the shortest text of a float: Decimal(0.1) has 55 digits.
        text = str(value) if is_number else ""
    try:
        scaled = Decimal(text) * MICRO
    except InvalidOperation:
        return None
    if not scaled.is_finite() or not 0 <= scaled <= MAX_MICRO:
        return None
    return int(scaled) if scaled == scaled.to_integral_value() else None


def micro_text(micro: int) -> str:
    """Return an amount in millionths as text: 12.50, 500."""
    whole, part = divmod(micro, MICRO)
    digits = f"{part:06d}".rstrip("0")
    return f"{whole}.{digits.ljust(2, '0')}" if digits else str(whole)


def value_at(args: JsonObject, path: str) -> JsonValue | None:
    """Return the value at a path such as ``args.card.number``; None for none."""
    found: JsonValue = args
    for name in _names(path):
        if not isinstance(found, dict) or name not in found:
            return None
        found = found[name]
    return found


def without(args: JsonObject, paths: Iterable[str]) -> JsonObject:
    """Return arguments without those at these paths; objects around them stay."""
    left = args
    for path in paths:
        left = _dropped(left, _names(path))
    return left


def _dropped(args: JsonObject, names: tuple[str, ...]) -> JsonObject:
    name, *rest = names
    if not rest:
        return {key: value for key, value in args.items() if key != name}
    inner = args.get(name)
    # A path through a value that is no object removes nothing: the value must be equal.
    if not isinstance(inner, dict):
        return args
    return {**args, name: _dropped(inner, tuple(rest))}


def _names(path: str) -> tuple[str, ...]:
    return tuple(path.split(".")[1:])

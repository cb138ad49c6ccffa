"""Totals over many calls of one tool, and which of them lie far from the others.

They are exact, they hold what a card may show and nothing else, and they name the calls
that they leave out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from statistics import median

from pydantic import JsonValue

from twokey.gateway.policy.expressions import value_at
from twokey.gateway.policy.formats import EXACT, is_too_long, number_in, shown_number
from twokey.gateway.protocol.strict_json import JsonObject

_FEWEST = 5
"""Among fewer numbers none is unusual."""
_SPREADS = 3
_TIMES = 2


@dataclass(frozen=True, slots=True)
class Call:
    """What is added up of a call: its arguments, without what is hidden."""

    index: int
    args: JsonObject
    redact: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Total:
    """The numbers of one argument, by the indexes of the calls.

    Attributes:
        name: of the argument.
        format: in which a number is shown.
        numbers: of the calls that have one.
        hidden: calls whose number the policy hides.
        without: calls that have no number there.
        too_long: calls whose number has more digits than are added up.
    """

    name: str
    format: str
    numbers: Mapping[int, Decimal]
    hidden: tuple[int, ...]
    without: tuple[int, ...]
    too_long: tuple[int, ...] = ()

    @property
    def left_out(self) -> int:
        """Return how many calls are not in it."""
        return len(self.hidden) + len(self.without) + len(self.too_long)

    def text(self, indexes: Iterable[int] | None = None) -> str:
        """Return the total of these calls, or of all, as a person reads it."""
        chosen = self.numbers if indexes is None else {*indexes} & {*self.numbers}
        with localcontext(EXACT):
            found = sum((self.numbers[index] for index in chosen), Decimal(0))
        return shown_number(found, self.format)

    @property
    def usual(self) -> str:
        """Return the median as a person reads it."""
        return shown_number(_median([*self.numbers.values()]), self.format)

    @property
    def far(self) -> tuple[int, ...]:
        """Return the calls whose number lies far from the others.

        It is farther from the median than three times the median distance from it, and
        at least twice the median or at most half of it: in a row of nearly equal
        numbers the first rule alone would find most of them.
        """
        numbers = self.numbers
        if len(numbers) < _FEWEST:
            return ()
        middle = _median([*numbers.values()])
        with localcontext(EXACT):
            away = {index: abs(one - middle) for index, one in numbers.items()}
            spread = _SPREADS * _median([*away.values()])
            return tuple(
                index
                for index, one in numbers.items()
                if away[index] > spread
                and (
                    one * middle <= 0
                    or abs(one) >= _TIMES * abs(middle)
                    or _TIMES * abs(one) <= abs(middle)
                )
            )


def total_of(named: str, calls: Sequence[Call]) -> Total:
    """Add up one argument, such as ``args.amount|eur``."""
    path, _, form = named.partition("|")
    tokens = path.split(".")[1:]
    numbers: dict[int, Decimal] = {}
    hidden: list[int] = []
    without: list[int] = []
    too_long: list[int] = []
    for call in calls:
        value = _value(call.args, tokens)
        number = number_in(value, form or "number")
        # First, and whatever the value is: its kind would tell of it as well.
        if any(_hides(one, tokens) for one in call.redact):
            hidden.append(call.index)
        elif is_too_long(value):
            too_long.append(call.index)
        elif number is None:
            without.append(call.index)
        else:
            numbers[call.index] = number
    return Total(
        name=".".join(tokens),
        format=form or "number",
        numbers=numbers,
        hidden=tuple(hidden),
        without=tuple(without),
        too_long=tuple(too_long),
    )


def hides(redact: Iterable[str], named: str) -> str:
    """Return which of these paths hides what a total adds up; "" for none."""
    tokens = named.partition("|")[0].split(".")[1:]
    return next((one for one in redact if _hides(one, tokens)), "")


def _hides(redact: str, tokens: Sequence[str]) -> bool:
    hidden = redact.split(".")[1:]
    at = 0
    for name in hidden:
        # A name goes through the elements of lists, as it does on cards.
        while tokens[at : at + 1] and tokens[at].isdecimal() and not _is_place(name):
            at += 1
        if at == len(tokens) or name not in {"*", tokens[at]}:
            return False
        at += 1
    return True


def _is_place(name: str) -> bool:
    return name == "*" or name.isdecimal()


def _value(args: JsonObject, tokens: Sequence[str]) -> JsonValue:
    try:
        return value_at(args, tuple(tokens))
    except LookupError:
        return None


def _median(numbers: Sequence[Decimal]) -> Decimal:
    with localcontext(EXACT):
        return median(numbers)

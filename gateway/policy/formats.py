"""Format money, numbers and dates in the description of a call, without rounding.

Reviewers decide by the description, so it must not say less than the arguments do: all
digits stay, and a value that does not fit its format is shown as it is. Texts of the
product are English, so are these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Context, Decimal, Inexact, localcontext
from statistics import median

from babel.dates import format_date
from babel.numbers import (
    format_currency,
    format_decimal,
    get_currency_precision,
    list_currencies,
)
from pydantic import JsonValue

from keyturn.gateway.policy.expressions import value_at
from keyturn.gateway.protocol.strict_json import JsonObject

KNOWN = "a currency (eur; eur_minor for cents), number or date"
KNOWN_NUMBERS = "a currency (eur; eur_minor for cents) or number"
_LOCALE = "en"
_DATES = "en_GB"
_MINOR = "_minor"
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?", re.ASCII)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
MOST_DIGITS = 50
"""How many digits a number has at most; a longer one is shown as it is."""

EXACT = Context(prec=200, traps=[Inexact])
"""For arithmetic with such numbers: Python rounds at 28 digits, a sum needs more.

One with fifty digits before the point and one whose fifty digits begin after fifty
zeros behind it have 150 together.
"""


def is_known(name: str) -> bool:
    """Return whether a format has this name."""
    code = name.removesuffix(_MINOR)
    is_currency = code.islower() and code.upper() in list_currencies()
    return name in {"number", "date"} or is_currency


def formatted(value: JsonValue, name: str) -> str | None:
    """Return a value in a known format; None where it does not fit.

    Args:
        value: of the arguments. Amounts and numbers may be decimal strings.
        name: ``number``; ``date`` for an ISO 8601 date or time; a currency's ISO 4217
            code in lower case; with ``_minor`` an amount in its smallest unit.
    """
    if name == "date":
        return _date(value) if isinstance(value, str) else None
    number = number_in(value, name)
    return None if number is None else shown_number(number, name)


def number_in(value: JsonValue, name: str) -> Decimal | None:
    """Return the number that a value is in a format; an amount in its main unit.

    Returns None where the value is no number that `shown_number` shows whole.
    """
    number = _decimal(value)
    if number is None or not name.endswith(_MINOR):
        return number
    return number.scaleb(-get_currency_precision(_currency(name)), EXACT)


def is_too_long(value: JsonValue) -> bool:
    """Return whether a value is a number, and has more digits than are added up."""
    return _number(value) is not None and _decimal(value) is None


def shown_number(number: Decimal, name: str) -> str:
    """Return a number, or an amount in its main unit, with all of its digits."""
    with localcontext(EXACT):
        if name == "number":
            return format_decimal(number, locale=_LOCALE, decimal_quantization=False)
        return format_currency(
            number, _currency(name), locale=_LOCALE, decimal_quantization=False
        )


def _currency(name: str) -> str:
    return name.removesuffix(_MINOR).upper()


def _decimal(value: JsonValue) -> Decimal | None:
    """Return the number that a value is; None for none, and for one too long."""
    number = _number(value)
    if number is None:
        return None
    is_short = len(number.as_tuple().digits) <= MOST_DIGITS
    return number if is_short and abs(number.adjusted()) < MOST_DIGITS else None


def _number(value: JsonValue) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    # By its text: the nearest decimal of a double would show digits nobody wrote.
    text = str(value)
    if isinstance(value, str) and _NUMBER.fullmatch(text) is None:
        return None
    number = Decimal(text)
    return number if number.is_finite() else None


def _date(text: str) -> str | None:
    if _DATE.match(text) is None:
        return None  # 20261103 is a date too, and more often an order
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    day = format_date(at, "medium", locale=_DATES)
    if _DATE.fullmatch(text):
        return day
    precision = "auto" if at.second or at.microsecond else "minutes"
    clock = at.time().isoformat(precision)
    return f"{day}, {clock} {at.tzname() or ''}".rstrip()


# Totals over many calls of one tool, and which of them lie far from the others.
#
# They are exact, they hold what a card may show and nothing else, and they name the
# calls that they leave out.

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

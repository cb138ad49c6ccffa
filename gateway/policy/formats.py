"""Format the money, numbers and dates of calls, and total numbers, without rounding.

Reviewers decide by the description, so it must not show less than the arguments: all
digits stay, and a value that does not fit its format is shown unchanged. Formats are
English, like all texts of the product.
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

from keyturn.gateway.approvals.evidence import HIDDEN, redacted
from keyturn.gateway.policy.expressions import shown_at
from keyturn.gateway.protocol.strict_json import JsonObject

KNOWN = "a currency (eur; eur_minor for cents), number or date"
KNOWN_NUMBERS = "a currency (eur; eur_minor for cents) or number"
_LOCALE = "en"
_DATES = "en_GB"
_MINOR = "_minor"
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?", re.ASCII)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
MOST_DIGITS = 50
"""Most digits of a number; a longer one is shown unchanged, and not added up."""

EXACT = Context(prec=200, traps=[Inexact])
"""For arithmetic with such numbers. Python rounds at 28 digits; a sum needs up to 150.

One number may have fifty digits before the point, and another fifty digits after fifty
zeros behind the point.
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


def is_usual_spelling(text: str, name: str) -> bool:
    """Return whether a text is the only one, of those that look alike when formatted.

    That is a whole ISO 8601 date, or the digits of the formatted number.
    """
    if name == "date":
        return _DATE.fullmatch(text) is not None
    shown = formatted(text, name) or ""
    return text == "".join(sign for sign in shown if sign in "-.0123456789")


def number_in(value: JsonValue, name: str) -> Decimal | None:
    """Return a value as a number in a format; an amount in its main unit.

    Returns None for values without an exact number that `shown_number` shows in full.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    # From its text: the exact decimal of a double has digits that are not in the call.
    text = str(value)
    if isinstance(value, str) and _NUMBER.fullmatch(text) is None:
        return None
    number = Decimal(text)
    if not number.is_finite():
        return None
    if max(len(number.as_tuple().digits), abs(number.adjusted()) + 1) > MOST_DIGITS:
        return None
    if not name.endswith(_MINOR):
        return number
    return number.scaleb(-get_currency_precision(_currency(name)), EXACT)


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


def _date(text: str) -> str | None:
    if _DATE.match(text) is None:
        return None  # 20261103 is a valid date, but more often an order number
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


# Totals over many calls of one tool.
#
# Totals are exact. They contain only numbers that a card may show, and list the calls
# without one.


@dataclass(frozen=True, slots=True)
class Call:
    """A call to add up: its arguments, and the paths that cards hide."""

    index: int
    args: JsonObject
    redact: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Total:
    """The numbers of one argument, by the indexes of the calls.

    Attributes:
        name: name of the argument.
        format: format of the numbers.
        numbers: number of each call that has one.
        hidden: calls whose number the policy hides.
        without: calls without a number that can be added up.
    """

    name: str
    format: str
    numbers: Mapping[int, Decimal]
    hidden: tuple[int, ...]
    without: tuple[int, ...]

    def text(self, indexes: Iterable[int] | None = None) -> str:
        """Return the total of these calls, or of all, formatted for people."""
        chosen = self.numbers if indexes is None else {*indexes} & {*self.numbers}
        with localcontext(EXACT):
            found = sum((self.numbers[index] for index in chosen), Decimal(0))
        return shown_number(found, self.format)

    def usual(self, indexes: Iterable[int] | None = None) -> str:
        """Return the median of these calls, or of all, formatted for people."""
        chosen = self.numbers if indexes is None else indexes
        with localcontext(EXACT):
            middle = median(self.numbers[index] for index in chosen)
        return shown_number(middle, self.format)


def total_of(named: str, calls: Sequence[Call]) -> Total:
    """Add up one argument, such as ``args.amount|eur``."""
    path, _, form = named.partition("|")
    names = tuple(path.split(".")[1:])
    numbers: dict[int, Decimal] = {}
    hidden: list[int] = []
    without: list[int] = []
    for call in calls:
        try:
            value = shown_at(redacted(call.args, call.redact), names)
        except LookupError:
            value = None
        number = number_in(value, form or "number")
        if value == HIDDEN:
            hidden.append(call.index)
        elif number is None:
            without.append(call.index)
        else:
            numbers[call.index] = number
    return Total(
        name=".".join(names),
        format=form or "number",
        numbers=numbers,
        hidden=tuple(hidden),
        without=tuple(without),
    )

"""Format money, numbers and dates in the description of a call, without rounding.

Reviewers decide by the description, so it must not say less than the arguments do: all
digits stay, and a value that does not fit its format is shown as it is. Texts of the
product are English, so are these.
"""

from __future__ import annotations

import re
from datetime import datetime
from decimal import Context, Decimal, Inexact, localcontext

from babel.dates import format_date
from babel.numbers import (
    format_currency,
    format_decimal,
    get_currency_precision,
    list_currencies,
)
from pydantic import JsonValue

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

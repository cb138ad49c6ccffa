"""Validate strings that have a format: dates, numbers, addresses, ids."""

import re
from datetime import date
from decimal import Decimal

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_USER = re.compile(r"[UW][A-Z0-9]+")
_USERGROUP = re.compile(r"S[A-Z0-9]+")
_CHANNEL = re.compile(r"[CGD][A-Z0-9]+")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s]+")
_WEB_URL = re.compile(r"https?://[^\s]+", re.IGNORECASE)
_COLOR = re.compile(r"#?[0-9A-Fa-f]{6}")


def day(text: str) -> str | None:
    """Accept a real calendar day as YYYY-MM-DD."""
    if _DATE.fullmatch(text):
        try:
            date.fromisoformat(text)
        except ValueError:
            return "a day of the calendar"
        return None
    return "a date as YYYY-MM-DD"


def clock(text: str) -> str | None:
    """Accept a time of day as HH:mm, 00:00 to 23:59."""
    return None if _TIME.fullmatch(text) else "a time as HH:mm"


def number(text: str) -> str | None:
    """Accept a decimal number in ASCII digits, without exponent."""
    return None if _NUMBER.fullmatch(text) else "a decimal number in a string"


def url(text: str) -> str | None:
    """Accept an address with a scheme and no white space."""
    return None if _URL.fullmatch(text) else "a URL with its scheme"


def web_url(text: str) -> str | None:
    """Accept an address that Slack's servers can fetch."""
    return None if _WEB_URL.fullmatch(text) else "an http or https URL"


def color(text: str) -> str | None:
    """Accept a colour as #rrggbb."""
    return None if _COLOR.fullmatch(text) else "a colour as #rrggbb"


def user_id(text: str) -> str | None:
    """Accept the id of a person."""
    return None if _USER.fullmatch(text) else "a user id (U… or W…)"


def usergroup_id(text: str) -> str | None:
    """Accept the id of a user group."""
    return None if _USERGROUP.fullmatch(text) else "a user group id (S…)"


def channel_id(text: str) -> str | None:
    """Accept the id of a channel or a direct conversation."""
    return None if _CHANNEL.fullmatch(text) else "a channel id (C…, G… or D…)"


def to_decimal(text: str) -> Decimal:
    """Parse a text that `number` accepts, without a float in between."""
    return Decimal(text)

"""Decode the form in which Slack sends an interaction by HTTP: ``payload=<JSON>``.

``urllib.parse.parse_qsl`` does it in Python, which takes longer than all else that
happens to a click before its listener runs. ``binascii.a2b_qp`` decodes escapes of two
hexadecimal digits in C, those of quoted-printable: ``=41`` where a form has ``%41``.
What the two read differently is refused; Slack sends nothing of it.
"""

from __future__ import annotations

import binascii
import json

from pydantic_core import from_json

_FIELD = "payload="
_AS_QUOTED_PRINTABLE = bytes.maketrans(b"+%", b" =")


class BadForm(ValueError):
    """A body that begins as an interaction does and cannot be read as one."""


def interaction_of(body: str) -> object:
    """Return the JSON of an interaction; None when the body is no such form.

    Raises:
        BadForm: an escape is malformed, there is more than one payload, or it is no
            JSON.
    """
    document = document_of(body)
    return None if document is None else interaction_in(document)


def document_of(body: str) -> bytes | None:
    """Return the text of an interaction's JSON; None when the body is no such form.

    Raises:
        BadForm: an escape is malformed, or there is more than one payload.
    """
    # At the start only: what people typed may stand further on in a body.
    if not body.startswith(_FIELD):
        return None
    value, separator, others = body.removeprefix(_FIELD).partition("&")
    if separator and any(other.startswith(_FIELD) for other in others.split("&")):
        raise BadForm("payload is there twice")
    return _decoded(value)


def interaction_in(document: bytes) -> object:
    """Return the JSON of an interaction.

    Raises:
        BadForm: it is no JSON.
    """
    try:
        return _read(document)
    # Also numbers of thousands of digits, and arrays in arrays by the thousand.
    except (ValueError, RecursionError) as error:
        # Not the error's own text: it holds the payload.
        raise BadForm(f"the payload is no JSON ({type(error).__name__})") from None


def _decoded(value: str) -> bytes:
    # A line break after `=` is one that quoted-printable drops.
    if not value.isascii() or "\n" in value or "\r" in value:
        raise BadForm("not all of it is encoded")
    # Before `%` becomes `=`, or an equals sign in the value would begin an escape.
    escaped = value.encode("ascii").replace(b"=", b"%3D")
    quoted = escaped.translate(_AS_QUOTED_PRINTABLE)
    decoded = binascii.a2b_qp(quoted)
    # A whole escape is two characters longer than its byte; the decoder copies what
    # is none.
    if len(decoded) != len(quoted) - 2 * quoted.count(b"="):
        raise BadForm("an escape is malformed")
    return decoded


def _read(document: bytes) -> object:
    try:
        return from_json(document)
    except ValueError:
        # It is faster and refuses more, such as half of a surrogate pair in what a
        # person typed.
        return json.loads(document.decode("utf-8"))

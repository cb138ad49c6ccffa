"""Texts that are signed and stay readable (c2sp.org/signed-note)."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence

from keyturn.gateway.errors import NotVerified
from keyturn.gateway.protocol.public_keys import PublicKey
from keyturn.gateway.trust.signing_key import SigningKey

MAX_NOTE_BYTES = 64 * 1024
MAX_SIGNATURES = 16

_ID_BYTES = 4
_DASH = "\u2014"
_LINE = re.compile(rf"{_DASH} (\S+) (\S+)")


def signed_note(text: str, *keys: SigningKey) -> str:
    """Return a note: the text, an empty line, and a line for each signature.

    Raises:
        ValueError: when the text does not end with a newline, or holds another control
            character.
    """
    if not text.endswith("\n") or not _is_plain(text):
        raise ValueError("A note ends with a newline and has no control characters.")
    lines = (_line(key, text) for key in keys)
    return f"{text}\n{''.join(lines)}"


def verified_note(note: str, keys: Sequence[PublicKey]) -> str:
    """Return the text of a note that one of the keys has signed.

    Signatures of unknown keys are left alone; a wrong one of a known key refuses the
    whole note.

    Raises:
        NotVerified: ``malformed`` or ``signature_wrong``.
    """
    if len(note) > MAX_NOTE_BYTES or not _is_plain(note):
        raise NotVerified("malformed", "it is not a signed note")
    # By the last empty line: the text may have some of its own.
    text, gap, signatures = note.rpartition("\n\n")
    if not gap or not signatures.endswith("\n"):
        raise NotVerified("malformed", "it has no signatures")
    text += "\n"
    # Only by this newline: `splitlines` also splits at others.
    lines = signatures[:-1].split("\n")
    if len(lines) > MAX_SIGNATURES:
        raise NotVerified("malformed", f"it has more than {MAX_SIGNATURES} signatures")
    has_signed = False
    for name, id_, signature in map(_parsed, lines):
        for key in keys:
            if (key.name, key.id) != (name, id_):
                continue
            if not key.has_signed(text.encode(), signature):
                raise NotVerified("signature_wrong", f"that of {key.label} is wrong")
            has_signed = True
    if not has_signed:
        raise NotVerified("signature_wrong", "no trusted key has signed it")
    return text


def _line(key: SigningKey, text: str) -> str:
    signature = key.public.id + key.sign(text.encode())
    return f"{_DASH} {key.public.name} {base64.b64encode(signature).decode()}\n"


def _parsed(line: str) -> tuple[str, bytes, bytes]:
    """Return the name, the id and the signature of a line."""
    found = _LINE.fullmatch(line)
    if found is None:
        raise NotVerified("malformed", "a line below the text is no signature")
    name, encoded = found.groups()
    try:
        raw = base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise NotVerified("malformed", "a signature is not base64") from error
    if len(raw) <= _ID_BYTES:
        raise NotVerified("malformed", "a signature is too short")
    return name, raw[:_ID_BYTES], raw[_ID_BYTES:]


def _is_plain(text: str) -> bool:
    return all(letter >= " " or letter == "\n" for letter in text)

"""Signed heads of a log and proofs of its entries, readable without it.

A checkpoint (c2sp.org/tlog-checkpoint) contains the number of entries of a log and the
root of its tree. It is a signed text that people can read (c2sp.org/signed-note). A
proof (c2sp.org/tlog-proof) proves one entry in the tree of a checkpoint.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass

from keyturn.gateway.errors import NotVerified
from keyturn.gateway.protocol.public_keys import PublicKey
from keyturn.gateway.trust.key_folder import SigningKey
from keyturn.gateway.trust.merkle_tree import EMPTY_ROOT

_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}", re.ASCII)
_HEAD = re.compile(rf"([^\n]+)\n({_NUMBER.pattern})\n([^\n]+)\n", re.ASCII)
_PROOF = "c2sp.org/tlog-proof@v1"


MAX_NOTE_BYTES = 64 * 1024
MAX_SIGNATURES = 16

_ID_BYTES = 4
_DASH = "\u2014"
_LINE = re.compile(rf"{_DASH} (\S+) (\S+)")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The head of a log: its name, its number of entries and its root."""

    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> str:
        """Return the three lines that are signed."""
        return f"{self.origin}\n{self.size}\n{_encoded(self.root)}\n"

    def signed(self, *keys: SigningKey) -> str:
        """Return the signed note."""
        return signed_note(self.text, *keys)


def verified_checkpoint(
    note: str, *, origin: str, keys: Sequence[PublicKey]
) -> Checkpoint:
    """Return the checkpoint of a note that the log's own key has signed.

    Raises:
        NotVerified: ``malformed``, ``signature_wrong`` or ``origin_wrong``.
    """
    # The format allows more lines, but auditors would not compare them.
    found = _HEAD.fullmatch(verified_note(note, keys))
    if found is None:
        raise NotVerified("malformed", "it is not a checkpoint of three lines")
    name, size, root = found.groups()
    if name != origin:
        raise NotVerified("origin_wrong", f"it is of the log {name[:200]!r}")
    return Checkpoint(name, int(size), _decoded(root))


def proof_text(index: int, proof: Sequence[bytes], note: str) -> str:
    """Return the proof of an entry at its index in the tree of a signed checkpoint."""
    hashes = "".join(f"{_encoded(one)}\n" for one in proof)
    return f"{_PROOF}\nindex {index}\n{hashes}\n{note}"


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _decoded(text: str) -> bytes:
    try:
        raw = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise NotVerified("malformed", "a hash is not base64") from error
    if len(raw) != len(EMPTY_ROOT):
        raise NotVerified("malformed", "a hash is not 32 bytes")
    return raw


def signed_note(text: str, *keys: SigningKey) -> str:
    """Return a note: the text, an empty line, and a line for each signature.

    Raises:
        ValueError: when the text does not end with a newline, or contains another
            control character.
    """
    if not text.endswith("\n") or not _is_plain(text):
        raise ValueError("A note ends with a newline and has no control characters.")
    lines = (_line(key, text) for key in keys)
    return f"{text}\n{''.join(lines)}"


def verified_note(note: str, keys: Sequence[PublicKey]) -> str:
    """Return the text of a note that one of the keys has signed.

    Signatures of unknown keys are ignored; one wrong signature of a known key refuses
    the whole note.

    Raises:
        NotVerified: ``malformed`` or ``signature_wrong``.
    """
    if len(note) > MAX_NOTE_BYTES or not _is_plain(note):
        raise NotVerified("malformed", "it is not a signed note")
    # At the last empty line: the text may contain empty lines.
    text, gap, signatures = note.rpartition("\n\n")
    if not gap or not signatures.endswith("\n"):
        raise NotVerified("malformed", "it has no signatures")
    text += "\n"
    # Only at this newline: `splitlines` also splits at others.
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
        raise NotVerified("malformed", "a line below the text is not a signature")
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

"""The Merkle tree of an append-only log, its signed heads, and proofs of its entries.

The tree is that of RFC 9162 section 2. A leaf is hashed after a byte 0 and a node after
a byte 1, so that a node cannot pass for a leaf. Hashes are 32 bytes of SHA-256.

Heads and proofs are readable without the log. A checkpoint
(c2sp.org/tlog-checkpoint) contains the number of entries of a log and the root of its
tree. It is a signed text that people can read (c2sp.org/signed-note). A proof
(c2sp.org/tlog-proof) proves one entry in the tree of a checkpoint.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from keyturn.gateway.errors import NotVerified
from keyturn.gateway.protocol.public_keys import PublicKey
from keyturn.gateway.trust.key_folder import SigningKey

EMPTY_ROOT = hashlib.sha256().digest()

_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}", re.ASCII)
_HEAD = re.compile(rf"([^\n]+)\n({_NUMBER.pattern})\n([^\n]+)\n", re.ASCII)
_PROOF = "c2sp.org/tlog-proof@v1"

MAX_NOTE_BYTES = 64 * 1024
MAX_SIGNATURES = 16

_ID_BYTES = 4
_DASH = "\u2014"
_LINE = re.compile(rf"{_DASH} (\S+) (\S+)")


def leaf_hash(entry: bytes) -> bytes:
    """Return the hash of an entry, as a leaf of the tree."""
    return hashlib.sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of two adjacent nodes."""
    return hashlib.sha256(b"\x01" + left + right).digest()


class MerkleTree:
    """A tree of leaf hashes that grows at the end.

    Without proofs it keeps only the hashes that the next leaf and the root need: one
    for each level at most. With them it keeps the hash of every complete subtree, two
    for each leaf, so that a proof takes a logarithmic number of steps.
    """

    def __init__(self, *, has_proofs: bool = False) -> None:
        self.size = 0
        self._has_proofs = has_proofs
        # By level, the hashes of complete subtrees.
        self._levels: list[list[bytes]] = [[]]

    def append(self, leaf: bytes) -> None:
        """Add the hash of a leaf."""
        self.size += 1
        self._levels[0].append(leaf)
        level = 0
        while len(self._levels[level]) % 2 == 0:
            *_, left, right = self._levels[level]
            if not self._has_proofs:
                self._levels[level].clear()
            level += 1
            if level == len(self._levels):
                self._levels.append([])
            self._levels[level].append(node_hash(left, right))

    def root(self) -> bytes:
        """Return the root over all leaves."""
        # A level of odd length ends with a subtree that has no parent yet.
        ends = [level[-1] for level in self._levels if len(level) % 2]
        if not ends:
            return EMPTY_ROOT
        found, *larger = ends
        for left in larger:
            found = node_hash(left, found)
        return found

    def leaf(self, index: int) -> bytes:
        """Return the hash of a leaf, from a tree with proofs."""
        return self._levels[0][index]

    def inclusion_proof(self, index: int) -> list[bytes]:
        """Return the inclusion proof of a leaf (section 2.1.3).

        Raises:
            ValueError: when there is no such leaf, or this tree has no proofs.
        """
        if not self._has_proofs or not 0 <= index < self.size:
            raise ValueError(f"There is no leaf {index} among {self.size}.")
        return self._path(index, 0, self.size)

    def _subtree(self, start: int, end: int) -> bytes:
        """Return the root of a range; `start` is a multiple of its largest subtree."""
        count = end - start
        level = (count - 1).bit_length()
        if count == 1 << level:
            return self._levels[level][start >> level]
        middle = start + _split(count)
        return node_hash(self._subtree(start, middle), self._subtree(middle, end))

    def _path(self, index: int, start: int, end: int) -> list[bytes]:
        if end - start == 1:
            return []
        middle = start + _split(end - start)
        if index < middle:
            return [*self._path(index, start, middle), self._subtree(middle, end)]
        return [*self._path(index, middle, end), self._subtree(start, middle)]


def is_included(
    leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes
) -> bool:
    """Return whether a proof shows this leaf at this index (section 2.1.3.2)."""
    if not 0 <= index < size or len(leaf) != len(EMPTY_ROOT):
        return False
    place, last, found = index, size - 1, leaf
    for part in proof:
        if last == 0:
            return False
        if place % 2 == 1 or place == last:
            found = node_hash(part, found)
            while place % 2 == 0 and place != 0:
                place, last = place >> 1, last >> 1
        else:
            found = node_hash(found, part)
        place, last = place >> 1, last >> 1
    return last == 0 and found == root


def _split(count: int) -> int:
    """Return the largest power of two below a number of leaves."""
    return 1 << ((count - 1).bit_length() - 1)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The head of a log: its name, its number of entries and its root."""

    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> str:
        """Return the three lines that are signed."""
        return f"{self.origin}\n{self.size}\n{encoded(self.root)}\n"

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
    hashes = "".join(f"{encoded(one)}\n" for one in proof)
    return f"{_PROOF}\nindex {index}\n{hashes}\n{note}"


def encoded(value: bytes) -> str:
    """Return a hash as base64, the form in checkpoints and proofs."""
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

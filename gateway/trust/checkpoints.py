"""Signed heads of a log and proofs of its entries, readable without it.

A checkpoint (c2sp.org/tlog-checkpoint) says how many entries a log has and the root of
its tree. A proof (c2sp.org/tlog-proof) shows one entry in the tree of a checkpoint.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass

from keyturn.gateway.errors import NotVerified
from keyturn.gateway.protocol.public_keys import PublicKey
from keyturn.gateway.trust.merkle_tree import EMPTY_ROOT
from keyturn.gateway.trust.signed_note import signed_note, verified_note
from keyturn.gateway.trust.signing_key import SigningKey

_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}", re.ASCII)
_HEAD = re.compile(rf"([^\n]+)\n({_NUMBER.pattern})\n([^\n]+)\n", re.ASCII)
_PROOF = "c2sp.org/tlog-proof@v1"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The head of a log: its name, the number of its entries and the root over them."""

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
    # Lines after the third are not forbidden, and no auditor would compare them.
    found = _HEAD.fullmatch(verified_note(note, keys))
    if found is None:
        raise NotVerified("malformed", "it is not a checkpoint of three lines")
    name, size, root = found.groups()
    if name != origin:
        raise NotVerified("origin_wrong", f"it is of the log {name[:200]!r}")
    return Checkpoint(name, int(size), _decoded(root))


def proof_text(index: int, proof: Sequence[bytes], note: str) -> str:
    """Return the proof of the entry at a place in the tree of a signed checkpoint."""
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

"""Check the text of a proof as another tool that reads C2SP tlog-proof would."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from keyturn.gateway.protocol.public_keys import PublicKey
from keyturn.gateway.trust.audit_proofs import (
    Checkpoint,
    MerkleTree,
    is_included,
    leaf_hash,
    verified_checkpoint,
)


def proven(
    text: str, entry: bytes, *, origin: str, keys: Sequence[PublicKey]
) -> tuple[int, Checkpoint]:
    """Return the place of an entry and the checkpoint of the log that has it."""
    head, _, note = text.partition("\n\n")
    version, index, *hashes = head.split("\n")
    assert version == "c2sp.org/tlog-proof@v1"
    found = int(index.removeprefix("index "))
    checkpoint = verified_checkpoint(note, origin=origin, keys=keys)
    proof = [base64.b64decode(one, validate=True) for one in hashes]
    leaf = leaf_hash(entry)
    assert is_included(leaf, found, checkpoint.size, proof, checkpoint.root)
    return found, checkpoint


def root_of(leaves: Sequence[bytes]) -> bytes:
    """Return the root over leaf hashes."""
    tree = MerkleTree()
    for leaf in leaves:
        tree.append(leaf)
    return tree.root()

"""The Merkle tree of an append-only log (RFC 9162 section 2).

A leaf is hashed after a byte 0 and a node after a byte 1, so that a node cannot pass
for a leaf. Hashes are 32 bytes of SHA-256.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

EMPTY_ROOT = hashlib.sha256().digest()


def leaf_hash(entry: bytes) -> bytes:
    """Return the hash of an entry, as a leaf of the tree."""
    return hashlib.sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of two adjacent nodes."""
    return hashlib.sha256(b"\x01" + left + right).digest()


class MerkleTree:
    """A tree of leaf hashes that grows at the end.

    It keeps the hash of every complete subtree, two for each leaf, so that computing a
    root or a proof takes a logarithmic number of steps.
    """

    def __init__(self) -> None:
        self._levels: list[list[bytes]] = [[]]

    @property
    def size(self) -> int:
        """Return the number of leaves."""
        return len(self._levels[0])

    def append(self, leaf: bytes) -> None:
        """Add the hash of a leaf."""
        self._levels[0].append(leaf)
        level = 0
        while len(self._levels[level]) % 2 == 0:
            *_, left, right = self._levels[level]
            level += 1
            if level == len(self._levels):
                self._levels.append([])
            self._levels[level].append(node_hash(left, right))

    def root(self, size: int | None = None) -> bytes:
        """Return the root of the first ``size`` leaves, or of all.

        Raises:
            ValueError: when there are fewer leaves.
        """
        size = self._bounded(size)
        return self._subtree(0, size) if size else EMPTY_ROOT

    def inclusion_proof(self, index: int, size: int | None = None) -> list[bytes]:
        """Return the inclusion proof of a leaf in the first ``size`` (section 2.1.3).

        Raises:
            ValueError: when there is no such leaf among them.
        """
        size = self._bounded(size)
        if not 0 <= index < size:
            raise ValueError(f"There is no leaf {index} among {size}.")
        return self._path(index, 0, size)

    def _bounded(self, size: int | None) -> int:
        if size is None:
            return self.size
        if not 0 <= size <= self.size:
            raise ValueError(f"There are {self.size} leaves and not {size}.")
        return size

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


class TreeHead:
    """The hashes needed for the next leaf and the root, and no others.

    Their number is logarithmic in the size, so the writer of a log stores only these.
    """

    def __init__(self) -> None:
        self.size = 0
        # Complete subtrees, largest first: one for each 1 in the binary size.
        self._subtrees: list[bytes] = []

    def append(self, leaf: bytes) -> None:
        """Add the hash of a leaf."""
        found, count = leaf, self.size
        while count & 1:
            found, count = node_hash(self._subtrees.pop(), found), count >> 1
        self._subtrees.append(found)
        self.size += 1

    def root(self) -> bytes:
        """Return the root over all leaves."""
        if not self._subtrees:
            return EMPTY_ROOT
        *others, found = self._subtrees
        for left in reversed(others):
            found = node_hash(left, found)
        return found


def root_of(leaves: Sequence[bytes]) -> bytes:
    """Return the root over leaf hashes."""
    tree = MerkleTree()
    for leaf in leaves:
        tree.append(leaf)
    return tree.root()


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

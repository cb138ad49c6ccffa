"""Proofs of an append-only log: its Merkle tree, signed heads, and bundles of entries.

The tree is that of RFC 9162 section 2. A leaf is hashed after a byte 0 and a node after
a byte 1, so that a node cannot pass for a leaf. Hashes are 32 bytes of SHA-256.

Heads and proofs are readable without the log. A checkpoint
(c2sp.org/tlog-checkpoint) contains the number of entries of a log and the root of its
tree. It is a signed text that people can read (c2sp.org/signed-note). A proof
(c2sp.org/tlog-proof) proves one entry in the tree of a checkpoint.

A bundle is JSON Lines. The first line names the log, with a signed checkpoint. Each
entry's line has its leaf, the salted values hidden by the leaf, and the proof that the
checkpoint's tree has it at its index. Then come the stored calls, which entries name by
hash. The last line has the signed SHA-256 of all previous lines, so removed or added
lines are detected even if the rest is valid.

The entries of each approval are folded into its story: views, decisions and runs.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, cast

from pydantic import JsonValue, TypeAdapter, ValidationError

from keyturn.gateway.approvals.audit_leaf import SEAL, Hidden, opened
from keyturn.gateway.approvals.events import CALLS, HANDED_TO, Event, EventName
from keyturn.gateway.errors import BadJson, NotVerified
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.public_keys import PublicKey
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.protocol.strict_json import JsonObject
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


FORMAT: Final = "keyturn/audit-bundle/v1"

_RAN = frozenset(
    {
        EventName.ITEM_EXECUTING,
        EventName.ITEM_EXECUTED,
        EventName.ITEM_FAILED,
        EventName.ITEM_IN_DOUBT,
        EventName.ITEM_OBSERVED,
        EventName.ITEM_REPORTED,
        EventName.CALL_RAN,
        EventName.CALL_FAILED,
    }
)
"""Entries that show that a call ran, or may have run."""

_HANDED = frozenset({EventName.ITEM_HANDING_OVER, EventName.CALL_HANDED_OVER})
"""Entries that show that a call was, or may have been, handed to another program."""

_CALLS = TypeAdapter(list[dict[str, str]])


class LogRange(Record):
    """The log of a bundle, and its part from ``start`` to before ``end``."""

    origin: str
    checkpoint: str
    start: int
    end: int


class Header(Record):
    """The first line of a bundle; ``sample`` is 0 if it has all entries."""

    format: Literal["keyturn/audit-bundle/v1"]
    tenant: str
    since_ms: int
    until_ms: int | None
    sample: int
    log: LogRange


class Entry(Record):
    """The line of an entry; ``after`` is the index before it in a sample."""

    index: int
    leaf: dict[str, JsonValue]
    open: Mapping[str, Hidden]
    proof: tuple[str, ...]
    after: int | None = None


class Call(Record):
    """The line of a stored call."""

    item: str
    action: str


class _End(Record):
    """The last line: a signed note about all others."""

    end: str


_BUNDLE_LINE: TypeAdapter[Header | Entry | Call | _End] = TypeAdapter(
    Header | Entry | Call | _End
)


def calls_of(event: Event) -> list[dict[str, str]]:
    """Return the requested calls of an entry; none if they were erased."""
    try:
        return _CALLS.validate_json(event.data.get(CALLS, "[]"))
    except ValidationError:
        return []


@dataclass
class Story:
    """Audit entries of one approval."""

    approval: str
    events: list[Event] = field(default_factory=list[Event])

    @property
    def has_run(self) -> bool:
        """Return True if a call of it ran, or may have run, under a claim."""
        return any(
            one.name in _RAN and HANDED_TO not in one.data for one in self.events
        )

    @property
    def was_handed_over(self) -> bool:
        """Return True if a program got a decision of it and runs the call by itself."""
        return any(one.name in _HANDED for one in self.events)

    @property
    def row(self) -> JsonObject:
        """Return it as JSON."""
        events = [
            cast("JsonObject", one.model_dump(mode="json", exclude_defaults=True))
            for one in self.events
        ]
        return {
            "approval": self.approval,
            "ran": self.has_run,
            "handed_over": self.was_handed_over,
            "events": [*events],
        }


@dataclass
class BundleReport:
    """Result of verifying a bundle.

    Attributes:
        head: checkpoint for all proofs; None if the bundle has no valid one.
        start: index of the first entry in the bundle.
        end: index after the last entry.
        entries: number of verified entries.
        stories: the history of each approval by its id, from verified entries.
        events: the tenant's verified entries in the order of the log, with the number
            of their texts that are not in the bundle.
        problem: the first problem; "" if everything is valid.
        bad_index: index of the first untrusted entry.
        sample: number of chosen approvals; 0 if it has all entries.
        calls: number of calls with their arguments.
        header: the first line; None if it is not valid.
    """

    head: Checkpoint | None = None
    start: int = 0
    end: int = 0
    entries: int = 0
    stories: dict[str, Story] = field(default_factory=dict[str, Story])
    events: list[tuple[Event, int]] = field(default_factory=list[tuple[Event, int]])
    problem: str = ""
    bad_index: int | None = None
    sample: int = 0
    calls: int = 0
    header: Header | None = None

    @property
    def is_verified(self) -> bool:
        """Return whether the whole bundle is valid."""
        return not self.problem


class BundleWriter:
    """Writes the lines of a bundle, and the signed last one."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._sum = hashlib.sha256()
        self._lines = 0

    def add(self, line: Header | Entry | Call) -> None:
        """Write a line."""
        row = line.model_dump(exclude_unset=True)
        data = json.dumps(row, separators=(",", ":")).encode() + b"\n"
        self._sum.update(data)
        self._lines += 1
        self._write(data)

    def end(self, key: SigningKey) -> None:
        """Write the last line, which signs all others."""
        note = signed_note(_whole(self._lines, self._sum.digest()), key)
        self._write(json.dumps({"end": note}).encode() + b"\n")


def verify_bundle(
    lines: Iterable[bytes],
    keys: Sequence[PublicKey],
    *,
    progress: Callable[[int], None] = lambda _lines: None,
) -> BundleReport:
    """Verify a bundle with public keys only; see `BundleReport`."""
    check = _Check(keys)
    try:
        for number, line in enumerate(lines):
            check.line(line)
            progress(number)
        if not check.is_ended:
            raise check.here("it ends too early")
    except _Refused as error:
        check.report.problem, check.report.bad_index = str(error), error.index
    return check.report


class _Refused(Exception):
    def __init__(self, text: str, index: int | None = None) -> None:
        super().__init__(text)
        self.index = index


class _Check:
    """Verifies line after line."""

    def __init__(self, keys: Sequence[PublicKey]) -> None:
        self.report = BundleReport()
        self.is_ended = False
        self._keys = keys
        self._tenant = ""
        self._last = -1
        self._sum = hashlib.sha256()
        self._lines = 0
        self._hashes: dict[str, set[str]] = {}

    def here(self, text: str) -> _Refused:
        """Return a refusal at the index of the next expected entry."""
        return _Refused(text, self._last + 1 if self.report.head else None)

    def line(self, data: bytes) -> None:
        if self.is_ended:
            raise self.here("it continues after its end")
        try:
            line = _BUNDLE_LINE.validate_json(data)
        except ValidationError:
            raise self.here(f"a line is not one of {FORMAT}") from None
        if isinstance(line, _End):
            self._end(line)
            return
        self._sum.update(data)
        self._lines += 1
        head = self.report.head
        match line:
            case Header() if head is None:
                self._header(line)
            case Entry() if head:
                self._entry(head, line)
            case Call() if head:
                self._call(line)
            case _:
                raise self.here(f"a line is not one of {FORMAT}")

    def _header(self, line: Header) -> None:
        one, report = line.log, self.report
        try:
            head = verified_checkpoint(
                one.checkpoint, origin=one.origin, keys=self._keys
            )
        except NotVerified as error:
            why = f"the checkpoint of {one.origin!r}: {error.problem}"
            raise _Refused(why) from None
        if not 0 <= one.start <= one.end <= head.size:
            raise _Refused("its entries are not those of its checkpoint", one.start)
        self._tenant, self._last = line.tenant, one.start - 1
        report.head, report.sample = head, line.sample
        report.start, report.end = one.start, one.end
        report.header = line

    def _entry(self, head: Checkpoint, line: Entry) -> None:
        index = line.index
        if index <= self._last:
            raise self.here("an entry is out of order")
        if (line.after if self.report.sample else index - 1) != self._last:
            raise self.here("an entry is missing")
        try:
            proof = [base64.b64decode(one, validate=True) for one in line.proof]
            hashed = leaf_hash(digest.canonical(line.leaf))
        except (BadJson, ValueError):
            raise _Refused(f"entry {index} cannot be read", index) from None
        if not is_included(hashed, index, head.size, proof, head.root):
            raise _Refused(f"entry {index} is not in the signed log", index)
        try:
            event = opened(line.leaf, line.open)
        except NotVerified as error:
            raise _Refused(f"entry {index}: {error.problem}", index) from None
        self._last = index
        self.report.entries += 1
        if event is None:
            return
        if event.action_hash:
            self._hashes.setdefault(event.item, set()).add(event.action_hash)
        if event.tenant != self._tenant:
            return
        hidden = {*cast("JsonObject", line.leaf["hidden"])}
        erased = len(hidden - {*line.open, SEAL})
        self.report.events.append((event, erased))
        if event.approval:
            story = Story(event.approval)
            self.report.stories.setdefault(story.approval, story).events.append(event)

    def _call(self, line: Call) -> None:
        if digest.action_hash(line.action) not in self._hashes.get(line.item, set()):
            raise self.here(f"the call of {line.item} is not the one in the log")
        self.report.calls += 1

    def _end(self, line: _End) -> None:
        report = self.report
        if report.head and not report.sample and self._last + 1 != report.end:
            raise self.here("an entry is missing")
        try:
            text = verified_note(line.end, self._keys)
        except NotVerified as error:
            raise self.here(f"its end is refused: {error.problem}") from None
        if text != _whole(self._lines, self._sum.digest()) or report.head is None:
            raise self.here("lines were added, removed or changed")
        self.is_ended = True


def _whole(lines: int, hashed: bytes) -> str:
    return f"{FORMAT}\n{lines}\n{base64.b64encode(hashed).decode()}\n"

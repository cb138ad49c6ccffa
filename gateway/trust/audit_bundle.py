"""Bundles of audit entries that prove themselves, without a store or settings.

A bundle is JSON Lines. The first line names the log, with a signed checkpoint. Each
entry's line has its leaf, the salted values hidden by the leaf, and the proof that the
checkpoint's tree has it at its index. Then come the stored calls, which entries name by
hash. The last line has the signed SHA-256 of all previous lines, so removed or added
lines are detected even if the rest is valid.

The entries of each approval are folded into its story: views, decisions and runs.
"""

from __future__ import annotations

import base64
import hashlib
import json
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
from keyturn.gateway.trust.checkpoints import (
    Checkpoint,
    is_included,
    leaf_hash,
    signed_note,
    verified_checkpoint,
    verified_note,
)
from keyturn.gateway.trust.key_folder import SigningKey

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


_LINE: TypeAdapter[Header | Entry | Call | _End] = TypeAdapter(
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
            line = _LINE.validate_json(data)
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

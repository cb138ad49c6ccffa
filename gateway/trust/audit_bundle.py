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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, cast

from pydantic import JsonValue, TypeAdapter, ValidationError

from keyturn.gateway.approvals.audit_leaf import Hidden, opened
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
_LINE = TypeAdapter(dict[str, JsonValue])


class LogRange(Record):
    """The log of a bundle, and its part from ``start`` to before ``end``."""

    origin: str
    checkpoint: str
    start: int
    end: int


class _Header(Record):
    """The first line of a bundle; ``sample`` is 0 if it has all entries."""

    format: Literal["keyturn/audit-bundle/v1"] = FORMAT
    tenant: str
    since_ms: int
    until_ms: int | None
    sample: int
    log: LogRange


class _Entry(Record):
    """The line of an entry; ``after`` is the index before it in a sample."""

    index: int
    leaf: dict[str, JsonValue]
    open: dict[str, Hidden]
    proof: tuple[str, ...]
    after: int | None = None


class _Call(Record):
    """The line of a stored call."""

    item: str
    action: str


class _End(Record):
    """The last line: a signed note about all others."""

    end: str


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
class BundleLog:
    """The log whose entries a bundle has.

    Attributes:
        origin: name of the log.
        checkpoint: checkpoint for all proofs.
        start: index of the first entry in the bundle.
        end: index after the last entry.
        entries: number of verified entries.
    """

    origin: str
    checkpoint: Checkpoint
    start: int
    end: int
    entries: int = 0
    last: int = -1


@dataclass
class BundleReport:
    """Result of verifying a bundle.

    Attributes:
        log: the log of its entries; None if it names none.
        stories: the history of each approval by its id, from verified entries.
        problem: the first problem; "" if everything is valid.
        bad_index: index of the first untrusted entry.
        sample: number of chosen approvals; 0 if it has all entries.
        calls: number of calls with their arguments.
    """

    log: BundleLog | None = None
    stories: dict[str, Story] = field(default_factory=dict[str, Story])
    problem: str = ""
    bad_index: int | None = None
    sample: int = 0
    calls: int = 0

    @property
    def is_verified(self) -> bool:
        """Return whether the whole bundle is valid."""
        return not self.problem


def entry_line(
    index: int, leaf: bytes, openings: dict[str, Hidden], proof: Sequence[bytes]
) -> JsonObject:
    """Return the line of an entry."""
    return {
        "index": index,
        "leaf": cast("JsonObject", json.loads(leaf)),
        "open": {name: list(one) for name, one in openings.items()},
        "proof": [base64.b64encode(one).decode() for one in proof],
    }


class BundleWriter:
    """Writes the lines of a bundle, and the signed last one."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._sum = hashlib.sha256()
        self._lines = 0

    def begin(
        self, log: LogRange, *, tenant: str, period: tuple[int, int | None], sample: int
    ) -> None:
        """Write the first line; ``sample`` is 0 for all entries of the period."""
        since_ms, until_ms = period
        header = _Header(
            tenant=tenant, since_ms=since_ms, until_ms=until_ms, sample=sample, log=log
        )
        self.add(header.model_dump())

    def add(self, line: JsonObject) -> None:
        """Write a line."""
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
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
    report = BundleReport()
    check = _Check(report, keys)
    try:
        for number, line in enumerate(lines):
            check.line(line)
            progress(number)
        check.end()
    except _Refused as error:
        report.problem, report.bad_index = str(error), error.index
    return report


class _Refused(Exception):
    def __init__(self, text: str, index: int | None = None) -> None:
        super().__init__(text)
        self.index = index


class _Check:
    """Verifies line after line."""

    def __init__(self, report: BundleReport, keys: Sequence[PublicKey]) -> None:
        self._report = report
        self._keys = keys
        self._tenant = ""
        self._sum = hashlib.sha256()
        self._lines = 0
        self._is_ended = False
        self._hashes: dict[str, set[str]] = {}

    def line(self, data: bytes) -> None:
        if self._is_ended:
            raise self._here("it continues after its end")
        try:
            line = _LINE.validate_json(data)
            if "end" in line:
                self._ends(_End.model_validate(line))
                return
            self._sum.update(data)
            self._lines += 1
            if self._report.log is None:
                self._header(_Header.model_validate(line))
            elif "index" in line:
                self._entry(self._report.log, _Entry.model_validate(line))
            else:
                self._call(_Call.model_validate(line))
        except ValidationError:
            raise self._here(f"a line is not one of {FORMAT}") from None

    def end(self) -> None:
        """Refuse a truncated bundle."""
        if not self._is_ended:
            raise self._here("it ends too early")

    def _here(self, text: str) -> _Refused:
        """Return a refusal at the index of the next expected entry."""
        log = self._report.log
        return _Refused(text, log.last + 1 if log else None)

    def _header(self, line: _Header) -> None:
        one, keys = line.log, self._keys
        try:
            head = verified_checkpoint(one.checkpoint, origin=one.origin, keys=keys)
        except NotVerified as error:
            why = f"the checkpoint of {one.origin!r}: {error.problem}"
            raise _Refused(why) from None
        if not 0 <= one.start <= one.end <= head.size:
            raise _Refused("its entries are not those of its checkpoint", one.start)
        self._tenant, self._report.sample = line.tenant, line.sample
        self._report.log = BundleLog(
            one.origin, head, one.start, one.end, last=one.start - 1
        )

    def _entry(self, log: BundleLog, line: _Entry) -> None:
        index = line.index
        if index <= log.last:
            raise self._here("an entry is out of order")
        if (line.after if self._report.sample else index - 1) != log.last:
            raise self._here("an entry is missing")
        try:
            proof = [base64.b64decode(one, validate=True) for one in line.proof]
            hashed = leaf_hash(digest.canonical(line.leaf))
        except (BadJson, ValueError):
            raise _Refused(f"entry {index} cannot be read", index) from None
        head = log.checkpoint
        if not is_included(hashed, index, head.size, proof, head.root):
            raise _Refused(f"entry {index} is not in the signed log", index)
        try:
            event = opened(line.leaf, line.open)
        except NotVerified as error:
            raise _Refused(f"entry {index}: {error.problem}", index) from None
        log.last, log.entries = index, log.entries + 1
        if event is None:
            return
        if event.action_hash:
            self._hashes.setdefault(event.item, set()).add(event.action_hash)
        if event.approval and event.tenant == self._tenant:
            stories = self._report.stories
            stories.setdefault(event.approval, Story(event.approval)).events.append(
                event
            )

    def _call(self, line: _Call) -> None:
        if digest.action_hash(line.action) not in self._hashes.get(line.item, set()):
            raise self._here(f"the call of {line.item} is not the one in the log")
        self._report.calls += 1

    def _ends(self, line: _End) -> None:
        log = self._report.log
        if log and not self._report.sample and log.last + 1 != log.end:
            raise self._here("an entry is missing")
        try:
            text = verified_note(line.end, self._keys)
        except NotVerified as error:
            raise self._here(f"its end is refused: {error.problem}") from None
        if text != _whole(self._lines, self._sum.digest()) or log is None:
            raise self._here("lines were added, removed or changed")
        self._is_ended = True


def _whole(lines: int, hashed: bytes) -> str:
    return f"{FORMAT}\n{lines}\n{base64.b64encode(hashed).decode()}\n"

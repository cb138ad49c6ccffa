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
import binascii
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import cast

from pydantic import JsonValue, TypeAdapter, ValidationError

from keyturn.gateway.approvals.audit_leaf import Hidden, opened
from keyturn.gateway.approvals.events import CALLS, Event, EventName
from keyturn.gateway.errors import BadJson, NotVerified
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.public_keys import PublicKey
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

FORMAT = "keyturn/audit-bundle/v1"
_EVERY = 2000


class Part(StrEnum):
    """Kind of evidence that an entry gives."""

    ASKED = "asked"
    SAW = "saw"
    DECIDED = "decided"
    RAN = "ran"
    ENDED = "ended"
    OTHER = "other"


_PARTS = {
    Part.ASKED: {EventName.APPROVAL_OPENED, EventName.CALL_DENIED},
    Part.SAW: {EventName.APPROVAL_VIEWED},
    Part.DECIDED: {
        EventName.APPROVAL_DECIDED,
        EventName.ITEM_VOTED,
        EventName.ITEM_EDITED,
        EventName.ITEM_AUTHORIZED,
        EventName.ITEM_REJECTED,
        EventName.ITEM_ANSWERED,
        EventName.ITEM_RECONCILED,
    },
    Part.RAN: {
        EventName.ITEM_EXECUTING,
        EventName.ITEM_EXECUTED,
        EventName.ITEM_FAILED,
        EventName.ITEM_IN_DOUBT,
        EventName.ITEM_OBSERVED,
        EventName.ITEM_REPORTED,
        EventName.CALL_RAN,
        EventName.CALL_FAILED,
    },
    Part.ENDED: {
        EventName.ITEM_EXPIRED,
        EventName.ITEM_SUPERSEDED,
        EventName.ITEM_WITHDRAWN,
        EventName.ITEM_LAPSED,
    },
}
_PART_OF = {name: part for part, names in _PARTS.items() for name in names}


_CALLS = TypeAdapter(list[dict[str, str]])


@dataclass(frozen=True)
class Step:
    """One entry about an approval."""

    part: Part
    event: Event

    @property
    def calls(self) -> list[dict[str, str]]:
        """Return the requested calls; none if they were erased."""
        try:
            return _CALLS.validate_json(self.event.data.get(CALLS, "[]"))
        except ValidationError:
            return []

    @property
    def row(self) -> JsonObject:
        """Return it as JSON."""
        event = self.event
        found: JsonObject = {
            "at_ms": event.at_ms,
            "part": self.part.value,
            "event": event.name.value,
        }
        named = {
            "item": event.item, "tool": event.tool, "tier": event.tier,
            "who": event.actor, "why": event.reason, "roles": list(event.roles),
            "action_hash": event.action_hash, "policy_digest": event.policy_digest,
            "request_digest": event.request_digest, "details": dict(event.data),
        }  # fmt: skip
        found |= {name: value for name, value in named.items() if value}  # type: ignore[misc]
        return found


@dataclass
class Story:
    """Audit entries of one approval."""

    approval: str
    steps: list[Step] = field(default_factory=list[Step])

    @property
    def has_run(self) -> bool:
        """Return True if a call of it ran, or may have run."""
        return any(step.part is Part.RAN for step in self.steps)

    @property
    def row(self) -> JsonObject:
        """Return it as JSON."""
        first = self.steps[0].event
        return {
            "approval": self.approval,
            "tenant": first.tenant,
            "agent": first.agent,
            "thread": first.thread,
            "ran": self.has_run,
            "steps": [step.row for step in self.steps],
        }


@dataclass
class BundleLog:
    """The log whose entries a bundle has.

    Attributes:
        origin: name of the log.
        checkpoint: checkpoint for all proofs.
        start: index of the first entry in the bundle.
        end: index after the last entry.
        is_whole: whether the bundle has every entry in between.
        entries: number of verified entries.
    """

    origin: str
    checkpoint: Checkpoint
    start: int
    end: int
    is_whole: bool
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
        header: the first line.
        calls: number of calls with their arguments.
    """

    log: BundleLog | None = None
    stories: dict[str, Story] = field(default_factory=dict[str, Story])
    problem: str = ""
    bad_index: int | None = None
    header: JsonObject = field(default_factory=dict[str, JsonValue])
    calls: int = 0

    @property
    def is_verified(self) -> bool:
        """Return whether the whole bundle is valid."""
        return not self.problem


def header_line(
    *, tenant: str, times: tuple[int, int | None], sample: int, log: JsonObject
) -> JsonObject:
    """Return the first line of a bundle; ``sample`` is 0 if it has all entries."""
    return {
        "format": FORMAT,
        "tenant": tenant,
        "since_ms": times[0],
        "until_ms": times[1],
        "sample": sample,
        "log": log,
    }


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
            if number % _EVERY == 0:
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
        self._sum = hashlib.sha256()
        self._lines = 0
        self._is_ended = False
        self._hashes: dict[str, set[str]] = {}

    def line(self, data: bytes) -> None:
        if self._is_ended:
            raise self._here("it continues after its end")
        try:
            found: object = json.loads(data)
        except (ValueError, RecursionError):
            raise self._here("a line is not JSON") from None
        if not isinstance(found, dict):
            raise self._here("a line is not an object")
        line = cast("JsonObject", found)
        if "end" in line:
            self._ends(line)
            return
        self._sum.update(data)
        self._lines += 1
        if self._lines == 1:
            self._header(line)
        elif "index" in line:
            self._entry(line)
        else:
            self._call(line)

    def end(self) -> None:
        """Refuse a truncated bundle."""
        if not self._is_ended:
            raise self._here("it ends too early")

    def _here(self, text: str) -> _Refused:
        """Return a refusal at the index of the next expected entry."""
        log = self._report.log
        return _Refused(text, log.last + 1 if log else None)

    def _header(self, line: JsonObject) -> None:
        if line.get("format") != FORMAT:
            raise _Refused(f"its format is not {FORMAT}")
        self._report.log = self._log(line.get("log"), is_whole=not line.get("sample"))
        self._report.header = line

    def _log(self, one: JsonValue, *, is_whole: bool) -> BundleLog:
        row = one if isinstance(one, dict) else {}
        origin, note = row.get("origin"), row.get("checkpoint")
        start, end = row.get("start"), row.get("end")
        if not (
            isinstance(origin, str)
            and isinstance(note, str)
            and type(start) is int
            and type(end) is int
        ):
            raise _Refused("its first line does not name its log")
        try:
            checkpoint = verified_checkpoint(note, origin=origin, keys=self._keys)
        except NotVerified as error:
            raise _Refused(f"the checkpoint of {origin!r}: {error.problem}") from None
        log = BundleLog(origin, checkpoint, start, end, is_whole, last=start - 1)
        if not 0 <= start <= end <= checkpoint.size:
            raise _Refused("its entries are not those of its checkpoint", start)
        return log

    def _entry(self, line: JsonObject) -> None:
        index, log = line.get("index"), self._report.log
        if log is None or type(index) is not int or index <= log.last:
            raise self._here("an entry is out of order")
        if log.is_whole and index != log.last + 1:
            raise _Refused(f"entry {log.last + 1} is missing", log.last + 1)
        if not log.is_whole and line.get("after") != log.last:
            raise _Refused("an entry is missing", log.last + 1)
        leaf = line.get("leaf")
        if not isinstance(leaf, dict):
            raise _Refused(f"entry {index} has no leaf", index)
        self._verify(log, index, leaf, line)
        log.last, log.entries = index, log.entries + 1

    def _verify(
        self, log: BundleLog, index: int, leaf: JsonObject, line: JsonObject
    ) -> None:
        try:
            proof = [base64.b64decode(one, validate=True) for one in _texts(line)]
            hashed = leaf_hash(digest.canonical(leaf))
        except (BadJson, TypeError, ValueError, binascii.Error):
            raise _Refused(f"entry {index} cannot be read", index) from None
        head = log.checkpoint
        if not is_included(hashed, index, head.size, proof, head.root):
            raise _Refused(f"entry {index} is not in the signed log", index)
        try:
            event = opened(leaf, dict(_openings(line)))
        except NotVerified as error:
            raise _Refused(f"entry {index}: {error.problem}", index) from None
        if event is None:
            return
        if event.action_hash:
            self._hashes.setdefault(event.item, set()).add(event.action_hash)
        if event.approval and event.tenant == self._report.header.get("tenant"):
            step = Step(_PART_OF.get(event.name, Part.OTHER), event)
            stories = self._report.stories
            stories.setdefault(event.approval, Story(event.approval)).steps.append(step)

    def _call(self, line: JsonObject) -> None:
        item, document = line.get("item"), line.get("action")
        if not isinstance(item, str) or not isinstance(document, str):
            raise self._here("a line is neither entry nor call")
        if digest.action_hash(document) not in self._hashes.get(item, set()):
            raise self._here(f"the call of {item} is not the one in the log")
        self._report.calls += 1

    def _ends(self, line: JsonObject) -> None:
        log = self._report.log
        if log is not None and log.is_whole and log.last + 1 != log.end:
            raise _Refused(f"entry {log.last + 1} is missing", log.last + 1)
        note = line.get("end")
        try:
            text = verified_note(note if isinstance(note, str) else "", self._keys)
        except NotVerified as error:
            raise self._here(f"its end is refused: {error.problem}") from None
        if text != _whole(self._lines, self._sum.digest()) or log is None:
            raise self._here("lines were added, removed or changed")
        self._is_ended = True


def _whole(lines: int, hashed: bytes) -> str:
    return f"{FORMAT}\n{lines}\n{base64.b64encode(hashed).decode()}\n"


def _texts(line: JsonObject) -> Iterator[str]:
    proof = line.get("proof")
    for one in proof if isinstance(proof, list) else []:
        if not isinstance(one, str):
            raise TypeError("a hash of a proof is not text")
        yield one


def _openings(line: JsonObject) -> Iterator[tuple[str, Hidden]]:
    found = line.get("open")
    if not isinstance(found, dict):
        raise NotVerified("leaf_wrong", "it does not open its hidden values")
    for name, one in found.items():
        match one:
            case [str(salt), str(value)]:
                yield name, Hidden(salt, value)
            case _:
                raise NotVerified("leaf_wrong", f"{name!r} cannot be read")

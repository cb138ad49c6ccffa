"""Read the audit log of a tenant: events, metrics, exports, bundles with their proofs.

Metrics are recomputed from the log, or kept up to date from it. The log is verified in
place, and exported as JSON or as a bundle that proves its entries.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import cast

from keyturn.gateway.approvals.audit_leaf import SEAL, Leaf
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.evidence import redacted
from keyturn.gateway.approvals.record import approval_of
from keyturn.gateway.errors import AuditUnreadable
from keyturn.gateway.metrics.report import EVERYTHING, Metrics, Selection
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.service.report.audit_writing import public_keys, required
from keyturn.gateway.service.tenant_service import TenantService
from keyturn.gateway.store.audit.files import Row, TreeFiles, segments
from keyturn.gateway.store.audit.log import TreeNote, event_of
from keyturn.gateway.store.audit.verifying import Progress, Verified, verify_log
from keyturn.gateway.store.connection.connection import number
from keyturn.gateway.store.events.outbox import Backlog, backlog, entry_id
from keyturn.gateway.store.sealing.event_seals import read_seal
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.audit_proofs import (
    FORMAT,
    BundleWriter,
    Call,
    Checkpoint,
    Entry,
    Header,
    LogRange,
    MerkleTree,
    encoded,
    leaf_hash,
    proof_text,
)
from keyturn.gateway.trust.key_folder import Role

OTHER = "other"
"""The label of every tool that the policy does not list."""

_SLACK_MS = 60_000
"""Most milliseconds between an event's time and its entry, when a period is read."""

RUNS_BEGAN_MS = 7 * 86_400_000
"""Milliseconds before a period in which the runs that end in it may have begun."""

_PAGE = 100


async def security_events(
    store: Store, tenant: str, *, since_ms: int = 0
) -> AsyncGenerator[Event]:
    """Yield the security events of a tenant, oldest first; see `SecurityEvents`.

    Raises:
        StoreUnavailable: when the store does not answer, or the audit log is not whole.
    """
    log = store.audit(store.keys_of_tenant(tenant))
    async with aclosing(log.entries(since_ms=since_ms)) as found:
        async for event in found:
            if event.name is EventName.SECURITY_DETECTED:
                yield event


async def exported(
    store: Store,
    tenant: str = "default",
    since_ms: int = 0,
    until_ms: int | None = None,
    *,
    has_arguments: bool = True,
) -> AsyncGenerator[JsonObject]:
    """Yield one JSON object for each entry, oldest first; `replay` reads them.

    Args:
        store: the store with the log.
        tenant: the tenant.
        since_ms: start of the period, in Unix milliseconds.
        until_ms: end of the period, exclusive; None for now.
        has_arguments: add the arguments of calls whose approvals still exist, redacted
            as on their cards.

    Raises:
        StoreUnavailable: when there is no store.
    """
    log = store.audit(store.keys_of_tenant(tenant))
    async for page in _pages(log.entries(since_ms=since_ms, until_ms=until_ms)):
        calls = await _requested(store, tenant, page) if has_arguments else {}
        for event in page:
            row: JsonObject = event.model_dump(mode="json", exclude_defaults=True)
            call = calls.get(event.item)
            yield row if call is None else {**row, "call": call}


async def _requested(
    store: Store, tenant: str, page: Sequence[Event]
) -> dict[str, JsonObject]:
    """Return the requested calls of these events, by item; without lost records."""
    ids = dict.fromkeys(event.approval for event in page if event.item)
    # A corrupt record must not hide the rest of the log.
    return {
        # As requested and not as edited: `replay` evaluates the request.
        item.id: {
            "args": redacted(item.requested_args, item.redact),
            "requester": approval.requester.user if approval.requester else "",
        }
        for loaded in await store.approvals.load_each(ids)
        if (approval := loaded.approval).tenant == tenant
        for item in approval.items
    }


async def _pages(log: AsyncGenerator[Event]) -> AsyncGenerator[list[Event]]:
    page: list[Event] = []
    async for event in log:
        page.append(event)
        if len(page) == _PAGE:
            yield page
            page = []
    if page:
        yield page


class StatisticsService(TenantService):
    """The metrics of one tenant."""

    async def metrics(
        self,
        selected: Selection = EVERYTHING,
        zone: tzinfo = UTC,
        *,
        has_runs: bool = True,
    ) -> Metrics:
        """Return the metrics of a period, from the audit log.

        Args:
            selected: period, tool, tier and agent.
            zone: time zone of days.
            has_runs: include runs. The log is then read from a week before the period,
                because runs may have begun there.

        Raises:
            StoreUnavailable: when there is no store.
        """
        found = Metrics(selected, zone)
        until_ms = selected.until_ms
        log = self._store.audit(self._keys).entries(
            since_ms=max(0, selected.since_ms - (RUNS_BEGAN_MS if has_runs else 0)),
            # The log is read by the time of its entries; `Metrics` uses event times.
            until_ms=None if until_ms is None else until_ms + _SLACK_MS,
        )
        async for event in log:
            found.add(event)
        return found


class LiveMetrics(StatisticsService):
    """The metrics of one tenant, of any period and since `begin`, by the same fold.

    There is no background task: each look reads the entries since the one before. Tools
    are counted by their `label`.
    """

    def __init__(
        self, store: Store, policy: Callable[[], Policy], *, tenant: str
    ) -> None:
        super().__init__(store, tenant=tenant)
        self._policy = policy
        self._metrics = Metrics()
        self._read_to = "0-0"
        self._reading = asyncio.Lock()

    def label(self, tool: str) -> str:
        """Return the name of a tool that the policy lists, else ``OTHER``."""
        # An agent may use any tool name, even a secret or a new one each time.
        return tool if tool in self._policy().tool_names else OTHER

    async def begin(self) -> None:
        """Count from now on, without earlier entries.

        Raises:
            StoreUnavailable: when there is no store.
        """
        self._read_to = await self._store.audit(self._keys).end()

    async def outbox(self) -> Backlog:
        """Return the backlog of the tenant's outbox.

        Raises:
            StoreUnavailable: when there is no store.
        """
        return await backlog(self._store.conn, self._keys)

    async def jobs(self) -> int:
        """Return the number of the tenant's jobs that no worker has taken.

        Raises:
            StoreUnavailable: when there is no store.
        """
        return await self._store.queue(self._keys).waiting()

    async def look(self) -> Metrics:
        """Return the metrics until now.

        Raises:
            StoreUnavailable: when there is no store; the next look continues from here.
        """
        # Two concurrent looks would count the same entries twice.
        async with self._reading:
            log = self._store.audit(self._keys)
            async for event in log.entries(after=self._read_to):
                self._read_to = event.seq
                self._metrics.add(event.with_(tool=self.label(event.tool)))
        return self._metrics


@dataclass(frozen=True)
class Proven:
    """An entry of the log with its C2SP proof as text.

    ``proof`` is empty while no checkpoint covers the entry.
    """

    index: int
    event: Event | None
    leaf: Leaf
    proof: str


@dataclass(frozen=True)
class Exported:
    """The numbers of entries and approvals in a bundle."""

    entries: int
    approvals: int


@dataclass(frozen=True)
class _Log:
    """The tenant's log during an export, up to its newest checkpoint."""

    files: TreeFiles
    note: str
    checkpoint: Checkpoint
    tree: MerkleTree

    def range(self, since_ms: int, until_ms: int | None) -> tuple[int, int]:
        """Return the indexes of the entries that are in this period and still exist."""
        end, kept = self.checkpoint.size, segments(self.files)
        if until_ms is not None:
            end = min(end, self.files.index_of((until_ms, 0)))
        start = self.files.index_of((since_ms, 0))
        return min(end, max(start, kept[0].start if kept else end)), end

    def proof(self, index: int, leaf: bytes) -> list[bytes]:
        """Return the inclusion proof of an entry.

        Raises:
            AuditUnreadable: when the tree has another entry there.
        """
        if self.tree.leaf(index) != leaf_hash(leaf):
            raise AuditUnreadable(
                f"Entry {index} of the audit log expired while it was read; run this "
                "again."
            )
        return self.tree.inclusion_proof(index)


class AuditBundler(TenantService):
    """Reads a tenant's log with its proofs, from a store with keys and the tree."""

    async def prove(self, approval: str) -> list[Proven]:
        """Return the entries of an approval with their proofs, oldest first.

        Raises:
            AuditUnreadable: when there is no tree, or entries differ from it.
        """
        log = await self._open()
        found: list[Proven] = []
        async with aclosing(self._entries(log, 0, None)) as entries:
            async for index, row in entries:
                if approval not in row.event:
                    continue
                # Forged entries may name the approval; they are shown with their state.
                leaf, proof = row.opened_leaf, ""
                if index < log.checkpoint.size:
                    proof = proof_text(index, log.proof(index, leaf.text), log.note)
                found.append(Proven(index, event_of(row), leaf, proof))
        return found

    async def export(
        self,
        write: Callable[[bytes], object],
        *,
        since_ms: int = 0,
        until_ms: int | None = None,
        sample: int = 0,
        has_arguments: bool = True,
        progress: Callable[[int], None] = lambda _entries: None,
    ) -> Exported:
        """Write a bundle; see `keyturn.gateway.trust.audit_proofs`.

        Args:
            write: called with each line.
            since_ms: start of the period.
            until_ms: end of the period, exclusive; None for now.
            sample: number of approvals to choose at random; 0 for all entries.
            has_arguments: add the calls that still exist and are not redacted.
            progress: called with the number of entries written.

        Raises:
            AuditUnreadable: when there is no tree, or entries differ from it.
            SettingsError: when there is no key to sign the bundle with.
        """
        key = required(self._store)[0].signing(Role.AUDIT)
        log = await self._open()
        chosen = frozenset[str]()
        if sample:
            chosen = await self._sample(log, since_ms, until_ms, sample)
        start, end = await asyncio.to_thread(log.range, since_ms, until_ms)
        writer, origin = BundleWriter(write), log.checkpoint.origin
        header = Header(
            format=FORMAT,
            tenant=self._tenant,
            since_ms=since_ms,
            until_ms=until_ms,
            sample=len(chosen),
            log=LogRange(origin=origin, checkpoint=log.note, start=start, end=end),
        )
        writer.add(header)
        count, after = 0, start - 1
        found, items = set[str](), dict[str, None]()
        async with aclosing(self._entries(log, since_ms, until_ms)) as entries:
            async for index, row in entries:
                if index >= end:
                    break
                event = event_of(row)
                approval = event.approval if event else ""
                if sample and approval not in chosen:
                    continue
                # The hidden values of another tenant stay hidden.
                is_ours = event is not None and event.tenant == self._tenant
                line = _line(log, index, row, is_opened=is_ours)
                writer.add(line.with_(after=after) if sample else line)
                after, count = index, count + 1
                progress(count)
                found.add(approval)
                if event and event.item:
                    items[event.item] = None
        if has_arguments:
            async for call in self._calls(items):
                writer.add(call)
        writer.end(key)
        return Exported(count, len(found - {""}))

    async def _open(self) -> _Log:
        """Read the tree of the tenant, up to its newest checkpoint."""
        keyring, folder = required(self._store)
        files = TreeFiles(folder, self._tenant)

        def read() -> _Log:
            notes, known = files.notes(), public_keys(keyring)
            newest, tree, _ = files.checked(notes, known, has_proofs=True)
            if not notes:
                raise AuditUnreadable(
                    f"There is no checkpoint in {str(folder)!r} yet: a gateway that "
                    "runs writes one after the first entry. Run this where the "
                    "gateway runs, with its settings."
                )
            return _Log(files, notes[-1], newest, tree)

        return await asyncio.to_thread(read)

    async def _entries(
        self, log: _Log, since_ms: int, until_ms: int | None
    ) -> AsyncGenerator[tuple[int, Row]]:
        """Yield kept entries with their index; those in files match the tree."""
        conn, keys = self._store.conn, self._keys
        rows = self._store.audit(keys).rows(since_ms=since_ms, until_ms=until_ms)
        index = -1
        async with aclosing(rows):
            async for row in rows:
                after = index + 1
                index = after or log.files.index_of(entry_id(row.seq))
                # Entries without a checkpoint have no state yet.
                state = row.state or read_seal(conn, keys, row.event, row.seal)
                yield index, row._replace(state=state)

    async def _sample(
        self, log: _Log, since_ms: int, until_ms: int | None, sample: int
    ) -> frozenset[str]:
        """Choose approvals at random, so that the choice is unpredictable."""
        found: dict[str, None] = {}
        async with aclosing(self._entries(log, since_ms, until_ms)) as entries:
            async for index, row in entries:
                event = event_of(row)
                if event and index < log.checkpoint.size:
                    found[event.approval] = None
        found.pop("", None)
        chosen = random.SystemRandom().sample([*found], min(sample, len(found)))
        return frozenset(chosen)

    async def _calls(self, items: Collection[str]) -> AsyncGenerator[Call]:
        """Yield the calls that still exist and are not redacted."""
        for approval_id in dict.fromkeys(approval_of(item)[0] for item in items):
            for loaded in await self._load_each([approval_id]):
                for item in loaded.approval.items:
                    # Redacted arguments would have another hash than the entry names.
                    if item.id in items and not item.redact:
                        yield Call(item=item.id, action=item.action)


def _line(log: _Log, index: int, row: Row, *, is_opened: bool) -> Entry:
    leaf = row.opened_leaf
    openings = leaf.openings.items() if is_opened else ()
    return Entry(
        index=index,
        leaf=cast("JsonObject", json.loads(leaf.text)),
        open={name: hidden for name, hidden in openings if name != SEAL},
        proof=tuple(map(encoded, log.proof(index, leaf.text))),
    )


async def verify_log_of(
    store: Store,
    tenant: str,
    *,
    kept: Sequence[str] = (),
    progress: Progress = lambda _done, _all: None,
) -> Verified:
    """Verify the log of a tenant.

    Args:
        store: a store with the keys and the folder of the trees.
        tenant: the tenant of the log.
        kept: checkpoints saved elsewhere, as signed notes.
        progress: called with the numbers of verified entries and of all entries.

    Raises:
        StoreUnavailable: when the store does not answer.
    """
    keys, (keyring, folder) = store.keys_of_tenant(tenant), required(store)
    files, log = TreeFiles(folder, keys.tenant), store.audit(keys)
    noted = await TreeNote.read(store.conn, keys)
    now_ms = await store.conn.now_ms(keys.audit)
    found = await asyncio.to_thread(
        verify_log,
        files,
        public_keys(keyring),
        noted,
        oldest_ms=now_ms - int(store.audit_kept.total_seconds() * 1000),
        kept=kept,
        progress=progress,
    )
    found.unsigned = len([one async for one in log.live(files.last)])
    return found


async def forget_tree(store: Store, tenant: str) -> bool:
    """Allow gateways to begin another tree after the loss of a tenant's tree.

    Returns:
        Whether the store had a note of a tree.
    """
    keys = store.keys_of_tenant(tenant)
    return bool(number(await store.conn.command("DEL", keys.audit_tree)))

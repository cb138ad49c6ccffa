"""What the store knows of earlier calls: use of windows, precedents, and agents' load.

Rolling windows limit rates and sums. Use is reserved and counted atomically. A use
counts from the evaluation of its call, while the call may still run, and for the
window's length after it ran. A refused call releases its use in the same step, except
in windows that count requests: there it stays for the window's length after the
request. If a process dies in between, the reservation is too high for two minutes, and
never too low.

Precedents are written in the step that changes a call, and read with the other inputs
of an evaluation, so both need no extra round trip. For each effect and kind, at most
`MOST_KEPT` calls are stored, as long as approvals are. Calls that the policy alone
authorized count in rules for one day, but are stored as long.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from pydantic_core import from_json

from keyturn.gateway.approvals.events import (
    BY_GATEWAY,
    Event,
    EventName,
    approval_event,
)
from keyturn.gateway.approvals.precedents import DAY_MS, KINDS, Precedent
from keyturn.gateway.approvals.record import Approval, DecisionRecord, Item
from keyturn.gateway.approvals.repeating import precedent_of
from keyturn.gateway.policy.windows import MAX_MICRO
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import ItemState, Record, RunRef
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.store.connection.connection import (
    Connection,
    Reply,
    fields,
    number,
    text,
)
from keyturn.gateway.store.connection.listed_members import readable
from keyturn.gateway.store.keys import KEEP_MS, LISTED_BYTES, Keys
from keyturn.gateway.store.limits.freezes import (
    Freeze,
    FreezeScope,
    ScopeKind,
    freezes_of,
    names_of,
    paused,
)
from keyturn.gateway.store.runs.threads import ThreadFacts, read_facts
from keyturn.gateway.store.scripts.script import Script
from keyturn.gateway.store.sealing.event_seals import sealed_texts
from keyturn.gateway.store.sealing.sealing import Repository, Sealed, Seals, write_if

RESERVE = Script("reserve")
TOTALS = Script("totals", writes=False)

# Twice the time limit of triage (30 s), the longest part of an evaluation.
HOLD_MS = 60_000
"""Time limit for evaluating a turn; its reservation ends after that."""


@dataclass(frozen=True)
class Use:
    """One call's use of one window for one resource.

    Attributes:
        name: the window's name in the policy.
        window: key of the window for this resource.
        use: the call and its amount in millionths, in stored form.
        within_ms: how long it counts after the call ran.
    """

    name: str
    window: str
    use: str
    within_ms: int

    @property
    def micro(self) -> int:
        """Return its amount in millionths."""
        return int(self.use.rpartition(" ")[2])


def use_of(window: str, *, name: str, call: str, micro: int, within_ms: int) -> Use:
    """Return a use of a window.

    Args:
        window: from `Keys.window`.
        name: the window's name in the policy.
        call: identifies the call; without blanks.
        micro: amount in millionths, 0 to `MAX_MICRO`.
        within_ms: the window's length.
    """
    if not 0 <= micro <= MAX_MICRO:
        raise ValueError(f"{micro!r} millionths do not fit into a window")
    return Use(name=name, window=window, use=f"{call} {micro}", within_ms=within_ms)


ItemUses = tuple[str, int, Sequence[Use]]
"""An item's possible uses, which replace its reserved ones.

They follow the key of the head of the item's approval, and the index of the item, whose
reserved uses are not counted twice.
"""


def held_in(keys: Keys, windows: Sequence[str]) -> ItemUses:
    """Return uses without amounts, to read the current sums of windows by key."""
    uses = [
        use_of(window, name="", call="nobody", micro=0, within_ms=1)
        for window in windows
    ]
    return keys.head("none"), 0, uses


def as_rows(uses: Sequence[Use]) -> str:
    """Return uses as scripts read them: an array of {window, use, within_ms}."""
    if not uses:
        return "[]"
    return json.dumps([[use.window, use.use, use.within_ms] for use in uses])


class WindowStore(Repository):
    """The windows of all tenants."""

    async def reserve(
        self, keys: Keys, turn_key: str, uses: Sequence[Sequence[Use]]
    ) -> list[dict[str, int]] | None:
        """Reserve the uses of all calls of one turn in one step, once.

        A repeated request gets the first answer.

        Args:
            keys: keys of the tenant.
            turn_key: identifies the turn in repeated submissions.
            uses: uses of each call, in the order of the calls.

        Returns:
            For each call the sums of its windows by name, including the call and the
            earlier calls of the turn. None if the turn already has its verdicts.
        """
        flat = [use for call in uses for use in call]
        reply = await RESERVE(
            self._conn,
            turn=keys.turn(turn_key),
            reservation=keys.reservation(turn_key, as_rows(flat)),
            windows=[use.window for use in flat],
            uses=[use.use for use in flat],
            hold_ms=HOLD_MS,
        )
        # Another process has opened the turn: its verdicts are the answer.
        if text(reply[0]) == "opened":
            return None
        totals = iter(_numbers(reply[1]))
        return [{use.name: next(totals) for use in call} for call in uses]

    async def totals(
        self, head: str, index: int, uses: Sequence[Use]
    ) -> dict[str, int]:
        """Return the sums of windows by name if one item used these.

        See `ItemUses` for the arguments.
        """
        [found] = await self.totals_of_each([(head, index, uses)])
        return dict(zip((use.name for use in uses), found, strict=True))

    async def totals_of_each(self, items: Sequence[ItemUses]) -> list[list[int]]:
        """Return the sums of windows for each item, as if only that item used them.

        All items belong to one tenant, and the sums are one consistent snapshot.

        Returns:
            For each item the sum with each of its uses, in their order.
        """
        rows = [(head, index, use) for head, index, uses in items for use in uses]
        if not rows:
            return [[] for _ in items]
        reply = await TOTALS(
            self._conn,
            places=[key for head, _, use in rows for key in (head, use.window)],
            uses=[[index, use.use] for _, index, use in rows],
        )
        totals = iter(_numbers(reply[1]))
        return [[next(totals) for _ in uses] for _, _, uses in items]


def _numbers(reply: Reply) -> list[int]:
    return [number(total) for total in cast("list[Reply]", reply)]


logger = logging.getLogger(__name__)

_ELSEWHERE = {"call", "since_ms", "at_ms"}
_CHANGES = "n"
"""Field with the number of the latest change."""

_STATES = {kind.value: state for state, kind in reversed(KINDS.items())}

Row = tuple[str, str, str | bool, str, int]
"""Key, call, kind or False, body, lifetime: a precedent for scripts to write."""


@dataclass(frozen=True)
class Known:
    """The precedents of one effect at the time of the read.

    Attributes:
        key: their key in the store.
        changes: number of the latest change; "" before the first.
        precedents: newest first.
    """

    key: str
    changes: str = ""
    precedents: tuple[Precedent, ...] = ()


def encrypted_rows(conn: Connection, rows: Iterable[Row]) -> list[Row]:
    """Return rows with their bodies in stored form."""
    return [
        (key, call, kind, body and _stored(conn, key, call, body), keep_ms)
        for key, call, kind, body, keep_ms in rows
    ]


def read(conn: Connection, key: str, found: Mapping[str, bytes]) -> Known:
    """Parse the precedents of one effect; malformed ones are skipped."""
    precedents: list[Precedent] = []
    for call, value in found.items():
        if call == _CHANGES:
            continue
        try:
            at, age, kind, stored = (value.split(b" ", 3) + [b""] * 4)[:4]
            body = Seals(conn).opened_text(Sealed.PRECEDENT, (key, call), stored)
            times = {"since_ms": int(at) - int(age), "at_ms": int(at)}
            if body is None:
                # It can only stop a call, so it counts, without what it contains.
                logger.warning("precedent.unsealed call=%s", call)
            known = from_json(body) if body else {"state": _STATES[text(kind)]}
            one = Precedent.model_validate({**known, "call": call, **times})
        except (KeyError, TypeError, ValueError):
            logger.warning("precedent.unreadable call=%s", call)
            continue
        if one.state in KINDS:
            precedents.append(one)
    precedents.sort(key=lambda one: (one.at_ms, one.call), reverse=True)
    return Known(key, text(found.get(_CHANGES, b"")), tuple(precedents))


def read_all(
    conn: Connection, keys: Sequence[str], replies: Iterable[Reply]
) -> dict[str, Known]:
    """Parse the precedents of several effects, by key."""
    pairs = zip(keys, replies, strict=True)
    return {key: read(conn, key, fields(found)) for key, found in pairs}


def rows_of_change(keys: Keys, before: Approval, after: Approval) -> list[Row]:
    """Return the changed precedents after a change of an approval.

    The bodies are plain; see `encrypted_rows`.
    """
    rows: list[Row] = []
    for was, now in zip(before.items, after.items, strict=True):
        if was is now:
            continue
        old, new = _placed(keys, before, was), _placed(keys, after, now)
        if old == new:
            continue
        if old is not None and (new is None or new[0] != old[0]):
            rows.append((old[0], was.id, False, "", KEEP_MS))
        if new is not None:
            rows.append(_row(*new))
    return rows


def rows_of_opening(keys: Keys, approvals: Iterable[Approval]) -> list[Row]:
    """Return the precedents of new calls that the policy alone authorized."""
    placed = (_placed(keys, one, item) for one in approvals for item in one.items)
    return [_row(*found) for found in placed if found is not None]


def row_of_auto_run(
    keys: Keys, effect: str, call: str, agent: str, args_hash: str
) -> Row:
    """Return the precedent of a call of tier ``auto``, which has no record."""
    # Authorized, with unknown result.
    state = ItemState.AUTHORIZED
    found = Precedent(call=call, state=state, agent=agent, args_hash=args_hash)
    return *_row(keys.precedents(effect), found)[:4], DAY_MS


def seen_precedents(known: Iterable[Known]) -> list[tuple[str, str]]:
    """Return values for a script to compare with the current precedents."""
    return [(one.key, one.changes) for one in known]


def _placed(keys: Keys, approval: Approval, item: Item) -> tuple[str, Precedent] | None:
    found = precedent_of(approval, item)
    if found is None:
        return None
    return keys.precedents(item.effect), found


def body_of(conn: Connection, key: str, what: Precedent) -> str:
    """Return a precedent's body in stored form."""
    return _stored(conn, key, what.call, _json(what))


def _stored(conn: Connection, key: str, call: str, body: str) -> str:
    return Seals(conn).sealed_text(Sealed.PRECEDENT, (key, call), body)


def _json(what: Precedent) -> str:
    return what.model_dump_json(exclude=_ELSEWHERE, exclude_defaults=True)


def _row(key: str, what: Precedent) -> Row:
    return key, what.call, KINDS[what.state].value, _json(what), KEEP_MS


LOAD_CONTEXT = Script("load_context", writes=False)
CONFIRMED_CONTEXT = Script("load_context")

ASKED_MS = 10 * 60 * 1000
"""How long a request counts towards an agent's requests."""

FAILED_MS = 60 * 60 * 1000
"""How long a failed execution counts towards an agent's failures."""


class Rejection(Record):
    """A rejected call: the reviewer, the time, their comment, and the turns since."""

    by: str
    at_ms: int
    reason: str = ""
    turns_ago: int = 0


@dataclass(frozen=True)
class AgentLoad:
    """An agent's recent load and results, in one consistent snapshot.

    Attributes:
        now_ms: the store's clock.
        verdicts: the stored answer if the turn was submitted before, empty if it
            follows from the turn's first approval; None for a new turn.
        thread: the facts of the thread.
        frozen: freezes of the agent or of one of the tools, by name.
        waiting: number of the agent's pending items.
        requests_10m: number of items put to reviewers within ten minutes.
        failures: number of failed executions within an hour.
        rejections: number of consecutive rejections.
        rejected: last rejection in the thread, by fingerprint of the requested call.
        precedents: requested precedents, by the key of their effect.
    """

    now_ms: int = 0
    verdicts: bytes | None = None
    thread: ThreadFacts = field(default_factory=ThreadFacts)
    frozen: Mapping[str, Freeze] = field(default_factory=dict[str, Freeze])
    waiting: int = 0
    requests_10m: int = 0
    failures: int = 0
    rejections: int = 0
    rejected: Mapping[str, Rejection] = field(default_factory=dict[str, Rejection])
    precedents: Mapping[str, Known] = field(default_factory=dict[str, Known])


def fingerprint(tool: str, args: JsonObject) -> str:
    """Return a fingerprint of a tool and its arguments."""
    body = digest.canonical([tool, args])
    return digest.tagged_hash("keyturn/v1/call", body)


def rejection_effects(
    conn: Connection,
    keys: Keys,
    approval: Approval,
    rejected: Sequence[Item],
    pause_after: int,
) -> dict[str, object]:
    """Return the effects of rejections, for the script that writes them.

    The rejected calls are remembered. After ``pause_after`` rejections in a row the
    agent is paused. Empty if no call is rejected.
    """
    words = [
        (item, item.decision)
        for item in rejected
        if item.decision and not (item.is_question or item.is_standing)
    ]
    if not words:
        return {}
    reason = f"{pause_after} of its calls were rejected in a row"
    pause = Freeze(
        scope=FreezeScope(kind=ScopeKind.AGENT, name=approval.agent),
        by=BY_GATEWAY,
        reason=reason,
        at_ms=words[0][1].at_ms,
        is_pause=True,
    )
    event = approval_event(approval, EventName.AGENT_PAUSED, reason=reason)
    event = event.with_(actor=BY_GATEWAY, tool=words[0][0].tool)
    name, calls = keys.rejected(approval.agent, approval.thread), list[list[str]]()
    for item, word in words:
        call = fingerprint(item.tool, item.requested_args)
        place, body = (name, call), _rejection(word)
        stored = Seals(conn).sealed_text(Sealed.REJECTION, place, body)
        calls.append([call, stored])
    return {
        "calls": calls,
        "after": pause_after,
        "name": pause.name,
        "pause": pause.model_dump_json(),
        "event": sealed_texts(conn, keys, [event])[0],
    }


def _rejection(word: DecisionRecord) -> str:
    by = word.by.name or word.by.user
    return Rejection(by=by, at_ms=word.at_ms, reason=word.text).model_dump_json()


class AgentLoadStore(Repository):
    """Counters and rejections of each agent."""

    async def pending(self, keys: Keys, agent: str) -> list[str]:
        """Return the approvals with pending items of an agent, first due first."""
        members = await self._conn.command("ZRANGE", keys.waiting(agent), 0, -1)
        # The index of an item follows its approval's member.
        found = readable(members, lambda one: keys.unlisted(one[:LISTED_BYTES]))
        return [*dict.fromkeys(found)]

    async def load(
        self,
        keys: Keys,
        agent: str,
        thread: str,
        run_ref: RunRef,
        *,
        turn_key: str,
        effects: Iterable[str] = (),
        tools: Iterable[str] = (),
        calls: Iterable[str] = (),
    ) -> AgentLoad:
        """Read an agent's load before one of its turns is evaluated.

        The requester is taken from the run, since people talk to the outermost agent.

        Args:
            keys: keys of the tenant.
            agent: the agent.
            thread: the thread of the turn.
            run_ref: the run of the turn.
            turn_key: key of the turn.
            effects: effects whose precedents are read.
            tools: tools whose freezes are read.
            calls: fingerprints of calls whose rejections in the thread are read.
        """
        freezes = freezes_of(self._conn)
        # No duplicates: a turn may repeat a call. Calls without effect have none.
        named = dict.fromkeys(effect for effect in effects if effect)
        precedents = [keys.precedents(effect) for effect in named]
        names = names_of(agent, *tools)
        values: dict[str, object] = {
            "turn": keys.turn(turn_key),
            "facts": keys.thread_facts(run_ref.agent, run_ref.thread),
            "frozen": keys.frozen,
            "waiting": keys.waiting(agent),
            "requests_10m": keys.requests_10m(agent),
            "failures": keys.failures(agent),
            "rejections": keys.rejections(agent),
            "rejected": keys.rejected(agent, thread),
            "precedents": precedents,
            "names": [paused(agent)],
            "calls": ["turns", *dict.fromkeys(calls)],
            "list": freezes.known(keys).seal,
        }
        reply = await LOAD_CONTEXT(self._conn, **values)
        if reply[2] is not None and self._conn.confirmed_by:
            # The answer may depend on a write that replicas lack. Read again with a
            # confirmation, since there may be a new master.
            reply = await CONFIRMED_CONTEXT(self._conn, **values)
        if reply[8] is not None:
            await freezes.learn(keys, cast("bytes", reply[8]))
        frozen = freezes.in_force(keys, names, fields(reply[4]))
        whose = keys, run_ref.agent, run_ref.thread
        facts = await read_facts(self._sealing, whose, reply[3])
        waiting, requests_10m, failures, rejections = map(
            number, cast("list[Reply]", reply[5])
        )
        return AgentLoad(
            now_ms=number(reply[1]),
            verdicts=cast("bytes | None", reply[2]),
            thread=facts.facts,
            frozen=frozen,
            waiting=waiting,
            requests_10m=requests_10m,
            failures=failures,
            rejections=rejections,
            rejected=await self._rejected(keys, agent, thread, fields(reply[6])),
            precedents=read_all(self._conn, precedents, cast("list[Reply]", reply[7])),
        )

    async def count_failure(self, keys: Keys, name: str, event: Event) -> bool:
        """Count a failed auto-approved call; False if it was counted before.

        ``name`` identifies the call; ``event`` reports the failure.
        """
        key = keys.failures(event.agent)
        now_ms = await self._conn.now_ms(key)
        return await write_if(
            self._conn,
            keys,
            [(["ZSCORE", key, name], "")],
            # No sweep removes failures that count no more.
            ["ZREMRANGEBYSCORE", key, "-inf", now_ms],
            ["ZADD", key, now_ms + FAILED_MS, name],
            ["PEXPIRE", key, FAILED_MS],
            outbox=[event],
            audit=[event],
        )

    async def verdicts(self, keys: Keys, turn_key: str) -> bytes:
        """Return the stored answer to a turn; empty if there is none."""
        reply = await self._conn.command("GET", keys.turn(turn_key))
        return cast("bytes", reply or b"")

    async def _rejected(
        self, keys: Keys, agent: str, thread: str, found: dict[str, bytes]
    ) -> dict[str, Rejection]:
        """Read rejections; report and skip those with an invalid seal."""
        name = keys.rejected(agent, thread)
        # The turn under evaluation follows those already counted.
        turns = number(found.pop("turns", None)) + 1
        rejections: dict[str, Rejection] = {}
        for call, value in found.items():
            turn, _, stored = value.partition(b" ")
            place = (name, call)
            body = self._sealing.opened_text(Sealed.REJECTION, place, stored)
            if body is None or not turn.isdigit():
                await self._sealing.refuse(
                    keys, Sealed.REJECTION, value, agent=agent, thread=thread
                )
                continue
            rejection = Rejection.model_validate_json(body)
            rejections[call] = rejection.with_(turns_ago=turns - number(turn))
        return rejections

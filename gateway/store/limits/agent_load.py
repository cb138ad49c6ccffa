"""Rate-limit counters and rejection history of each agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from keyturn.gateway.approvals.events import (
    BY_GATEWAY,
    Event,
    EventName,
    approval_event,
)
from keyturn.gateway.approvals.record import Approval, DecisionRecord, Item
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import Record, RunRef
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.store.connection.connection import (
    Connection,
    Reply,
    fields,
    number,
)
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.limits.freezes import (
    Freeze,
    FreezeScope,
    ScopeKind,
    freezes_of,
    names_of,
    paused,
)
from keyturn.gateway.store.limits.precedents import Known, read_all
from keyturn.gateway.store.runs.threads import ThreadFacts, read_facts
from keyturn.gateway.store.scripts.script import Script
from keyturn.gateway.store.sealing.event_seals import sealed_texts
from keyturn.gateway.store.sealing.sealing import Repository, Sealed, Seals, write_if

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

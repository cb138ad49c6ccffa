"""Put the calls that run unasked on notices, and take down how they ended.

Of a call of tier ``auto``, which no notice shows, only a failure is taken down.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.approvals.notice import (
    CallState,
    Notice,
    NoticedCall,
    Remark,
    notice_of,
    row_id,
)
from twokey.gateway.approvals.policy_decision import PolicyDecision
from twokey.gateway.policy.evaluate import is_idempotent
from twokey.gateway.policy.rules import Policy
from twokey.gateway.protocol import digest
from twokey.gateway.protocol.records import Person
from twokey.gateway.protocol.strict_json import accept_object
from twokey.gateway.protocol.wire import (
    CallBegun,
    CallEnd,
    CallMark,
    ProposedCall,
    Turn,
    TurnRef,
    VerdictKind,
)
from twokey.gateway.service.rejudging import KeptVerdicts
from twokey.gateway.store.failures import count_failure
from twokey.gateway.store.store import Store

logger = logging.getLogger(__name__)

_EVENTS = {
    CallState.EXECUTED: EventName.CALL_EXECUTED,
    CallState.FAILED: EventName.CALL_FAILED,
}


class Notices:
    """The notices of one turn: one for each channel that the policy names.

    Args:
        turn: what the agent does.
        tenant: whose agent it is.
        requester: who asked the agent.
        policy_digest: of the policy that judged the turn.
        new_id: makes the id of a notice.
    """

    def __init__(
        self,
        turn: Turn,
        *,
        tenant: str,
        requester: Person | None,
        policy_digest: str,
        new_id: Callable[[], str],
    ) -> None:
        self._turn = turn
        self._tenant = tenant
        self._requester = requester
        self._policy_digest = policy_digest
        self._new_id = new_id
        self._ids: dict[str, str] = {}
        self._calls: dict[str, list[NoticedCall]] = {}

    def add(self, call: ProposedCall, ruling: PolicyDecision) -> str:
        """Put a call on the notice of its channel; return the id of its row."""
        channel = ruling.channel
        if channel not in self._ids:
            self._ids[channel] = self._new_id()
        calls = self._calls.setdefault(channel, [])
        calls.append(
            NoticedCall(
                index=len(calls),
                tool=call.tool,
                tool_call_id=call.tool_call_id,
                args=accept_object(call.args),
                reasons=ruling.reasons,
                description=ruling.description,
                redact=ruling.redact,
            )
        )
        return row_id(self._ids[channel], len(calls) - 1)

    def made(self) -> tuple[Notice, ...]:
        """Return the notices, in the order of their first calls."""
        ref = self._turn.ref
        return tuple(
            Notice(
                id=self._ids[channel],
                tenant=self._tenant,
                agent=ref.agent,
                thread=ref.thread,
                ns=ref.ns,
                message_id=ref.message_id,
                channel=channel,
                requester=self._requester,
                policy_digest=self._policy_digest,
                calls=tuple(calls),
            )
            for channel, calls in self._calls.items()
        )


class NoticeService:
    """What became of notices.

    Args:
        store: where everything is kept.
        tenant: whose notices these are.
        policy: returns the policy in force now.
    """

    def __init__(
        self,
        store: Store,
        *,
        tenant: str = "default",
        policy: Callable[[], Policy],
    ) -> None:
        self._store = store
        self._policy = policy
        self._tenant = tenant
        self._keys = store.keys_of_tenant(tenant)

    async def read(self, notice_id: str) -> Notice | None:
        """Return a notice; None for an unknown id."""
        notice = await self._store.notices.load(self._keys, notice_id)
        return notice if notice and notice.tenant == self._tenant else None

    async def mark(self, mark: CallMark) -> CallBegun:
        """Say whether a call may run unasked, or note what happens to it.

        Raises:
            LeaseLost: the thread is run by somebody else now.
        """
        calls, turn_key = self._store.unasked, self._turn_key(mark.ref)
        if mark.verb == "enter":
            await calls.enter(self._keys, turn_key, mark.tool_call_id)
        elif mark.verb == "give_back":
            await calls.give_back(self._keys, turn_key, mark.tool_call_id)
        else:
            agent, tool = mark.ref.agent, mark.tool
            repeats = is_idempotent(self._policy(), agent=agent, tool=tool)
            begun = await calls.begin(
                self._keys, turn_key, mark.tool_call_id, repeats=repeats
            )
            if begun.word == "cut_off":
                logger.warning("call.cut_off agent=%s tool=%s", agent, tool)
            return CallBegun(may_run=begun.word == "run", result=begun.result)
        return CallBegun()

    async def ended(self, end: CallEnd) -> None:
        """Take down how a call ended; one that our record does not know is ignored.

        The newest word counts: a call that raised may be run again. Of a call without
        a notice only a failure is counted.
        """
        calls, turn_key = self._store.unasked, self._turn_key(end.ref)
        if end.is_over:
            await calls.end(self._keys, turn_key, end.tool_call_id, end.result)
        else:
            await calls.give_back(self._keys, turn_key, end.tool_call_id)
        if not end.notice:
            await self._unnoticed(end)
            return
        found = await self._call(end)
        if found is None:
            logger.warning("notice.unknown_call notice=%s", end.notice)
            return
        notice, call = found
        state = CallState.EXECUTED if end.result.ok else CallState.FAILED
        event = _event(notice, _EVENTS[state]).with_(tool=call.tool, item=end.notice)
        await self._store.notices.end(
            self._keys, notice.id, call.index, state, end.result.summary, event
        )

    async def _unnoticed(self, end: CallEnd) -> None:
        if end.result.ok:
            return
        ref = end.ref
        turn_key = self._turn_key(ref)
        body = await self._store.attention.verdicts(self._keys, turn_key)
        verdicts = KeptVerdicts.read(body).verdicts if body else ()
        told = (end.tool, end.tool_call_id)
        if not any(
            one.kind is VerdictKind.RUN and (one.tool, one.tool_call_id) == told
            for one in verdicts
        ):
            logger.warning("call.unknown_failure agent=%s", ref.agent)
            return
        event = Event(
            name=EventName.CALL_FAILED,
            tenant=self._tenant,
            agent=ref.agent,
            thread=ref.thread,
            outer=ref.outer,
            tool=end.tool,
        )
        name = f"{turn_key.removeprefix('sha256:')} {end.tool_call_id}"
        await count_failure(self._store.conn, self._keys, name, event)

    async def report(self, notice: Notice, by: Person, text: str) -> bool:
        """Take down that somebody reports a notice; False when they did before.

        Raises:
            StoreUnavailable: when it is not known to be kept.
        """
        event = _event(notice, EventName.NOTICE_REPORTED)
        event = event.with_(actor=f"{by.team}/{by.user}", reason=text)
        remark = Remark(by=by, text=text)
        return await self._store.notices.report(self._keys, notice.id, remark, event)

    def _turn_key(self, ref: TurnRef) -> str:
        return digest.turn_key(tenant=self._tenant, **ref.names)

    async def _call(self, end: CallEnd) -> tuple[Notice, NoticedCall] | None:
        try:
            notice_id, index = notice_of(end.notice)
        except ValueError:
            return None
        notice = await self.read(notice_id)
        if notice is None or index >= len(notice.calls):
            return None
        call, ref = notice.calls[index], end.ref
        kept = (notice.agent, notice.thread, notice.ns, notice.message_id)
        is_same = kept == (ref.agent, ref.thread, ref.ns, ref.message_id)
        told = (end.tool, end.tool_call_id)
        is_same = is_same and (call.tool, call.tool_call_id) == told
        return (notice, call) if is_same else None


def _event(notice: Notice, name: EventName) -> Event:
    return Event(
        name=name,
        tenant=notice.tenant,
        agent=notice.agent,
        thread=notice.thread,
        notice=notice.id,
        policy_digest=notice.policy_digest,
        channel=notice.channel,
    )

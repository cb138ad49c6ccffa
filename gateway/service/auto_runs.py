"""At-most-once guard of auto-approved calls, across lease holders.

These are the calls of tier ``auto``. All others are items of an approval.
"""

from __future__ import annotations

import logging

from twokey.gateway.approvals.events import EventName, call_event
from twokey.gateway.errors import CorruptRecord, NewerRecord
from twokey.gateway.failures import log_failure
from twokey.gateway.policy.evaluate import is_idempotent
from twokey.gateway.protocol import digest
from twokey.gateway.protocol.call_progress import CallBegun, CallEnd, CallProgress
from twokey.gateway.protocol.wire import TurnRef, Verdict
from twokey.gateway.service.stored_verdicts import StoredVerdicts
from twokey.gateway.service.tenant_service import PolicyService
from twokey.gateway.store.auto_runs import Note
from twokey.gateway.store.keys import Keys

logger = logging.getLogger(__name__)


class AutoRunService(PolicyService):
    """Calls without a record."""

    def keeps_calls(self) -> bool:
        """Return whether a lease counts here: one held, or one nobody may hold."""
        return self._store.auto_runs.is_checked

    async def report_progress(self, progress: CallProgress) -> CallBegun:
        """Return whether a call may run, or note what happens to it.

        Raises:
            LeaseLost: the thread is run by somebody else now.
        """
        calls = self._store.auto_runs
        if not calls.is_kept:
            if progress.verb == "begin":
                await calls.check_unheld()
            return CallBegun(keeps_result=False)
        turn_key = self._turn_key(progress.ref)
        keys = self._keys_of(progress.ref.run_ref.agent)
        if progress.verb != "begin":
            await calls.note(keys, turn_key, progress.verb, progress.tool_call_id)
            return CallBegun()
        agent, tool = progress.ref.agent, progress.tool
        # By the current policy: the question is whether the tool may run again now.
        repeats = is_idempotent(self._policy(), agent=agent, tool=tool)
        begun = await calls.begin(
            keys, self._tenant, turn_key, progress.tool_call_id, repeats=repeats
        )
        if begun.word == "cut_off":
            logger.warning("call.cut_off agent=%s tool=%s", agent, tool)
        return CallBegun(
            may_run=begun.word == "run",
            result=begun.result,
            keeps_result=begun.is_kept,
        )

    async def ended(self, end: CallEnd) -> None:
        """Keep how a call ended, and count a failure once."""
        calls, turn_key = self._store.auto_runs, self._turn_key(end.ref)
        keys = self._keys_of(end.ref.run_ref.agent)
        verb: Note = "end" if end.is_over else "give_back"
        await calls.note(keys, turn_key, verb, end.tool_call_id, end.result)
        if end.result.ok:
            return
        ref = end.ref
        reported = (end.tool, end.tool_call_id)
        # An agent reports what it likes: only failures of calls that we let run count.
        if not any(
            one.runs_unclaimed and (one.tool, one.tool_call_id) == reported
            for one in await self._verdicts(keys, turn_key)
        ):
            logger.warning("call.unknown_failure agent=%s", ref.agent)
            return
        event = call_event(EventName.CALL_FAILED, self._tenant, ref, end.tool)
        # The same for the same call, so that a report that is sent again counts once.
        name = f"{turn_key.removeprefix('sha256:')} {end.tool_call_id}"
        await self._store.agent_load.count_failure(keys, name, event)

    async def tools_of(self, ref: TurnRef, tool_call_id: str) -> frozenset[str]:
        """Return the tools of the calls with this id in a turn; empty for none."""
        keys = self._keys_of(ref.run_ref.agent)
        verdicts = await self._verdicts(keys, self._turn_key(ref))
        return frozenset(it.tool for it in verdicts if it.tool_call_id == tool_call_id)

    async def _verdicts(self, keys: Keys, turn_key: str) -> tuple[Verdict, ...]:
        stored = await self._store.agent_load.verdicts(keys, turn_key)
        try:
            if not stored:
                return ()
            sealing = self._store.sealing
            return StoredVerdicts.read(sealing, turn_key, stored).verdicts
        except (NewerRecord, CorruptRecord) as error:
            # A call that has run stays as it is kept: only its failure is not counted.
            log_failure(logger, error, "turn.unread")
            return ()

    def _turn_key(self, ref: TurnRef) -> str:
        return digest.turn_key(tenant=self._tenant, **ref.names)

"""Break what one gesture does to several approvals: all of it, or nothing."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MANY = "gateway/store/lua/change.lua"
VERSION = "gateway/store/lua/next_version.lua"
DECIDING = "gateway/approvals/gestures.py"
EVALUATION = "gateway/service/deciding.py"
STORE = "tests/store/test_changing.py"
PURE = "tests/approvals/test_collection_deciding.py"
SERVICE = "tests/service/test_collected_decisions.py"
READING = "tests/service/test_call_evaluation.py"
BATCHES = "tests/service/test_same_calls_of_a_batch.py"

GESTURES_TABLE = (
    Mutant(
        "collections: each of the approvals is compared",
        MANY,
        "  if has_moved(change, now, added) then return {'moved'} end\n",
        "",
        STORE,
    ),
    Mutant(
        "collections: every check is before every write",
        MANY,
        "  if has_moved(change, now, added) then return {'moved'} end\n",
        "  if has_moved(change, now, added) then return {'moved'} end\n"
        "  write_version(change, now)\n",
        STORE,
    ),
    Mutant(
        "collections: nothing is announced before every check",
        MANY,
        "local added = {}\n",
        "local added = {}\nannounce(KEYS[2], KEYS[3], ARGV[3], now)\n",
        STORE,
    ),
    Mutant(
        "collections: all are written",
        MANY,
        "for _, change in ipairs(changes) do write_version(change, now) end",
        "write_version(changes[1], now)",
        STORE,
    ),
    Mutant(
        "collections: changes of one write see each other in a window",
        VERSION,
        "total_with(row[1], row[2], own, now), added[row[1]] or 0",
        "total_with(row[1], row[2], own, now), 0",
        STORE,
    ),
    Mutant(
        "collections: what one gesture rejects counts once for each agent",
        VERSION,
        "if change.rejection.calls and not ended[change.rejections] then",
        "if change.rejection.calls then",
        STORE,
    ),
    Mutant(
        "collections: an approval ends the row also of the same gesture",
        VERSION,
        "      ended[change.rejections] = true\n    end\n  end\n  for",
        "    end\n  end\n  for",
        STORE,
    ),
    Mutant(
        "collections: an old reading is computed again for all of them",
        "gateway/store/changing.py",
        "if written := await self._write(keys, loaded, found):",
        "if [written := await self._write(keys, loaded, found)]:",
        STORE,
    ),
    Mutant(
        "collections: a call that moved is not left out but stops all",
        DECIDING,
        "if card and (refusal := not_as_seen(approval, click, now_ms)):",
        "if card and (refusal := None):",
        PURE,
    ),
    Mutant(
        "collections: one refusal stops all",
        DECIDING,
        "        if self.refusals and card:\n",
        "        if self.changes:\n            return None\n"
        "        if self.refusals and card:\n",
        PURE,
    ),
    Mutant(
        "collections: what is escalated meanwhile is left out",
        DECIDING,
        "return place in asked.repeats or is_escalated(",
        "return place in asked.repeats and is_escalated(",
        PURE,
    ),
    Mutant(
        "collections: what repeats another call is left out",
        DECIDING,
        "return place in asked.repeats or is_escalated(",
        "return is_escalated(",
        SERVICE,
    ),
    Mutant(
        "collections: the entries of the calls name what was shown",
        DECIDING,
        "event.with_(version=after.version, data=event.data | {BATCH_MEMBER: digest})",
        "event",
        PURE,
    ),
    Mutant(
        "collections: no call of another tenant is decided",
        "gateway/service/deciding.py",
        "own = [one for one in read.values() if one.approval.tenant == self._tenant]",
        "own = [*read.values()]",
        SERVICE,
    ),
    Mutant(
        "collections: what was too late is ended",
        "gateway/service/deciding.py",
        "            await self._sweeper.expire(approval_id)\n",
        "            pass\n",
        SERVICE,
    ),
    Mutant(
        "collections: calls of several approvals with one effect need another look",
        EVALUATION,
        "return bool(now.past.same_by) and any(",
        "return False and any(",
        SERVICE,
    ),
    Mutant(
        "collections: calls of one approval with one effect stand on one card",
        EVALUATION,
        "one.approval != call.approval.id for one in others",
        "one for one in others",
        BATCHES,
    ),
    Mutant(
        "collections: approved calls see each other in a new window",
        EVALUATION,
        "                micro[use.window] = added\n",
        "                pass\n",
        SERVICE,
    ),
    Mutant(
        "collections: what is reserved is not counted twice",
        EVALUATION,
        "sum(max(0, one - held[window]) for",
        "sum(max(0, one) for",
        SERVICE,
    ),
    Mutant(
        "gestures: all totals of a reading start from one sum",
        "gateway/store/lua/totals.lua",
        "uses_of(head, row[1]), now, sums[window])",
        "uses_of(head, row[1]), now)",
        READING,
    ),
    Mutant(
        "gestures: each call is evaluated as its own agent's",
        "gateway/service/call_evaluation.py",
        "loads[call.agent]",
        "loads[calls[0].agent]",
        READING,
    ),
    Mutant(
        "collections: a replay counts the rejections of a gesture once",
        "gateway/policy/replay.py",
        "        is_first = batch is None or row.agent not in self._counted\n",
        "        is_first = True\n",
        "tests/policy/test_replay.py",
    ),
    Mutant(
        "collections: a replay sees the calls of a gesture on several approvals",
        "gateway/policy/replay.py",
        "if batch is not None and batch != self._gesture:",
        "if batch is not None:",
        "tests/policy/test_replay.py",
    ),
)

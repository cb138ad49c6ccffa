"""Break fences: let a process that lost its lease write over what others did."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from tests.mutants.pauses import PAUSES_TABLE

FENCES = "tests/resume/test_fences.py"

ONCE = "tests/resume/test_auto_runs_once.py"

CUT_OFF = "tests/resume/test_cut_off.py"
KNOWN_PAUSES = "tests/resume/test_known_pauses.py"

FENCES_TABLE = (
    Mutant(
        "results without their checkpoint are work that was cut off",
        "gateway/resume/thread_states.py",
        "        return bool(tasks)\n",
        "        pass\n",
        CUT_OFF,
    ),
    Mutant(
        "an auto-approved call is not repeated by who takes over",
        "gateway/store/lua/auto_run.lua",
        "if not entered and ARGV[5] ~= '1' then return {'cut_off'} end",
        "",
        ONCE,
    ),
    Mutant(
        "what ran auto-approved is given back, and not run again",
        "gateway/store/lua/auto_run.lua",
        "if result then return {'ran', result} end",
        "",
        ONCE,
    ),
    Mutant(
        "the end of an auto-approved call is told where it is kept",
        "gateway/store/auto_runs.py",
        "    is_kept: bool = True\n",
        "    is_kept: bool = False\n",
        ONCE,
    ),
    Mutant(
        "an agent inside an auto-approved call goes on where it was cut off",
        "agent/middleware.py",
        "        await auto_approved.note_nested_agent()\n",
        "",
        ONCE,
    ),
    Mutant(
        "a late holder keeps no step in SQLite",
        "gateway/resume/sqlite_writes.py",
        "if row is None or row[0] != self.fence:",
        "if False:",
        FENCES,
    ),
    Mutant(
        "a checkpoint waits for the disk also after a fence that did not",
        "gateway/resume/sqlite_writes.py",
        'conn.execute(f"PRAGMA synchronous = {before}")',
        "pass",
        "tests/resume/test_sqlite_writes.py",
    ),
    Mutant(
        "a checkpoint write that fails leaves nothing half done beside others",
        "gateway/resume/sqlite_writes.py",
        'conn.execute("ROLLBACK TO one")',
        "pass",
        "tests/resume/test_sqlite_writes.py",
    ),
    Mutant(
        "a late holder keeps no step in Postgres",
        "gateway/resume/fence_tables.py",
        "if _first(await cursor.fetchone()) != lease.fence:",
        "if False:",
        FENCES,
    ),
    Mutant(
        "a late holder keeps no step with any other saver",
        "gateway/resume/fence_tables.py",
        "if isinstance(newest, int) and newest > lease.fence:",
        "if False:",
        FENCES,
    ),
    Mutant(
        "a new holder's fence is known before it reads",
        "gateway/resume/fenced_saver.py",
        "        await self._introduce()\n        return await super()",
        "        return await super()",
        FENCES,
    ),
    Mutant(
        "what is written under a lease is read by the run that follows",
        "gateway/resume/fenced_saver.py",
        "            return await put.by(None)\n"
        "        self.twokey_readings.forget(lease)\n",
        "            return await put.by(None)\n",
        "tests/resume/test_kept_readings.py",
    ),
    Mutant(
        "results beside questions are read again, since showing may change them",
        "gateway/resume/kept_readings.py",
        " and found is not None and _is_plain(found)",
        " and found is not None",
        "tests/resume/test_kept_readings.py",
    ),
    Mutant(
        "a thread waits as before by its checkpoint",
        "gateway/resume/known_pauses.py",
        '            or pause.state.checkpoint != found.checkpoint["id"]\n',
        "",
        KNOWN_PAUSES,
    ),
    Mutant(
        "a thread waits as before by the tasks that ask",
        "gateway/resume/known_pauses.py",
        "            or pause.askers != questions.keys()\n",
        "",
        KNOWN_PAUSES,
    ),
    Mutant(
        "what is beside a question is worked out",
        "gateway/resume/known_pauses.py",
        "list | tuple):\n            return None\n",
        "list | tuple):\n            continue\n",
        KNOWN_PAUSES,
    ),
    Mutant(
        "a schema that is none of ours is looked at",
        "gateway/protocol/answer_schema.py",
        "    if schema != ours:\n        return None\n",
        "",
        "tests/protocol/test_answer_schema.py",
    ),
    Mutant(
        "an answer to another question is not sent",
        "gateway/protocol/answer_schema.py",
        '        and answer["action_hash"] == action_hash\n',
        "",
        "tests/protocol/test_answer_schema.py",
    ),
    Mutant(
        "what is unreachable at a start does not stay",
        "gateway/garbage_collection.py",
        "    gc.collect()\n",
        "",
        "tests/cli/test_garbage_collection.py",
    ),
    Mutant(
        "a new holder's fence is known before it reads from SQLite",
        "gateway/resume/fenced_saver.py",
        "newest, found = await fence.raise_and_read(self, lease, config)",
        "newest, found = lease.fence, await fence.read(self, config)",
        FENCES,
    ),
    Mutant(
        "what was read below a greater fence is read again",
        "gateway/resume/fenced_saver.py",
        "            if newest <= lease.fence:\n",
        "            if True:\n",
        FENCES,
    ),
    Mutant(
        "a writer that is paused in its transaction holds up nobody for long",
        "gateway/resume/fence_tables.py",
        "await conn.execute(_END_PAUSED, (_PAUSE_MS,))",
        "pass",
        FENCES,
    ),
    Mutant(
        "a store put back to an older copy gives out fences above those in use",
        "gateway/store/lua/lease.lua",
        "math.max(newest, above) + 1",
        "newest + 1",
        FENCES,
    ),
    Mutant(
        "a lost lease asks, claims and ends nothing",
        "gateway/store/script.py",
        "if not leases:",
        "if True:",
        FENCES,
    ),
    Mutant(
        "who names no lease writes nothing while another process holds it",
        "gateway/store/fences.py",
        "    if key := _unheld.get():\n",
        '    if key := "":\n',
        "tests/api/test_without_a_lease.py",
    ),
    Mutant(
        "who lost the lease tells no end of a thread",
        "gateway/store/threads.py",
        'ANNOUNCE = Script("announce", is_fenced=True)',
        'ANNOUNCE = Script("announce")',
        "tests/resume/test_one_end_event.py",
    ),
    Mutant(
        "a late publisher sends nothing more",
        "bot/delivery/card_publisher.py",
        "            lease.check()\n",
        "            pass\n",
        "tests/bot/test_late_publisher.py",
    ),
    Mutant(
        "a holder that is cut off stops by its own clock",
        "gateway/store/fences.py",
        "            taken.lost.set()\n",
        "            pass\n",
        FENCES,
    ),
    Mutant(
        "a fence that cannot rise is given to nobody",
        "gateway/store/lua/lease.lua",
        "if next_one >= 2 ^ 53 then",
        "if false then",
        FENCES,
    ),
    Mutant(
        "no API key uses up the fences of a shard",
        "gateway/store/lua/lease.lua",
        "if reach > 0 and above > newest + reach then",
        "if false then",
        "tests/api/test_threads.py",
    ),
    Mutant(
        "who was cancelled while writing for others lets them have their answer",
        "gateway/store/group_commit.py",
        "        if writing is None or writing.done():\n",
        "        if True:\n",
        "tests/service/test_cancelled_starts.py",
    ),
    Mutant(
        "nothing is written for who has left",
        "gateway/store/group_commit.py",
        "            one.has_left\n            or not isinstance",
        "            not isinstance",
        "tests/store/test_group_commit.py",
    ),
    Mutant(
        "a claim that nobody would use is given back",
        "agent/execution.py",
        "    if isinstance(reply, Claimed):\n        item_id, fence = request.item_id",
        "    if not reply:\n        item_id, fence = request.item_id",
        "tests/agent/test_once.py",
    ),
    Mutant(
        "a result that the gateway did not take is reported again",
        "agent/execution.py",
        "shell.begin(report(item_id, fence, result, gateway))",
        "pass",
        "tests/agent/test_unrecorded.py",
    ),
    Mutant(
        "an end is recorded though its caller is cancelled",
        "gateway/service/claiming.py",
        "await waited_for(begun(self._change(item_id, compute)))",
        "await self._change(item_id, compute)",
        "tests/service/test_cancelled_starts.py",
    ),
    *PAUSES_TABLE,
)

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
        "gateway/resume/langgraph_local.py",
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
        "gateway/resume/fence_tables.py",
        "if _kept_in_sqlite(conn, lease) != lease.fence:",
        "if False:",
        FENCES,
    ),
    Mutant(
        "a checkpoint write that fails leaves nothing half done beside others",
        "gateway/resume/fence_tables.py",
        "                await own.conn.rollback()",
        "pass",
        "tests/resume/test_sqlite_writes.py",
    ),
    Mutant(
        "a late holder keeps no step in Postgres",
        "gateway/resume/fence_tables.py",
        '"WHERE lease = %s AND fence = %s FOR SHARE) AS held"',
        '"WHERE lease = %s AND fence >= %s FOR SHARE) AS held"',
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
        "gateway/resume/fence_tables.py",
        "        await self._introduce()\n        return await super()",
        "        return await super()",
        FENCES,
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
        "gateway/resume/fence_tables.py",
        "await self._introduce()\n        return await super().aget_tuple(",
        "return await super().aget_tuple(",
        FENCES,
    ),
    Mutant(
        "what was read below a greater fence is read again",
        "gateway/resume/fence_tables.py",
        "            ) > lease.fence:\n",
        "            ) < 0:\n",
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
        "            taken.end()\n",
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
        "no API key uses up the fences of a tenant",
        "gateway/store/lua/lease.lua",
        "if reach > 0 and above > newest + reach then",
        "if false then",
        "tests/api/test_threads.py",
    ),
    Mutant(
        "a result that the gateway did not take is reported again",
        "agent/execution.py",
        "shell.begin(report(item_id, fence, result, gateway))\n        return",
        "pass\n        return",
        "tests/agent/test_unrecorded.py",
    ),
    Mutant(
        "a result whose run was cancelled is reported all the same",
        "agent/execution.py",
        "        shell.begin(report(item_id, fence, result, gateway))\n        raise",
        "        raise",
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

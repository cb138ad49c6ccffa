"""List ways to let what is needed end too early, or never."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

PRELUDE = "gateway/store/lua/prelude.lua"
KEPT = "tests/clock/test_kept_while_needed.py"
OPEN_OF_RUN = "tests/store/test_open_of_run.py"

LIFETIMES_TABLE = (
    Mutant(
        "what is open loses a lifetime that it should not have",
        "gateway/store/lua/lifetimes.lua",
        "if not needed or redis.call('PTTL', head) >= 0 then",
        "if not needed then",
        "tests/clock/test_kept_while_needed.py",
    ),
    Mutant(
        "a doubt is kept until people reconcile it",
        "gateway/store/lua/lifetimes.lua",
        "executing = true, in_doubt = true}",
        "executing = true}",
        KEPT,
    ),
    Mutant(
        "the place of a card is known as long as its approval",
        "gateway/store/lua/lifetimes.lua",
        "if left == -1 then",
        "if false then",
        KEPT,
    ),
    Mutant(
        "a run lists what ended in it while something is open in it",
        "gateway/store/lua/lifetimes.lua",
        "is_over and keep",
        "keep",
        OPEN_OF_RUN,
    ),
    Mutant(
        "a turn has its first answer while a call of it is open",
        "gateway/store/lua/lifetimes.lua",
        "  live_on({turn}, not needed and keep)",
        "  live_on({turn}, keep)",
        "tests/service/test_turns_again.py",
    ),
    Mutant(
        "what a doubt uses counts until it is reconciled",
        "gateway/store/lua/windows.lua",
        "state == 'pending' and till or WHILE_OPEN",
        "till or now + 864e5",
        KEPT,
    ),
    Mutant(
        "an edit without a record is not told as made",
        "agent/history_checks.py",
        "        if each in known.made\n",
        "        if known.made.setdefault(each, record.outcome)\n",
        "tests/agent/test_forged_edits.py",
    ),
    Mutant(
        "who asked is known until the run begins",
        "gateway/store/lua/lifetimes.lua",
        "'run', 'open')\n  end\n  redis.call('PERSIST', facts)\n",
        "'run', 'open')\n  end\n  redis.call('PEXPIRE', facts, 2592000000)\n",
        OPEN_OF_RUN,
    ),
    Mutant(
        "who asked is known while the run goes on",
        "gateway/store/lua/lifetimes.lua",
        "live_on({facts}, not run and not open and keep)",
        "live_on({facts}, not open and keep)",
        OPEN_OF_RUN,
    ),
    Mutant(
        "where people are forgotten nobody approves alone",
        "gateway/service/proposals.py",
        "two = Requirement(approvals=2,",
        "two = Requirement(approvals=1,",
        "tests/clock/test_who_asked.py",
    ),
    Mutant(
        "a thread with a past and no facts has forgotten people",
        "gateway/store/threads.py",
        "is_lost = has_past and not is_known",
        "is_lost = False",
        "tests/clock/test_who_asked.py",
    ),
    Mutant(
        "what was told of a run stands for nobody who asked",
        "gateway/store/threads.py",
        'is_known = "facts" in found and',
        "is_known = found and",
        "tests/clock/test_who_asked.py",
    ),
    Mutant(
        "a store of a newer format is refused",
        "gateway/store/open_store.py",
        "    if found > mine:\n",
        "    if found > mine + 9:\n",
        "tests/store/test_store_format.py",
    ),
    Mutant(
        "a format is not raised while processes of the version before run",
        "gateway/store/open_store.py",
        "(await store.processes.read(keys)).alive:",
        "None:",
        "tests/store/test_store_format.py",
    ),
    Mutant(
        "a dead holder keeps a thread no longer because the clock went back",
        "gateway/store/lua/lease.lua",
        "if left > tonumber(ARGV[3]) then",
        "if false then",
        "tests/clock/test_clock_goes_back.py",
    ),
    Mutant(
        "a dead owner keeps a call no longer because the clock went back",
        "gateway/approvals/executing.py",
        "item.claimed_until_ms - now_ms <= lease_ms",
        "True",
        "tests/clock/test_clock_goes_back.py",
    ),
    Mutant(
        "a run that failed is kept while people have to say something",
        "gateway/resume/retries.py",
        "if await self._store.approvals.has_open(keys, at.run_ref):\n",
        "if False:\n",
        "tests/resume/test_old_runs.py",
    ),
)

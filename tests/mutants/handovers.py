"""Break the handover of a decided thread to the worker of the same process."""

from __future__ import annotations

from tests.mutants.leases import LEASES_TABLE
from tests.mutants.mutant import Mutant
from tests.mutants.precomputed_starts import PRECOMPUTED_STARTS_TABLE

HANDOVER = "tests/resume/test_handover.py"
LOST = "tests/resume/test_lost_handovers.py"
PRECOMPUTED = "tests/resume/test_precomputed_handovers.py"
LUA = "gateway/store/lua/hand_over.lua"

HANDOVERS_TABLE = (
    Mutant(
        "a thread that somebody runs is not handed over",
        LUA,
        "if redis.call('EXISTS', lease, dropped) > 0 then return false end",
        "if redis.call('EXISTS', dropped) > 0 then return false end",
        HANDOVER,
    ),
    Mutant(
        "a run that was dropped is not handed over",
        LUA,
        "redis.call('EXISTS', lease, dropped)",
        "redis.call('EXISTS', lease)",
        HANDOVER,
    ),
    Mutant(
        "a run whose past nobody looked at is not handed over",
        LUA,
        "if redis.call('HGET', facts, 'run') ~= 'open' then return false end",
        "",
        HANDOVER,
    ),
    Mutant(
        "jobs that wait are delivered before one that is handed over",
        LUA,
        "return #redis.call('XRANGE', jobs, after, '+', 'COUNT', 1) == 0",
        "return after ~= nil",
        HANDOVER,
    ),
    Mutant(
        "a fence that is handed over is above all before it",
        LUA,
        "tonumber(redis.call('GET', fences) or '0') + 1)",
        "tonumber(redis.call('GET', fences) or '0'))",
        HANDOVER,
    ),
    Mutant(
        "a fence that cannot rise is handed over to nobody",
        LUA,
        "+ 1 >= 2 ^ 53 then return false end",
        "< 0 then return false end",
        HANDOVER,
    ),
    Mutant(
        "a job whose handover got lost is found",
        "gateway/store/resume_jobs.py",
        "        handover.lost()\n",
        "        handover.answer.cancel()\n",
        LOST,
    ),
    Mutant(
        "the answer to a change that was sent twice is not believed",
        "gateway/store/resume_jobs.py",
        "self._conn.resent == self._resent",
        "True",
        LOST,
    ),
    Mutant(
        "only who has the lease does the job of a lost handover",
        "gateway/store/given_jobs.py",
        "if text(token) != handover.token:",
        "if not token:",
        LOST,
    ),
    Mutant(
        "the lease of a job that joined another run is given back",
        "gateway/resume/worker.py",
        "if delivery.given is not None and delivery.given.lease.left_s:",
        "if False:",
        LOST,
    ),
    Mutant(
        "a job that joined another run takes the lease anew",
        "gateway/resume/worker.py",
        "joined.append(delivery.alone)",
        "joined.append(delivery)",
        LOST,
    ),
    Mutant(
        "a worker takes jobs for its own event loop only",
        "gateway/resume/job_taker.py",
        "asyncio.get_running_loop() is not loop or slots.locked()",
        "slots.locked()",
        HANDOVER,
    ),
    Mutant(
        "a worker without a free slot takes no job",
        "gateway/resume/job_taker.py",
        "asyncio.get_running_loop() is not loop or slots.locked()",
        "asyncio.get_running_loop() is not loop",
        HANDOVER,
    ),
    Mutant(
        "a handed job is not done in the context of who decides",
        "gateway/resume/job_taker.py",
        "do(handover), context=context",
        "do(handover)",
        HANDOVER,
    ),
    Mutant(
        "of what is remembered no other call is taken for known",
        "gateway/store/writing.py",
        "is_known = seen.remembered is None or len(what.approval.items) == 1",
        "is_known = True",
        HANDOVER,
    ),
    Mutant(
        "a worker is given no precomputed record but the one that was written",
        "gateway/store/writing.py",
        "if found.stored.seal == seal:",
        "if seal:",
        PRECOMPUTED,
    ),
    Mutant(
        "of a precomputed card with several calls the worker reads the record",
        "gateway/store/writing.py",
        " or len(found.approval.items) > 1:",
        ":",
        PRECOMPUTED,
    ),
    Mutant(
        "a worker is offered the job of a precomputed decision",
        "gateway/store/writing.py",
        "job = resume_job(what.before) if takers and not what.is_fenced else None",
        "job = None",
        PRECOMPUTED,
    ),
    Mutant(
        "nobody takes a job while a thread is run around the decision",
        "gateway/store/handover.py",
        "if not self._takers or current() is not None:",
        "if not self._takers:",
        HANDOVER,
    ),
    Mutant(
        "a worker that stops takes no job",
        "gateway/resume/worker.py",
        "not stop.is_set()\n",
        "True\n",
        HANDOVER,
    ),
    Mutant(
        "a thread that has a job is not queued once more",
        "gateway/resume/orphans.py",
        "has_job = jobs is None or _is_among(job, jobs)",
        "has_job = jobs is None",
        "tests/resume/test_orphans.py",
    ),
    Mutant(
        "a thread that has a job is not queued once more where its reader begins",
        "gateway/resume/orphans.py",
        "if not _is_among(job, jobs):",
        "if True:",
        "tests/resume/test_orphans.py",
    ),
    *LEASES_TABLE,
    *PRECOMPUTED_STARTS_TABLE,
)

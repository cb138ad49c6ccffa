"""Ways to let somebody say where a thread rests who does not hold its lease."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ASKED = "gateway/api/operations.py"
OFFERED = "gateway/api/offered_leases.py"
READ = "gateway/protocol/thread_api.py"
THREADS = "tests/api/test_threads.py"

LEASES_TABLE = (
    Mutant(
        "nobody without a lease says where a thread rests",
        ASKED,
        "        if ref is None:\n            raise Refusal(LEASE_LOST",
        "        if False:\n            raise Refusal(LEASE_LOST",
        THREADS,
    ),
    Mutant(
        "nobody with another thread's lease says where a thread rests",
        ASKED,
        "        if ref.run != question.run:\n",
        "        if False:\n",
        THREADS,
    ),
    Mutant(
        "nobody whose lease is over says where a thread rests",
        ASKED,
        "            fences.enter_context(holding(tenant.threads.held(ref)))\n",
        "            pass\n",
        THREADS,
    ),
    Mutant(
        "a key names no lease of an agent that it is not for",
        ASKED,
        "        check_agents(key, [ref.run.agent])\n    if isinstance",
        "        pass\n    if isinstance",
        THREADS,
    ),
    Mutant(
        "a header that is no lease is refused",
        ASKED,
        "    if ref is None and text is not None:\n",
        "    if False:\n",
        THREADS,
    ),
    Mutant(
        "the lease on another thread is none on this one",
        ASKED,
        "(ref is None or ref.run != run)",
        "ref is None",
        "tests/api/test_without_a_lease.py",
    ),
    Mutant(
        "the header of a lease is read whole",
        READ,
        "    found = _LEASE.fullmatch(text)\n",
        "    found = _LEASE.match(text)\n",
        THREADS,
    ),
    Mutant(
        "names in a lease are whole characters",
        READ,
        'unquote(one, errors="strict") for one in found.group(3, 4)',
        "unquote(one) for one in found.group(3, 4)",
        THREADS,
    ),
    Mutant(
        "the fence of a lease has an end",
        READ,
        "([0-9]{1,16}) ([0-9a-f]{32})",
        "([0-9]+) ([0-9a-f]{32})",
        THREADS,
    ),
    Mutant(
        "the token of a lease is read as it is made",
        READ,
        "([0-9]{1,16}) ([0-9a-f]{32})",
        "([0-9]{1,16}) ([0-9a-fA-F]+)",
        THREADS,
    ),
    Mutant(
        "who has gone is given no lease",
        OFFERED,
        "    if request.transport is None:\n",
        "    if False:\n",
        "tests/api/test_offered_leases.py",
    ),
    Mutant(
        "a key that ended while it waited is given no lease",
        OFFERED,
        "if await presented(request) is None:",
        "if False:",
        "tests/api/test_offered_leases.py",
    ),
    Mutant(
        "a key that may run nothing is given no lease",
        OFFERED,
        "if Scope.EXECUTE not in key.scopes:",
        "if False:",
        "tests/api/test_offered_leases.py",
    ),
    Mutant(
        "a lease whose answer was lost is taken by the same holder",
        "gateway/remote/leases.py",
        "token or new_token()",
        "new_token()",
        "tests/resume/test_offered_leases.py",
    ),
    Mutant(
        "a lease that nearly ended is taken again",
        "gateway/remote/leases.py",
        "offered.ends_s - now_s() > offered.lease_s / 2",
        "offered.ends_s > 0",
        "tests/resume/test_offered_leases.py",
    ),
    Mutant(
        "a run that is replaced gives back the lease it may have",
        "gateway/remote/thread_runs.py",
        '            await self._threads.lease(run, "free", token=token)',
        "            pass",
        "tests/resume/test_offered_leases.py",
    ),
    Mutant(
        "a lease ends here no later than at the gateway",
        "gateway/client/http_threads.py",
        "min(max(0.0, taken.waited_s), now_s() - asked_s)",
        "taken.waited_s",
        "tests/api/test_offered_leases.py",
    ),
    Mutant(
        "a key is sent to the gateway alone",
        "gateway/client/http_connection.py",
        "allow_redirects=False",
        "allow_redirects=True",
        "tests/client/test_http_sessions.py",
    ),
)

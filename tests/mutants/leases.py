"""Ways to let somebody say where a thread rests who does not hold its lease."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ASKED = "gateway/api/operations.py"
READ = "gateway/protocol/http_api.py"
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
        "a key is sent to the gateway alone",
        "gateway/client/http_connection.py",
        "allow_redirects=False",
        "allow_redirects=True",
        "tests/client/test_http_sessions.py",
    ),
)

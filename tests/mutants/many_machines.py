"""Ways to break a store of several machines."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

TENANTS = "tests/service/test_tenants.py"
CONFIRMING = "tests/store/test_confirming.py"
CLUSTER = "tests/store/test_cluster_connection.py"
DURABILITY = "tests/store/test_durability.py"
RECORDED = "tests/linearizability/test_recorded.py"
CHECKER = "tests/linearizability/test_verdicts.py"

MANY_MACHINES_TABLE = (
    Mutant(
        "what a replaced master says is not confirmed by the next one",
        "gateway/store/servers.py",
        "if before in {None, self._place}:",
        "if True:",
        "tests/store/test_sentinel_connection.py",
    ),
    Mutant(
        "what many processes do to an approval has an order",
        "gateway/store/lua/change.lua",
        "if has_moved(change, now, added) then return {'moved'} end\n",
        "",
        RECORDED,
    ),
    Mutant(
        "the checker takes nothing before its call",
        "tests/linearizability/checker.py",
        "if ends is not None and one.called > ends:",
        "if False:",
        CHECKER,
    ),
    Mutant(
        "the checker lets open operations take effect",
        "tests/linearizability/checker.py",
        "if after != state or not one.is_open:",
        "if not one.is_open:",
        CHECKER,
    ),
    Mutant(
        "a sweep is of its tenant alone",
        "gateway/service/tenant_service.py",
        "self._keys = store.keys_of_tenant(tenant)",
        'self._keys = store.keys_of_tenant("default")',
        TENANTS,
    ),
    Mutant(
        "a process takes the jobs of its tenant alone",
        "gateway/resume/worker.py",
        "self._store.keys_of_tenant(self._tenant), stop",
        'self._store.keys_of_tenant("default"), stop',
        TENANTS,
    ),
    Mutant(
        "each server is asked for its own time",
        "gateway/store/connection.py",
        '["EXISTS", near], ["TIME"]',
        '["EXISTS", ""], ["TIME"]',
        "tests/clock/test_clocks_of_masters.py",
    ),
    Mutant(
        "a failover while a process registers does not end its start",
        "gateway/service/process_check.py",
        "await until_usable(registration.enter, store.conn.url)",
        "await registration.enter()",
        "tests/resume/test_failover_at_start.py",
    ),
    Mutant(
        "what no replica has is not acknowledged",
        "gateway/store/connection.py",
        "        if replicas:\n",
        "        if True:\n",
        CONFIRMING,
    ),
    Mutant(
        "a master that lacks a write confirms it not",
        "gateway/store/connection.py",
        "if is_kept is None:",
        "if False:",
        CONFIRMING,
    ),
    Mutant(
        "an answer about an unconfirmed write waits for replicas",
        "gateway/store/changing.py",
        "if not self._conn.confirmed_by or",
        "if True or",
        CONFIRMING,
    ),
    Mutant(
        "writes and their mark are one transaction",
        "gateway/store/connection.py",
        '[("MULTI",), *commands, written, ("EXEC",), wait]',
        '[*commands, ("MULTI",), written, ("EXEC",), wait]',
        CLUSTER,
    ),
    Mutant(
        "a server that has a slot only in part confirms nothing",
        "gateway/store/servers.py",
        "isinstance(error, AskError) and not _waits(commands)",
        "isinstance(error, AskError)",
        CLUSTER,
    ),
    Mutant(
        "what nobody would make again waits for replicas",
        "gateway/store/connection.py",
        "            if self.confirmed_by:\n                done = await",
        "            if False:\n                done = await",
        CONFIRMING,
    ),
    Mutant(
        "a turn that is submitted again waits for replicas",
        "gateway/store/agent_load.py",
        "if reply[2] is not None and self._conn.confirmed_by:",
        "if False:",
        CONFIRMING,
    ),
    Mutant(
        "a store with replicas is opened to wait for them",
        "gateway/store/durability.py",
        "conn.confirmed_by = int(any(facts.needed_replicas for facts in every))",
        "conn.confirmed_by = 0",
        CONFIRMING,
    ),
    Mutant(
        "a click that is not confirmed gives more time once",
        "bot/listeners/card_actions.py",
        "    except NotConfirmed:\n",
        "    except ZeroDivisionError:\n",
        "tests/bot/listeners/test_unconfirmed.py",
    ),
    Mutant(
        "a failover without a replica to confirm is refused",
        "gateway/store/durability.py",
        "(facts.replicas or facts.has_sentinels)",
        "facts.replicas",
        DURABILITY,
    ),
    Mutant(
        "a replay that a failover let through changes nothing",
        "gateway/store/cards.py",
        "        if not self._conn.confirmed_by:\n            return True\n",
        "        if True:\n            return True\n",
        "tests/bot/test_replays_after_failover.py",
    ),
    Mutant(
        "what no replica keeps of a request does not take effect",
        "bot/listeners/command.py",
        "    await ctx.ensure_first(command.digest)\n    result =",
        "    result =",
        "tests/bot/test_replays_after_failover.py",
    ),
    Mutant(
        "a start waits for a failover to end",
        "gateway/store/open_store.py",
        "if waits and engine is None:",
        "if False:",
        "tests/store/test_usable.py",
    ),
    Mutant(
        "a start does not wait for what no failover ends",
        "gateway/store/usable.py",
        "if not can_pass(error) or waited_s",
        "if waited_s",
        "tests/store/test_usable.py",
    ),
)

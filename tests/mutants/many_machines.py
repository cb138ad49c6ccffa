"""Ways to break a store of several shards."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from tests.mutants.split import SPLIT_TABLE

SHARDS = "tests/service/test_shards.py"
COUNT = "tests/store/test_shard_count.py"
CONFIRMING = "tests/store/test_confirming.py"
CLUSTER = "tests/store/test_cluster_connection.py"
DURABILITY = "tests/store/test_durability.py"
UPGRADE = "tests/resume/test_rolling_upgrade.py"
RECORDED = "tests/linearizability/test_recorded.py"
CHECKER = "tests/linearizability/test_verdicts.py"

MANY_MACHINES_TABLE = (
    *SPLIT_TABLE,
    Mutant(
        "what a replaced master says is not confirmed by the next one",
        "gateway/store/sentinel.py",
        "if self._place not in {None, place}:",
        "if False:",
        "tests/store/test_sentinel_connection.py",
    ),
    Mutant(
        "what many processes do to an approval has an order",
        "gateway/store/lua/change.lua",
        "if has_moved(change, now) then return {'moved'} end\n",
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
        "the number of shards of a store never changes",
        "gateway/store/shard_count.py",
        "if kept != shards:",
        "if False:",
        COUNT,
    ),
    Mutant(
        "of two first starts with two numbers one is refused",
        "gateway/store/shard_count.py",
        'shards, "NX"])\n        kept = number(await conn.command("GET", key))',
        'shards, "NX"])\n        kept = shards',
        COUNT,
    ),
    Mutant(
        "the setting of shards reaches the store",
        "gateway/store/open_store.py",
        "Store(url, secrets=secrets, shards=shards, engine=engine, split=split)",
        "Store(url, secrets=secrets, engine=engine, split=split)",
        COUNT,
    ),
    Mutant(
        "a sweep reaches every shard",
        "gateway/service/sweep.py",
        "for keys in self._store.every_shard()]",
        "for keys in self._store.every_shard()[:1]]",
        SHARDS,
    ),
    Mutant(
        "a shard that hangs stops no other's clock",
        "gateway/running.py",
        "for keys in store.every_shard():",
        "for keys in store.every_shard()[:1]:",
        SHARDS,
    ),
    Mutant(
        "a process takes no job of another shard",
        "gateway/resume/worker.py",
        "parts = self._store.parts_of(self._tenant)",
        "parts = self._store.every_shard()[:1]",
        SHARDS,
    ),
    Mutant(
        "what no replica has is not acknowledged",
        "gateway/store/confirming.py",
        "            if replicas:\n",
        "            if True:\n",
        CONFIRMING,
    ),
    Mutant(
        "a master that lacks a write confirms it not",
        "gateway/store/confirming.py",
        "if is_kept is None:",
        "if False:",
        CONFIRMING,
    ),
    Mutant(
        "an answer about an unconfirmed write waits for replicas",
        "gateway/store/approvals.py",
        "if not self._conn.confirmed_by or",
        "if True or",
        CONFIRMING,
    ),
    Mutant(
        "writes and their mark are one transaction",
        "gateway/store/confirming.py",
        '[("MULTI",), *batch.commands, written, ("EXEC",), wait]',
        '[*batch.commands, ("MULTI",), written, ("EXEC",), wait]',
        CLUSTER,
    ),
    Mutant(
        "a server that has a slot only in part confirms nothing",
        "gateway/store/cluster.py",
        "isinstance(error, AskError) and not _waits(commands)",
        "isinstance(error, AskError)",
        CLUSTER,
    ),
    Mutant(
        "a write that comes while others are sent is not confirmed with them",
        "gateway/store/confirming.py",
        "                    del self._gathering[tag]\n",
        "                    pass\n",
        CONFIRMING,
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
        "bot/listeners/time_buttons.py",
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
        "a job of a newer version is left to it",
        "gateway/store/jobs.py",
        "if is_newer(body):",
        "if False:",
        UPGRADE,
    ),
    Mutant(
        "an event of a newer version is left to it",
        "gateway/store/outbox.py",
        "if is_ours and is_newer(self._body(entry)):",
        "if False:",
        UPGRADE,
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
        "bot/listeners/freeze_command.py",
        "    await ctx.ensure_first(command.digest)\n",
        "",
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

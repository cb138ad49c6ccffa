"""Ways to break a store of several shards."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SHARDS = "tests/service/test_shards.py"
COUNT = "tests/store/test_shard_count.py"
UPGRADE = "tests/resume/test_rolling_upgrade.py"

MANY_MACHINES_TABLE = (
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
        'shards, "NX")\n        kept = number(await conn.command("GET", key))',
        'shards, "NX")\n        kept = shards',
        COUNT,
    ),
    Mutant(
        "the setting of shards reaches the store",
        "gateway/store/open_store.py",
        "Store(url, shards=shards, engine=engine)",
        "Store(url, engine=engine)",
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
        "self._read(self._store.keys_of_tenant(self._tenant), stop)",
        "self._read(self._store.every_shard()[0], stop)",
        SHARDS,
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
        'if is_newer(entry.values.get("e", b"")):',
        "if False:",
        UPGRADE,
    ),
)

"""A server that could lose an acknowledged decision is refused, with the remedy."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest

from keyturn.gateway.errors import UnsafeStore
from keyturn.gateway.store.connection.connection import Connection, Reply
from keyturn.gateway.store.connection.durability import (
    EngineFacts,
    durability_problems,
    ensure_durable,
    read_facts,
)
from keyturn.gateway.store.embedded.engine import EmbeddedEngine

SAFE = EngineFacts(
    software="valkey",
    version="9.1.2",
    settings={
        "appendonly": "yes",
        "appendfsync": "always",
        "no-appendfsync-on-rewrite": "no",
        "maxmemory-policy": "noeviction",
        "min-replicas-to-write": "0",
    },
)


def with_setting(name: str, value: str) -> EngineFacts:
    return replace(SAFE, settings={**(SAFE.settings or {}), name: value})


@pytest.fixture
async def conn(valkey_url: str) -> AsyncGenerator[Connection]:
    opened = Connection(valkey_url)
    yield opened
    for name, value in (SAFE.settings or {}).items():
        await opened.command("CONFIG SET", name, value)
    await opened.close()


@pytest.mark.parametrize(
    ("software", "version", "is_good"),
    [
        ("redis", "7.0.15", True),
        ("redis", "6.2.14", False),
        ("valkey", "8.1.8", True),
        ("valkey", "7.2.5", False),
        ("dragonfly", "1.30.0", False),
        ("redis", "?", False),
    ],
)
def test_untried_engines_fail(software: str, version: str, *, is_good: bool) -> None:
    problems = durability_problems(replace(SAFE, software=software, version=version))

    assert (problems == []) is is_good


@pytest.mark.parametrize(
    ("facts", "remedy"),
    [
        (with_setting("appendonly", "no"), "run: CONFIG SET appendonly yes"),
        (with_setting("appendfsync", "everysec"), "run: CONFIG SET appendfsync always"),
        (
            with_setting("maxmemory-policy", "allkeys-lru"),
            "run: CONFIG SET maxmemory-policy noeviction",
        ),
        (replace(SAFE, replicas=1), "run: CONFIG SET min-replicas-to-write 1"),
        (replace(SAFE, role="slave"), "set KEYTURN_REDIS_URL to its master"),
        (replace(SAFE, settings=None), "ACL SETUSER"),
        (replace(SAFE, clock_offset_s=-5.0), "switch on NTP"),
        (replace(SAFE, settings={}), "appendonly is ''"),
    ],
)
def test_every_danger_comes_with_what_to_do(facts: EngineFacts, remedy: str) -> None:
    problems = durability_problems(facts)

    assert remedy in problems[0]


@pytest.mark.parametrize(
    ("software", "version", "threads", "is_good"),
    [
        ("redis", "8.2.3", "4", False),
        ("redis", "8.6.3", "1", True),
        ("redis", "8.0.6", "4", True),
        ("valkey", "9.1.2", "4", False),
        ("valkey", "9.1.2", "1", True),
    ],
)
def test_a_server_whose_threads_answer_before_it_writes_is_refused(
    software: str, version: str, threads: str, *, is_good: bool
) -> None:
    facts = with_setting("io-threads", threads)

    problems = durability_problems(replace(facts, software=software, version=version))

    said = f"io-threads is {threads!r}" in " ".join(problems)
    assert said is not is_good


async def test_the_threads_of_a_server_are_asked_for(conn: Connection) -> None:
    [facts] = await read_facts(conn)

    assert (facts.settings or {})["io-threads"] == "1"


def test_a_failover_needs_a_replica_and_waits_for_none_that_is_away() -> None:
    watched = replace(SAFE, has_sentinels=True, place="10.0.0.1:6379")
    [problem] = durability_problems(watched)
    assert problem.startswith(
        "10.0.0.1:6379: min-replicas-to-write is '0': a fail-over"
    )
    [problem] = durability_problems(with_setting("min-replicas-to-write", "1"))
    assert "0 replicas are connected, so every write is refused" in problem


async def test_the_embedded_engine_is_safe(tmp_path: Path) -> None:
    async with EmbeddedEngine(tmp_path / "engine") as engine:
        conn = Connection(engine.url)

        await ensure_durable(conn)
        [facts] = await read_facts(conn)

        await conn.close()
    assert facts.name.startswith("valkey 9.")
    assert abs(facts.clock_offset_s) < 1


async def test_an_unsafe_server_is_refused_with_every_problem(conn: Connection) -> None:
    await conn.command("CONFIG SET", "appendfsync", "everysec")
    await conn.command("CONFIG SET", "maxmemory-policy", "allkeys-lru")

    with pytest.raises(UnsafeStore) as caught:
        await ensure_durable(conn)

    assert "CONFIG SET appendfsync always" in str(caught.value)
    assert "CONFIG SET maxmemory-policy noeviction" in str(caught.value)
    assert "--insecure-dev" in str(caught.value)


async def test_a_ban_on_config_is_refused(conn: Connection, valkey_url: str) -> None:
    await conn.command("ACL SETUSER", "managed", "on", ">pw", "~*", "+@all", "-config")
    managed = Connection(valkey_url.replace("://", "://managed:pw@"))

    with pytest.raises(UnsafeStore, match="CONFIG GET is forbidden here"):
        await ensure_durable(managed)

    await managed.close()
    await conn.command("ACL DELUSER", "managed")


async def test_of_a_server_too_old_only_the_version_is_named(
    conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = conn.on_each_master

    async def redis_6(name: str, *words: str | int) -> dict[str, Reply]:
        if name == "CONFIG GET":  # of several settings: an error before Redis 7
            return await asked("CONFIG GET")
        if name == "INFO":
            facts = {"redis_version": "6.2.14", "role": "master"}
            return dict.fromkeys(await asked("PING"), facts)
        return await asked(name, *words)

    monkeypatch.setattr(conn, "on_each_master", redis_6)

    with pytest.raises(UnsafeStore) as caught:
        await ensure_durable(conn)

    assert (
        "The server is redis 6.2.14; use Redis 7 or newer, or Valkey 8 or newer."
        in str(caught.value)
    )
    assert "CONFIG GET" not in str(caught.value)

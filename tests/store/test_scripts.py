"""Every Lua script says its contract on top, and Python keeps it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.store import (
    cards,
    delegations,
    failures,
    job_scripts,
    leases,
    members,
    scripts,
    stalled,
    threads,
    unasked,
)
from gateway.store.connection import Reply
from gateway.store.store import Store

LUA = Path(scripts.__file__).parent / "lua"
WRAPPERS: dict[str, Callable[..., object]] = {
    "open": scripts.open_turn,
    "decide": scripts.decide,
    "expire": scripts.expire,
    "supersede": scripts.supersede,
    "claim": scripts.claim,
    "finish": scripts.finish,
    "heartbeat": scripts.heartbeat,
    "lease": leases.lease,
    "reserve": scripts.reserve,
    "totals": scripts.totals,
    "freeze": scripts.freeze,
    "standing": scripts.standing,
    "ring": scripts.ring,
    "retime": scripts.retime,
    "delegate": delegations.delegate,
    "note": scripts.note,
    "attach": cards.attach,
    "put_aside": scripts.put_aside,
    "ask": scripts.ask,
    "fail": failures.fail,
    "tell": threads.tell,
    "unasked": unasked.unasked,
    "remember": scripts.remember,
    "requeue": job_scripts.requeue,
    "put_back": job_scripts.put_back,
    "stall": stalled.stall,
    "lose_card": cards.lose_card,
    "join": members.join,
}
SHARED = {"prelude", "fence"}
FILES = sorted(path.stem for path in LUA.glob("*.lua") if path.stem not in SHARED)


def header_names(name: str) -> list[str]:
    """Return the names of KEYS and ARGV in a script's header, in order."""
    source = (LUA / f"{name}.lua").read_text(encoding="utf-8")
    return re.findall(r"^-- (?:KEYS|ARGV)\[\d+(?:\.\.)?\] +(\w+)", source, re.MULTILINE)


def test_every_script_has_a_wrapper() -> None:
    assert sorted(WRAPPERS) == FILES


@pytest.mark.parametrize("name", FILES)
def test_a_scripts_header_is_its_wrappers_signature(name: str) -> None:
    parameters = list(inspect.signature(WRAPPERS[name]).parameters)

    assert parameters == ["conn", *header_names(name)]


@pytest.mark.parametrize("name", FILES)
def test_a_script_declares_its_keys_and_its_answers(name: str) -> None:
    lines = (LUA / f"{name}.lua").read_text(encoding="utf-8").splitlines()

    assert lines[0] == "#!lua"
    assert lines[1].startswith("-- ")
    assert "-- Returns:" in lines


@pytest.mark.parametrize("name", FILES)
def test_a_script_returns_only_words_of_its_header(name: str) -> None:
    source = (LUA / f"{name}.lua").read_text(encoding="utf-8")
    promised = set(re.findall(r'^--   \{"(\w+)"', source, re.MULTILINE))
    returned = set(re.findall(r"return \{'(\w+)'", source))

    assert returned == promised


async def test_scripts_are_loaded_again_after_the_server_forgot_them(
    store: Store,
) -> None:
    async def lease(verb: str) -> Reply:
        reply = await leases.lease(
            store.conn,
            lease="tk:{s0}:lease:x",
            fences="tk:{s0}:fences",
            verb=verb,
            token="me",
            ttl_ms=1000,
            above=0,
        )
        return reply[0]

    await lease("take")

    await store.conn.command("SCRIPT", "FLUSH")

    assert await lease("keep") == b"held"

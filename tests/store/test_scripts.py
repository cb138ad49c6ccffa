"""A Lua script is called by the names in its header, and keeps what that promises."""

from __future__ import annotations

import re

import pytest

from twokey.gateway.store import script
from twokey.gateway.store.connection import Reply
from twokey.gateway.store.leases import TAKE_LEASE
from twokey.gateway.store.script import Script
from twokey.gateway.store.store import Store

LUA = script.FOLDER
INCLUDED = {
    "hand_over": {"change"},
    "next_version": {"approve", "change", "change_many"},
    "precedents": {"approve", "change", "change_many", "open"},
}
"""Included files, and the scripts that include them."""
INCLUDING = ("precedents", "next_version", "hand_over")
"""The order in which files are included: each calls only those before it."""
SHARED = {"prelude", "lifetimes", "fence", *INCLUDED}
FILES = sorted(path.stem for path in LUA.glob("*.lua") if path.stem not in SHARED)


@pytest.mark.parametrize("name", FILES)
def test_a_script_uses_only_what_its_header_names(name: str) -> None:
    source = (LUA / f"{name}.lua").read_text(encoding="utf-8")
    code = re.sub(r"^--.*$", "", source, flags=re.MULTILINE)
    called = Script(name)

    for array, names in (("KEYS", called.keys), ("ARGV", called.args)):
        used = {int(place) for place in re.findall(rf"{array}\[(\d+)\]", code)}
        # The last name may be of a sequence, of which each place is used.
        takes_more = f"-- {array}[{len(names)}..] " in source
        assert takes_more or used <= set(range(1, len(names) + 1))


async def test_a_value_that_the_header_does_not_name_is_refused(store: Store) -> None:
    with pytest.raises(TypeError, match=r"requeue\.lua does not take exactly"):
        await Script("requeue")(store.conn, retry="a", jobs="b", limits=1)


async def test_a_prepared_script_runs_as_it_does_with_all_of_its_values(
    store: Store,
) -> None:
    nonce = {"retry": "tk:{s0}:a", "jobs": "tk:{s0}:b"}
    requeue = Script("requeue")

    prepared = requeue.prepared("limit", **nonce)

    assert await prepared(store.conn, 5) == await requeue(store.conn, **nonce, limit=5)


@pytest.mark.parametrize(
    ("last", "values"),
    [
        ("limit", {"retry": "a"}),
        ("limit", {"retry": "a", "jobs": "b", "limit": 1}),
        ("limits", {"retry": "a", "jobs": "b", "limit": 1}),
    ],
)
def test_a_script_is_prepared_with_what_its_header_names(
    last: str, values: dict[str, str | int]
) -> None:
    with pytest.raises(TypeError, match=r"requeue\.lua cannot be prepared"):
        Script("requeue").prepared(last, **values)


def test_a_fenced_script_is_not_prepared() -> None:
    """It is told of the leases of the moment in which it runs."""
    with pytest.raises(TypeError, match="cannot be prepared"):
        Script("requeue", is_fenced=True).prepared("limit", retry="a", jobs="b")


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


@pytest.mark.parametrize("name", sorted(INCLUDED))
def test_an_included_file_only_defines_functions_over_what_it_is_given(
    name: str,
) -> None:
    source = (LUA / f"{name}.lua").read_text(encoding="utf-8")
    code = re.sub(r"^ *--.*$", "", source, flags=re.MULTILINE)

    assert not re.search(r"KEYS|ARGV|return \{", code)
    assert {line[0] for line in code.splitlines() if line} == {" ", "l", "e"}
    at_top = [line for line in code.splitlines() if line.startswith("l")]
    # Constants of its own, too: numbers, and lists of names.
    constant = re.compile(r"local (function \w+\(|[A-Z_]+ = (\d|\{'))")
    assert all(constant.match(one) for one in at_top)
    including = {one for one in FILES if f"-- include {name}.lua\n" in source_of(one)}
    assert including == INCLUDED[name]


def without_comments(source: str) -> str:
    return re.sub(r"^ *--.*$", "", source, flags=re.MULTILINE)


def source_of(name: str) -> str:
    return (LUA / f"{name}.lua").read_text(encoding="utf-8")


async def test_scripts_are_loaded_again_after_the_server_forgot_them(
    store: Store,
) -> None:
    async def lease(verb: str) -> Reply:
        reply = await TAKE_LEASE(
            store.conn,
            lease="tk:{s0}:lease:x",
            fences="tk:{s0}:fences",
            verb=verb,
            token="me",
            ttl_ms=1000,
            above=0,
            reach=0,
        )
        return reply[0]

    await lease("take")

    await store.conn.command("SCRIPT", "FLUSH")

    assert await lease("keep") == b"held"


@pytest.mark.parametrize("name", FILES)
def test_a_script_has_every_shared_function_that_it_calls(name: str) -> None:
    shared = "".join(map(source_of, ["prelude", "lifetimes", *INCLUDING]))
    functions = set(re.findall(r"^local function (\w+)", shared, re.MULTILINE))

    code = without_comments(script.with_called(shared, source_of(name)))

    defined = set(re.findall(r"^local function (\w+)", code, re.MULTILINE))
    called = {one for one in functions if re.search(rf"\b{one}\(", code)}
    assert defined & functions == called


@pytest.mark.parametrize("name", FILES)
def test_a_script_has_every_constant_that_it_uses_and_no_other(name: str) -> None:
    shared = "".join(map(source_of, ["prelude", "lifetimes", *INCLUDING]))
    code = without_comments(script.with_called(shared, source_of(name)))
    code = re.sub(r"'[^'\n]*'", "", code)
    used = set(re.findall(r"\b[A-Z][A-Z_]+\b", code)) - {"KEYS", "ARGV"}

    lists = re.findall(r"^local ([A-Z][A-Z_, ]+) =", code, re.MULTILINE)

    assert used == {one for names in lists for one in names.split(", ")}


def test_what_a_script_does_not_use_of_what_is_shared_is_left_out() -> None:
    shared = (
        "local FEW, MOST = 2, 3\n"
        "local function one()\n  return MOST\nend\n"
        "local OTHER = {a = true,\n  b = true}\n"
        "-- Calls one(), it says.\n"
        "local function two()\n  return one()\nend\n"
        "local function three()\n  return OTHER\nend\n"
    )

    assert script.with_called(shared, "-- three()\ntwo()\n") == (
        "local FEW, MOST = 2, 3\n"
        "local function one()\n  return MOST\nend\n"
        "local function two()\n  return one()\nend\n"
        "-- three()\ntwo()\n"
    )
    assert script.with_called(shared, "five(OTHER)\n") == (
        "local OTHER = {a = true,\n  b = true}\nfive(OTHER)\n"
    )
    assert script.with_called(shared, "five()\n") == "five()\n"


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 32, 33, 1000])
async def test_bytes_in_hex_are_read_as_they_were(store: Store, length: int) -> None:
    raw = bytes(250 + place & 255 for place in range(length))
    prelude = (LUA / "prelude.lua").read_text(encoding="utf-8")
    code = (
        f"#!lua\n{prelude}\nlocal raw = from_hex(ARGV[1])\nreturn {{raw, to_hex(raw)}}"
    )

    assert await store.conn.evalsha(code, ["tk:{s0}:x"], [raw.hex()]) == [
        raw,
        raw.hex().encode(),
    ]

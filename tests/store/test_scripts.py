"""A Lua script is called by the names in its header, and keeps what that promises."""

from __future__ import annotations

import json
import re

import pytest

from keyturn.gateway.store.scripts import script
from keyturn.gateway.store.scripts.script import FOLDER, Script
from keyturn.gateway.store.store import Store

LUA = script.FOLDER
INCLUDED = ("records", "lifetimes", "windows", "precedents", "next_version")
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


@pytest.mark.parametrize("name", INCLUDED)
def test_an_included_file_defines_functions_only(name: str) -> None:
    source = (LUA / f"{name}.lua").read_text(encoding="utf-8")
    code = re.sub(r"^ *--.*$", "", source, flags=re.MULTILINE)

    assert not re.search(r"\b(KEYS|ARGV)\b|return \{'", code)
    assert {line[0] for line in code.splitlines() if line} <= {" ", "l", "e", "}"}
    at_top = [line for line in code.splitlines() if line.startswith("l")]
    # Constants, too: numbers, and lists of names.
    constant = re.compile(r"local (function \w+\(|[A-Z_]+ = [\d{])")
    assert all(constant.match(one) for one in at_top)


def without_comments(source: str) -> str:
    return re.sub(r"^ *--.*$", "", source, flags=re.MULTILINE)


def source_of(name: str) -> str:
    return (LUA / f"{name}.lua").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", FILES)
def test_a_script_includes_all_that_it_uses_of_what_is_shared(name: str) -> None:
    included = re.findall(r"^-- include (\w+)\.lua$", source_of(name), re.MULTILINE)
    given = ["prelude", *included]
    code = without_comments("".join(map(source_of, [*given, name])))
    defined = re.compile(r"^local function (\w+)", re.MULTILINE)
    left_out = "".join(map(source_of, {*INCLUDED} - {*included}))
    names = {*defined.findall(left_out)} - {*defined.findall(code)}

    assert included == [one for one in INCLUDED if one in included]
    assert [one for one in names if re.search(rf"\b{one}\(", code)] == []


# Scripts name many fields of a hash in one command.

# More than an approval of 99 items has.
MANY = 1_000
HASH_HEX = "00ff" * 16

_SHARED = "#!lua\n" + "".join(
    (FOLDER / f"{name}.lua").read_text(encoding="utf-8")
    for name in ("prelude", "records")
)
_BODY = """
local key, fields, deleted = KEYS[1], cjson.decode(ARGV[1]), cjson.decode(ARGV[2])
write_fields(key, fields)
local answer = {
  redis.call('HLEN', key),
  differs(key, fields) and 1 or 0,
  differs(key, cjson.decode(ARGV[3])) and 1 or 0,
  redis.call('HGET', key, 'h'),
}
write_fields(key, deleted)
answer[#answer + 1] = redis.call('HLEN', key)
redis.call('DEL', key)
return answer
"""


@pytest.mark.parametrize("other", [{f"f{MANY - 1}": "x"}, {"absent": "x"}, {"h": ""}])
async def test_each_item_has_its_fields(store: Store, other: dict[str, str]) -> None:
    fields = {f"f{index}": str(index) for index in range(MANY)} | {"h": HASH_HEX}
    deleted = dict.fromkeys(fields, False)
    source = _SHARED + _BODY
    documents = [json.dumps(one) for one in (fields, deleted, fields | other)]

    found = await store.conn.evalsha(source, ["tk:{default}:many"], documents)

    assert found == [MANY + 1, 0, 1, bytes.fromhex(HASH_HEX), 0]


async def test_what_is_not_there_is_as_empty_as_it_was_read(store: Store) -> None:
    source = _SHARED + "return {differs(KEYS[1], cjson.decode(ARGV[1])) and 1 or 0}"

    found = [
        await store.conn.evalsha(source, ["tk:{default}:many"], [json.dumps(fields)])
        for fields in ({}, {"a": ""}, {"a": "", "b": "1"})
    ]

    assert found == [[0], [0], [1]]

"""Scripts name many fields of a hash in one command, as many as Lua passes."""

from __future__ import annotations

import json

import pytest

from keyturn.gateway.store.scripts.script import FOLDER
from keyturn.gateway.store.store import Store

# More than the arguments that Lua passes to one call.
MANY = 9_000
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
async def test_as_many_fields_as_there_are_get_written_compared_and_deleted(
    store: Store, other: dict[str, str]
) -> None:
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

"""The answer to a write is stored for a repeated request, and readable only for it."""

from __future__ import annotations

from keyturn.gateway.store.http.kept_answers import KeptAnswer, KeptAnswers
from keyturn.gateway.store.sealing.encryption import MARK, unpacked
from keyturn.gateway.store.sealing.sealing import MARK as SEAL_MARK
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.seals import SEAL_BYTES

WORD = "canary-answered"
ANSWER = KeptAnswer(request="hash", body=WORD)


def answers(store: Store) -> KeptAnswers:
    return KeptAnswers(store, tenant="default")


async def stored(store: Store, key: str) -> bytes:
    name = store.keys_of_tenant("default").http_answer("support", key)
    found = await store.conn.command("GET", name)
    assert isinstance(found, bytes)
    return found[len(SEAL_MARK) + SEAL_BYTES :]


async def test_an_answer_is_encrypted_and_found_again(store: Store) -> None:
    plain = answers(store)
    await plain.keep("support", "k1", ANSWER)
    store.conn.encrypts = True
    await answers(store).keep("support", "k2", ANSWER)

    assert WORD.encode() in unpacked(await stored(store, "k1"))
    assert (await stored(store, "k2")).startswith(MARK)
    store.conn.encrypts = False
    for key in ("k1", "k2"):
        assert await plain.find("support", key) == ANSWER

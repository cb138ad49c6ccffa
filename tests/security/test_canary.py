"""With `encrypt_store` no word of a person, an agent or a tool is in the store."""

from __future__ import annotations

import secrets
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, cast

import pytest

from keyturn.gateway.approvals import waiting_changes
from keyturn.gateway.approvals.decisions import Approve, Edit, Reject, Respond
from keyturn.gateway.approvals.events import (
    Event,
    EventName,
    SecurityEvent,
    SecurityKind,
)
from keyturn.gateway.errors import CorruptRecord
from keyturn.gateway.prometheus import exposition
from keyturn.gateway.protocol.records import ItemState, Result
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef
from keyturn.gateway.service.report.audit_reading import StatisticsService
from keyturn.gateway.store.connection.connection import Connection, Reply, entries, text
from keyturn.gateway.store.events.outbox import Backlog
from keyturn.gateway.store.runs.jobs import Job, JobKind, input_of
from keyturn.gateway.store.runs.threads import ThreadFacts
from keyturn.gateway.store.sealing.encryption import MARK, unpacked
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.seals import SEAL_BYTES
from tests.service.harness import ANA, BEN, DAN, ServiceHarness, claim_of
from tests.service.standing import allowed, allowing, refund
from tests.store_secrets import SECRETS
from tests.streams import announced, audit_entries


class Canaries(NamedTuple):
    """Unique words: the server also has the data of other tests."""

    argument: str
    person: str
    agent: str
    tool: str

    @property
    def args(self) -> JsonObject:
        return {"amount": 5, "note": self.argument, "deep": [{"x": [self.argument]}]}


@pytest.fixture
def words() -> Canaries:
    return Canaries(*(f"canary-{secrets.token_hex(8)}" for _ in range(4)))


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    store.conn.encrypts = True
    return ServiceHarness(store)


async def whole_life(harness: ServiceHarness, words: Canaries) -> None:
    """Put the canaries into every field that people, agents and tools fill."""
    facts = ThreadFacts(requester=DAN.with_(name=words.person))
    for thread in ("t1", "t2", "t3"):
        await harness.store.threads.change(
            harness.keys, "support", thread, lambda _: facts, why="begin"
        )
    job = Job(
        kind=JobKind.START, tenant="default", agent="support", thread="t9",
        input=words.person, id="1",
    )  # fmt: skip
    await harness.store.threads.ask(harness.keys, job, "m", lambda _: facts)
    claim, fence = await _edited_and_approved(harness, words)
    result = Result(ok=False, summary=words.tool, payload=f'"{words.tool}"')
    await harness.agents.finish(claim, fence, result)
    _, [verdict] = await harness.submit(("process_refund", words.args), thread="t2")
    await harness.decide(verdict, Reject(reason=words.person))
    await harness.submit(
        ("process_refund", words.args), ("send_email", words.args), thread="t2"
    )
    _, [verdict] = await harness.submit(("process_refund", words.args), thread="t3")
    await harness.decide(verdict, Respond(message=words.person))


async def _edited_and_approved(
    harness: ServiceHarness, words: Canaries
) -> tuple[str, int]:
    ref = TurnRef(agent="support", thread="t1", message_id="m-first")
    call = ProposedCall(tool="process_refund", args=words.args, tool_call_id="c0")
    [verdict] = await harness.agents.submit(
        Turn(ref=ref, calls=(call,), says=words.agent)
    )
    click = await harness.click(verdict)
    await harness.reviews.report(click.approval, BEN, words.person)
    await harness.reviews.change_own(
        click.approval, waiting_changes.ask, None, ANA, words.person
    )
    edited = Edit(args={**words.args, "amount": 4}, reason=words.person)
    await harness.decide(verdict, edited)
    item = await harness.item(verdict.item_id)
    if item.state is ItemState.PENDING:
        click = await harness.click(verdict)
        await harness.reviews.decide(click, Approve(reason=words.person), BEN)
    claimed = await harness.granted(claim_of(ref, verdict))
    return verdict.item_id, claimed.fence


_READ = {
    "string": ("GET",),
    "hash": ("HGETALL",),
    "set": ("SMEMBERS",),
    "zset": ("ZRANGE", 0, -1),
    "stream": ("XRANGE", "-", "+"),
    "list": ("LRANGE", 0, -1),
}


async def dump(conn: Connection) -> dict[str, bytes]:
    """Return everything that a server contains, by key."""
    found: dict[str, bytes] = {}
    names = cast("list[Reply]", await conn.command("KEYS", "*"))
    for name in map(text, names):
        kind = text(await conn.command("TYPE", name))
        command, *rest = _READ[kind]
        reply = await conn.command(str(command), name, *rest)
        found[name] = b"\n".join(_bytes(reply))
    return found


def _bytes(reply: Reply) -> Iterator[bytes]:
    if isinstance(reply, dict):
        for key, value in cast("dict[object, Reply]", reply).items():
            yield from (str(key).encode(), *_bytes(value))
    elif isinstance(reply, list | tuple):
        for one in cast("list[Reply]", reply):
            yield from _bytes(one)
    else:
        found = reply if isinstance(reply, bytes) else str(reply).encode()
        yield from (found, *inflated(found))


ZLIB = 0x78
"""First byte of a zlib stream."""


def inflated(value: bytes) -> Iterator[bytes]:
    """Return the compressed parts of a value, at any offset."""
    for at, number in enumerate(value):
        if number == ZLIB:
            with suppress(ValueError):
                yield unpacked(value[at:])


def files_of(folder: Path) -> bytes:
    """Return what the server wrote to its disk."""
    files = [one for one in folder.rglob("*") if one.is_file()]
    return b"".join(one.read_bytes() for one in files)


async def test_no_canary_is_in_any_key_or_file_of_the_store(
    harness: ServiceHarness, words: Canaries, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    await whole_life(harness, words)

    found = await dump(harness.store.conn)
    leaks = {
        (name, word)
        for name, body in found.items()
        for word in words
        if word.encode() in body or word in name
    }
    assert not leaks
    assert not [word for word in words if word in caplog.text]
    conn = harness.store.conn
    reply = await conn.command("CONFIG GET", "dir")
    folder = Path(list(_bytes(reply))[1].decode())
    written = files_of(folder)
    assert b"XADD" in written
    assert not [word for word in words if word.encode() in written]


async def test_no_canary_is_in_what_metrics_or_errors_say(
    harness: ServiceHarness, words: Canaries
) -> None:
    await whole_life(harness, words)
    store, keys = harness.store, harness.keys
    metrics = await StatisticsService(store).metrics()
    texts = [str(metrics), exposition(metrics, {}, (0, 0), Backlog(0)).decode()]
    # One that remembers no record.
    reader, refused = Store(store.conn.url, secrets=SECRETS), 0
    for name in await dump(store.conn):
        if not name.startswith(keys.head("ap_")):
            continue
        # A damaged record is refused, and its contents are not repeated.
        damage = "return redis.call('HSET', KEYS[1], 'rev', 99)"
        await store.conn.command("EVAL", damage, 1, name)
        approval_id = name.removeprefix(keys.head(""))
        try:
            await reader.approvals.load(approval_id)
        except CorruptRecord as error:
            texts += traceback.format_exception(error)
            refused += 1

    await reader.close()
    assert refused
    assert "process_refund" in texts[0] + texts[1]
    assert not [word for word in words if any(word in one for one in texts)]


async def test_an_unencrypted_store_has_canaries(store: Store, words: Canaries) -> None:
    """The test above looks where they would be."""
    await whole_life(ServiceHarness(store), words)

    found = b"\n".join((await dump(store.conn)).values())

    assert [word for word in words if word.encode() not in found] == []


async def test_events_jobs_and_rejections_are_read_with_the_secret(
    harness: ServiceHarness, words: Canaries
) -> None:
    await whole_life(harness, words)
    there = Store(harness.store.conn.url, secrets=(b"n" * 32, *SECRETS), lease_ms=2000)
    keys = there.keys_of_tenant("default")

    told = await announced(there.conn, keys)
    logged = await audit_entries(there.conn, keys)
    queue = there.queue(keys)
    await queue.prepare()
    found = [await queue.take(block_ms=1) for _ in range(10)]

    rejected = [one for one in logged if one.name is EventName.ITEM_REJECTED]
    assert [one.reason for one in rejected] == [words.person]
    assert {one.name for one in logged} >= {one.name for one in told}
    jobs = [one.job for one in found if one and one.job.kind is JobKind.START]
    assert [input_of(there.sealing, one) for one in jobs] == [words.person]
    facts = await there.threads.facts(keys, "support", "t9")
    assert facts.requester
    assert facts.requester.name == words.person
    await there.close()


async def test_texts_of_streams_and_approvals_are_encrypted(store: Store) -> None:
    store.conn.encrypts = True
    harness, keys = allowing(store), store.keys_of_tenant("default")
    standing = await allowed(harness)
    await harness.submit(refund(20, "second"), thread="next")
    # A call that runs at once is in no record: the turn keeps its verdicts.
    await harness.submit(
        refund(20, "third"), ("look_up_order", {"id": "1"}), thread="last"
    )
    finished = Event(name=EventName.RUN_FINISHED, tenant="default").model_dump_json()
    await store.threads.announce(
        keys, "support", "t9", what="ended", mark="1",
        outbox_event=finished, audit_event=finished
    )  # fmt: skip
    outbox = store.outbox(keys, reader="r")
    await outbox.put(Event(name=EventName.RUN_FINISHED, tenant="default"))
    found = SecurityEvent(
        kind=SecurityKind.SEAL_WRONG, tenant="default", about="record"
    )
    await store.security.report(keys, found)

    for stream in (keys.outbox, keys.audit):
        told = entries(await store.conn.command("XRANGE", stream, "-", "+"))
        assert len(told) > 5
        assert {one.values["e"][:1] for one in told} == {MARK}
    document = await store.conn.command("GET", keys.document(standing.id))
    assert isinstance(document, bytes)
    assert document.startswith(MARK)
    for turn in cast("list[Reply]", await store.conn.command("KEYS", "*:turn:*")):
        verdicts = await store.conn.command("GET", text(turn))
        assert isinstance(verdicts, bytes)
        # Behind its approvals, the mark and the seal.
        assert verdicts.partition(b"\n")[2][1 + SEAL_BYTES :].startswith(MARK)


async def test_an_event_of_another_store_is_none(harness: ServiceHarness) -> None:
    store = harness.store
    await harness.refund()
    here, other = store.keys_of_tenant("default"), store.keys_of_tenant("other")
    reply = await store.conn.command("XRANGE", here.outbox, "-", "+", "COUNT", 1)
    event = entries(reply)[0].values["e"]
    assert event.startswith(b"\x1e")
    await store.conn.command("XADD", other.outbox, "*", "e", event, "at", 1)

    outbox = store.outbox(other, reader="r")
    await outbox.prepare()

    assert await outbox.take("c", block_ms=1) == []
    assert outbox.corrupt == 1

"""`approve.lua` compares what `change.lua` compares, and writes what it writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import pytest

from tests.service.harness import ANA, CHLOE, POLICY, ServiceHarness
from tests.service.showing import shown
from tests.service.test_precomputed_as_stored import (
    COUNTED,
    NAMED,
    everything,
    plain,
    put_back,
)
from twokey.gateway.approvals.decisions import Approve, Click, Gesture
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.service.as_shown import Place
from twokey.gateway.store.approve_texts import APPROVE, ApproveTexts
from twokey.gateway.store.cards import seen_request
from twokey.gateway.store.connection import Argument, Connection, Reply
from twokey.gateway.store.freeze_list import sealed_key
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.next_version import CHANGE
from twokey.gateway.store.response_urls import kept_url
from twokey.gateway.store.store import Store

KEYS = Keys("s0")
REQUEST = "sha256:" + "a" * 64
PRESSED = ANA.with_(gesture=Gesture.BUTTON, membership_age_ms=1234)
DISPLAY = "sha256:" + "d" * 64
SEEN = seen_request(KEYS, REQUEST)
URL = kept_url(KEYS, "C0APPROVALS", "17.1", "https://hooks.slack.com/actions/1")
HERE = Place(
    "C0APPROVALS", "17.1", ANA.user, display=DISPLAY, seen=SEEN, kept=[URL]
)  # fmt: skip
MINUTE_MS = 60_000


class Held(Exception):
    """What would have been sent was held back."""


@dataclass(frozen=True)
class Sent:
    """What a script would have been told, by its source, KEYS and ARGV."""

    source: str
    keys: list[str]
    args: list[Argument]

    def with_arg(self, name: str, value: Argument) -> Sent:
        """Return it with another value under a name of the header."""
        args = list(self.args)
        args[APPROVE.args.index(name)] = value
        return replace(self, args=args)

    def with_text(self, old: Argument, new: Argument) -> Sent:
        """Return it with another text in place of one that stands there once."""
        assert self.args.count(old) == 1
        return replace(self, args=[new if one == old else one for one in self.args])


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return ServiceHarness(store)


async def clicked(harness: ServiceHarness, *calls: tuple[str, JsonObject]) -> Click:
    """Show calls on a card that this process drew; return a click on the first."""
    click = await shown(harness, *calls)
    cards = harness.store.cards
    await cards.posted(KEYS, click.approval, channel=HERE.channel, ts=HERE.ts)
    await cards.shown(
        KEYS, click.approval, tenant="default", rev=1, display_digest=DISPLAY
    )
    return click.with_(request_digest=REQUEST, display_digest=DISPLAY)


async def held(harness: ServiceHarness, click: Click) -> Sent:
    """Approve as it was precomputed; return what the script would have been told."""
    found: list[Sent] = []

    async def evalsha(
        _conn: Connection,
        source: str,
        keys: Sequence[str],
        args: Sequence[Argument],
        *,
        writes: bool = True,
    ) -> NoReturn:
        assert writes
        found.append(Sent(source, [*keys], [*args]))
        raise Held

    as_shown = harness.reviews.as_shown
    assert await harness.reviews.read_as_of_now(click.approval)
    as_shown.precompute(click.approval)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "evalsha", evalsha)
        with pytest.raises(Held):
            await as_shown.approve(click, PRESSED, HERE)
    [one] = found
    return one


async def held_in_texts(harness: ServiceHarness, click: Click) -> Sent:
    what = await held(harness, click)
    assert len(what.keys) == len(APPROVE.keys)
    return what


async def held_in_json(harness: ServiceHarness, click: Click) -> Sent:
    def nothing(*_texts: object, **_values: object) -> None:
        return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ApproveTexts, "told", nothing)
        what = await held(harness, click)
    assert len(what.keys) == len(CHANGE.keys) - 1
    return what


async def answer(harness: ServiceHarness, what: Sent) -> list[Reply]:
    return await harness.store.conn.evalsha(what.source, what.keys, what.args)


async def raw(harness: ServiceHarness, *words: Argument) -> None:
    """Write into the store, and seal nothing anew."""
    await harness.store.conn.sequence(words)


@pytest.mark.parametrize("earlier", [0, 1, 22], ids=lambda n: f"after {n} like it")
async def test_what_is_written_is_what_json_writes(
    harness: ServiceHarness, earlier: int
) -> None:
    conn = harness.store.conn
    call: tuple[str, JsonObject] = ("process_refund", {"amount": 5, "order": "o"})
    for _ in range(earlier):
        before = await shown(harness, call)
        await harness.reviews.as_shown.decide(before, Approve(), PRESSED)
    click = await clicked(harness, call)
    await raw(harness, "SET", KEYS.rejections("default", "support"), 1)
    texts, json = (
        await held_in_texts(harness, click),
        await held_in_json(harness, click),
    )
    kept = await everything(conn)

    assert (await answer(harness, texts))[0] == b"done"
    by_texts = await plain(conn)
    item = await harness.item(f"{click.approval}.0")
    lives = await lifetimes(conn)
    await put_back(conn, kept)
    assert (await answer(harness, json))[0] == b"done"

    assert await plain(conn) == by_texts
    assert await lifetimes(conn) == lives
    assert item.votes_now[0].by == PRESSED.person
    assert SEEN.key.encode() in by_texts
    assert URL.key.encode() in by_texts


async def lifetimes(conn: Connection) -> dict[bytes, int]:
    """Return about how long each key lives, in minutes."""
    found = await everything(conn)
    return {name: round(lives_ms / MINUTE_MS) for name, (lives_ms, _) in found.items()}


@pytest.mark.parametrize(
    ("policy", "count"),
    [(COUNTED, 1), (NAMED, 1), (POLICY, 2)],
    ids=["windows", "precedents", "two calls"],
)
async def test_another_change_is_told_in_json(
    harness: ServiceHarness, policy: str, count: int
) -> None:
    """Of which the texts would not say all."""
    harness.policy = load_policy(policy, "policy.yml")
    calls: list[tuple[str, JsonObject]] = [
        ("process_refund", {"amount": n + 1, "order": f"o{n}"}) for n in range(count)
    ]
    click = await clicked(harness, *calls)

    what = await held(harness, click)

    assert len(what.keys) == len(CHANGE.keys) - 1
    assert (await answer(harness, what))[0] == b"done"


OTHER = "0" * 32
TOLD: dict[str, Callable[[Sent], Sent]] = {
    "another rev": lambda one: one.with_arg("rev", "2"),
    "another seal": lambda one: one.with_arg("seal_read", OTHER),
    "an old reading": lambda one: one.with_arg("seen_ms", later(one, -MINUTE_MS)),
    "a reading of later": lambda one: one.with_arg("seen_ms", later(one, MINUTE_MS)),
    "a deadline that passed": lambda one: one.with_arg("before_ms", later(one, -1)),
    "another field": lambda one: one.with_text("pending", "edited"),
    "another place": lambda one: one.with_text("C0APPROVALS 17.1", "C0APPROVALS 17.2"),
}


def later(one: Sent, by_ms: int) -> str:
    return str(int(one.args[APPROVE.args.index("seen_ms")]) + by_ms)


@pytest.mark.parametrize("change", TOLD.values(), ids=TOLD)
async def test_what_is_otherwise_than_it_is_told_is_not_written(
    harness: ServiceHarness, change: Callable[[Sent], Sent]
) -> None:
    what = await held_in_texts(harness, await clicked(harness))
    before = await plain(harness.store.conn)

    assert await answer(harness, change(what)) == [b"moved"]

    assert await plain(harness.store.conn) == before
    assert (await answer(harness, what))[0] == b"done"


FREEZE = "tool process_refund"
MOVES: dict[str, Callable[[str], Sequence[Argument]]] = {
    "it is gone": lambda one: ("DEL", KEYS.head(one)),
    "its rev is gone": lambda one: ("HDEL", KEYS.head(one), "rev"),
    "it is quarantined": lambda one: ("HSET", KEYS.head(one), "quarantined", "x"),
    "it uses a window": lambda one: ("HSET", KEYS.head(one), "0:w", '[["w","u 1",1]]'),
    "it has an end": lambda one: ("PEXPIRE", KEYS.head(one), MINUTE_MS),
    "its card is drawn": lambda one: ("HSET", KEYS.card(one), "display", "other"),
    "the request came": lambda _: ("SET", SEEN.key, "1"),
    "somebody is stood in for": lambda _: (
        "HSET", KEYS.delegations("default"), CHLOE.user, f"{ANA.user} 9999999999999",
    ),
    "something is frozen": lambda _: ("HSET", KEYS.frozen("default"), FREEZE, "{}"),
    "freezes changed": lambda _: ("SET", sealed_key(KEYS, "default"), "x" * 40),
}  # fmt: skip


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
async def test_what_moved_meanwhile_is_not_written(
    harness: ServiceHarness, move: Callable[[str], Sequence[Argument]]
) -> None:
    click = await clicked(harness)
    what = await held_in_texts(harness, click)
    await raw(harness, *move(click.approval))
    before = await plain(harness.store.conn)

    assert await answer(harness, what) == [b"moved"]

    assert await plain(harness.store.conn) == before
    await harness.store.conn.command("FLUSHALL")

"""The bot posts no text that an attacker wrote into its outbox."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from keyturn.gateway.approvals.events import Event, EventName, SecurityKind
from keyturn.gateway.store.connection.connection import entries
from keyturn.gateway.store.sealing.event_seals import sealed_text
from tests.bot.bot_stack import CHANNEL, Stack

SAID = "I have paid the invoice."

Forgery = Callable[[Stack, str], list[str]]


def answer(text: str) -> str:
    """Return an event that makes the bot post this in the agent's name."""
    said = Event(
        name=EventName.RUN_FINISHED,
        tenant="default",
        agent="support",
        thread="t1",
        data={"text": text, "channel": CHANNEL},
    )
    return said.model_dump_json(exclude_defaults=True)


def unsealed(_: Stack, event: str) -> list[str]:
    return ["e", event, "at", "1"]


def with_an_empty_seal(_: Stack, event: str) -> list[str]:
    return ["e", event, "at", "1", "s", ""]


def with_the_seal_of_another_event(stack: Stack, event: str) -> list[str]:
    _, seal = sealed_text(stack.store.conn, stack.keys, answer("Hello.")).split("\n")
    return ["e", event, "at", "1", "s", seal]


def of_another_tenant(stack: Stack, event: str) -> list[str]:
    elsewhere = stack.store.keys_of_tenant("other")
    body, seal = sealed_text(stack.store.conn, elsewhere, event).split("\n")
    return ["e", body, "at", "1", "s", seal]


def with_the_nonce_of_another(stack: Stack, event: str) -> list[str]:
    body, seal = sealed_text(stack.store.conn, stack.keys, event).split("\n")
    _, other = sealed_text(stack.store.conn, stack.keys, event).split("\n")
    mixed = f"{other.partition('.')[0]}.{seal.partition('.')[2]}"
    return ["e", body, "at", "1", "s", mixed]


FORGERIES: list[Forgery] = [
    unsealed,
    with_an_empty_seal,
    with_the_nonce_of_another,
    with_the_seal_of_another_event,
    of_another_tenant,
]


@pytest.mark.parametrize("forged", FORGERIES)
async def test_forged_announcements_are_dropped(live: Stack, forged: Forgery) -> None:
    await live.store.conn.command(
        "XADD", live.keys.outbox, "*", *forged(live, answer(SAID))
    )
    # Behind it, and in its order.
    await live.card(await live.refund())
    await live.nothing_is_left()

    state = await live.actor("U0ANA").state()

    assert SAID not in json.dumps(state)
    assert live.store.security.counts[SecurityKind.SEAL_WRONG] == 1


async def test_every_event_of_a_run_and_of_a_call_is_sealed(live: Stack) -> None:
    await live.card(await live.refund())
    await live.store.outbox(live.keys, reader="x").put(
        Event(name=EventName.RUN_FAILED, tenant="default", thread="t1")
    )

    found = entries(await live.store.conn.command("XRANGE", live.keys.outbox, "-", "+"))

    assert len(found) > 1
    assert [one.values.keys() for one in found] == [{"e", "at", "s"}] * len(found)

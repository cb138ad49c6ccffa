"""Approve on a card that was just drawn is one step, and only where all holds."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.bot.bot_stack import CHANNEL, POLICY, TEAM, Stack, says
from tests.bot.tampering import click_with
from twokey.bot.ids import Action, seal
from twokey.bot.limits import UPDATE
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.records import Person
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.wire import Verdict
from twokey.gateway.store.atomic_write import Assumed, Loaded, Write
from twokey.gateway.store.connection import Argument, Reply
from twokey.gateway.store.keys import NONCE_MS
from twokey.sandbox.json_types import JsonObject

ANA_ONLY = load_policy(
    POLICY.replace("{usergroups: [S0SUPPORT], users: [U0DAN]}", "{users: [U0ANA]}"),
    "policy.yml",
)

TWO_ROLES = load_policy(
    POLICY.replace(
        "support: {usergroups: [S0SUPPORT], users: [U0DAN]}",
        "first: {users: [U0ANA]}\n  second: {users: [U0BEN]}",
    )
    .replace("reviewers: support", "reviewers: [first, second]")
    .replace("of: [support, senior]", "of: [first, senior]"),
    "policy.yml",
)


@pytest.fixture
def at_once(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> list[Assumed]:
    """Return what each write assumed that was made of a click without any reading."""
    found, plain = list[Assumed](), stack.store.approvals.write_once

    async def write_once(seen: Loaded, what: Write) -> bool:
        is_written = await plain(seen, what)
        if is_written and what.assumed.place:
            found.append(what.assumed)
        return is_written

    monkeypatch.setattr(stack.store.approvals, "write_once", write_once)
    return found


async def drawn(stack: Stack) -> tuple[Verdict, JsonObject]:
    """Return a refund and its card once that stands, and who may decide is known."""
    first = await stack.refund("t0", amount=1)
    await click(stack, await stack.card(first))
    verdict = await stack.refund()
    card = await stack.card(verdict)
    await stack.drawn(verdict)
    await stack.bot_is_quiet()
    return verdict, card


async def click(stack: Stack, card: JsonObject, user: str = "U0ANA") -> None:
    await stack.actor(user).click(CHANNEL, str(card["ts"]), Action.APPROVE)


async def state(stack: Stack, verdict: Verdict) -> ItemState:
    return (await stack.approval(verdict)).items[0].state


async def test_a_click_on_the_card_is_one_step(
    stack: Stack, at_once: list[Assumed]
) -> None:
    stack.policy = ANA_ONLY
    async with stack.running():
        verdict, card = await drawn(stack)

        await click(stack, card)

        (assumed,) = at_once
        assert assumed.place == f"{CHANNEL} {card['ts']}"
        assert assumed.stands_in_for_nobody == "U0ANA"
        item = (await stack.approval(verdict)).items[0]
        assert item.state is ItemState.AUTHORIZED
        assert item.votes[0].by.user == "U0ANA"
        # The bot signed which card they saw, in which request of Slack's.
        signature = item.votes[0].signed
        assert signature
        assert signature.display.startswith("sha256:")
        assert signature.request
        assert item.votes[0].on_behalf_of == ()
        await stack.card(verdict, says("Approved"))
    assert stack.sandbox.problems == []


async def test_that_step_remembers_the_request_and_how_to_replace_the_card(
    stack: Stack, at_once: list[Assumed], monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.policy = ANA_ONLY
    async with stack.running():
        verdict, card = await drawn(stack)
        sent, plain = list[str](), stack.store.conn.command

        async def command(*words: Argument) -> Reply:
            sent.append(str(words[0]))
            return await plain(*words)

        monkeypatch.setattr(stack.store.conn, "command", command)
        await click(stack, card)
        before = sent.count("SET")
        again = await stack.sandbox.control.resend()

        (assumed,) = at_once
        left_ms = int(str(await plain("PTTL", assumed.unseen)))
        assert 0 < left_ms <= NONCE_MS
        # Neither was sent for itself.
        assert before == 0
        assert (again["status"], again["body"]) == (200, "")
        await stack.card(verdict, says("Approved"))
        assert UPDATE not in [call.method for call in stack.sandbox.calls]
        assert len((await stack.approval(verdict)).items[0].votes) == 1
        assert await stack.actor("U0ANA").ephemerals(CHANNEL) == []


async def test_a_request_that_came_before_is_not_decided_by(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another process got the same request a moment ago."""
    stack.policy = ANA_ONLY
    plain = stack.store.approvals.write_once

    async def late(seen: Loaded, what: Write) -> bool:
        await stack.store.conn.command("SET", what.assumed.unseen, "1", "PX", 9_999)
        return await plain(seen, what)

    async with stack.running():
        verdict, card = await drawn(stack)
        monkeypatch.setattr(stack.store.approvals, "write_once", late)

        await click(stack, card)

        assert await state(stack, verdict) is ItemState.PENDING
        assert "ingress.replayed" in caplog.text
        assert await stack.actor("U0ANA").ephemerals(CHANNEL) == []


async def test_a_request_of_which_nothing_is_known_is_not_decided_by_again(
    stack: Stack, at_once: list[Assumed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store took the step or it did not: the person was told to look."""
    stack.policy = ANA_ONLY

    async def gone(_seen: Loaded, what: Write) -> bool:
        tried.append(what.assumed.unseen)
        raise StoreUnavailable("gone")

    tried = list[str]()
    async with stack.running():
        verdict, card = await drawn(stack)
        with monkeypatch.context() as patch:
            patch.setattr(stack.store.approvals, "write_once", gone)
            await click(stack, card)
        await stack.told("U0ANA", "cannot keep anything right now")

        await stack.sandbox.control.resend()

        assert await stack.store.conn.command("EXISTS", tried[0]) == 1
        assert await state(stack, verdict) is ItemState.PENDING
    assert at_once == []


async def test_a_card_that_stands_elsewhere_meanwhile_counts_no_more(
    stack: Stack, at_once: list[Assumed]
) -> None:
    stack.policy = ANA_ONLY
    async with stack.running():
        verdict, card = await drawn(stack)
        approval = await stack.approval(verdict)
        key = stack.keys.card(approval.id)
        await stack.store.conn.command("HSET", key, "at", f"{CHANNEL} 1.000001")

        await click(stack, card)

        await stack.told("U0ANA", "not the newest copy")
        assert await state(stack, verdict) is ItemState.PENDING
    assert at_once == []


async def test_who_was_handed_a_queue_decides_for_its_owner(
    stack: Stack, at_once: list[Assumed]
) -> None:
    """Ben may do nothing by himself: alone he would be refused."""
    stack.policy = ANA_ONLY
    async with stack.running():
        verdict, card = await drawn(stack)
        delegations = stack.reviews.delegations
        owner = Person(team=TEAM, user="U0ANA")
        await delegations.delegate(owner, "U0BEN", timedelta(hours=4))

        await click(stack, card, "U0BEN")

        (vote,) = (await stack.approval(verdict)).items[0].votes
        assert [one.user for one in vote.on_behalf_of] == ["U0ANA"]
    assert at_once == []


async def test_who_holds_one_role_and_was_handed_another_brings_both(
    stack: Stack, at_once: list[Assumed]
) -> None:
    """Alone she would be let approve, with less than she has."""
    stack.policy = TWO_ROLES
    async with stack.running():
        verdict, card = await drawn(stack)
        owner = Person(team=TEAM, user="U0BEN")
        await stack.reviews.delegations.delegate(owner, "U0ANA", timedelta(hours=4))

        await click(stack, card)

        (vote,) = (await stack.approval(verdict)).items[0].votes
        assert set(vote.roles) == {"first", "second"}
        assert [one.user for one in vote.on_behalf_of] == ["U0BEN"]
    assert at_once == []


async def test_another_policy_since_it_was_drawn_is_asked(
    stack: Stack, at_once: list[Assumed]
) -> None:
    stack.policy = ANA_ONLY
    async with stack.running():
        verdict, card = await drawn(stack)
        stack.policy = load_policy(
            POLICY.replace(
                "{usergroups: [S0SUPPORT], users: [U0DAN]}", "{users: [U0BEN]}"
            ),
            "policy.yml",
        )

        await click(stack, card)

        await stack.told("U0ANA", "can")
        assert await state(stack, verdict) is ItemState.PENDING
    assert at_once == []


@pytest.mark.parametrize("spoil", ["purpose", "team", "key", "junk"])
async def test_a_seal_of_something_else_approves_nothing(
    stack: Stack, at_once: list[Assumed], spoil: str
) -> None:
    stack.policy = ANA_ONLY
    async with stack.running():
        verdict, card = await drawn(stack)
        approval, key = await stack.approval(verdict), stack.config.seal_key
        values = {
            "purpose": seal(approval, 0, key=key, team=TEAM, purpose=Action.EDIT),
            "team": seal(approval, 0, key=key, team="T0", purpose=Action.APPROVE),
            "key": seal(approval, 0, key=b"x" * 32, team=TEAM, purpose=Action.APPROVE),
            "junk": "ap_0:1",
        }

        await click_with(stack, card, Action.APPROVE, values[spoil])

        await stack.told("U0ANA", "does not belong to this card")
        assert await state(stack, verdict) is ItemState.PENDING
    assert at_once == []


async def test_what_takes_several_people_is_decided_by_fresh_answers(
    stack: Stack, at_once: list[Assumed]
) -> None:
    stack.policy = ANA_ONLY
    async with stack.running():
        await drawn(stack)
        (verdict,) = await stack.submit(("wire_money", {}), thread="t2")
        card = await stack.card(verdict)
        await stack.drawn(verdict)

        await click(stack, card)

        assert len((await stack.approval(verdict)).items[0].votes) == 1
    assert at_once == []


async def test_a_person_whom_slack_was_not_asked_about_is_looked_up_once(
    stack: Stack, at_once: list[Assumed]
) -> None:
    """Nothing is looked up for a step that may come to nothing."""
    async with stack.running():
        verdict, card = await drawn(stack)
        before = len(lookups(stack))

        await click(stack, card, "U0BEN")

        assert lookups(stack)[before:] == ["U0BEN"]
        assert await state(stack, verdict) is ItemState.AUTHORIZED
    assert at_once == []


def lookups(stack: Stack) -> list[str]:
    """Return about whom Slack was asked."""
    return [
        str(call.arguments.get("user"))
        for call in stack.sandbox.calls
        if call.method == "users.info"
    ]


async def test_a_reason_that_is_needed_is_asked_for(
    stack: Stack, at_once: list[Assumed]
) -> None:
    """Not by the form of a call whose approval would be refused."""
    text = POLICY.replace(
        "{usergroups: [S0SUPPORT], users: [U0DAN]}", "{users: [U0ANA]}"
    ).replace(
        '    description: "Refund',
        '    requires_reason: [approve]\n    description: "Refund',
    )
    stack.policy = load_policy(text, "policy.yml")
    async with stack.running():
        verdict, card = await drawn(stack)

        await click(stack, card)

        await stack.actor("U0ANA").view()
        assert await state(stack, verdict) is ItemState.PENDING
    assert at_once == []

"""Approve on a card that was just drawn is one step, and only where all holds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial

import pytest

from tests.approvals.builders import click_on
from tests.bot.bot_stack import CHANNEL, POLICY, TEAM, Stack, says
from tests.bot.tampering import click_with
from tests.conftest import eventually
from tests.store_secrets import SECRETS
from twokey.bot.ids import Action, seal
from twokey.bot.limits import UPDATE
from twokey.gateway.approvals.decisions import Click
from twokey.gateway.approvals.record import approval_of
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.records import Person
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.wire import Verdict
from twokey.gateway.service.as_shown import AsShownService
from twokey.gateway.store.atomic_write import Assumed, Loaded, Write
from twokey.gateway.store.connection import Argument, Reply
from twokey.gateway.store.keys import NONCE_MS, Keys
from twokey.gateway.store.precomputed import Beside, Precomputed
from twokey.gateway.store.store import Store
from twokey.gateway.store.templates import Moment
from twokey.sandbox.json_types import JsonObject

Make = Callable[[int], Loaded | None]

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


@pytest.fixture(autouse=True, params=["as it comes", "precomputed"])
def precomputes(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> bool:
    """What was drawn is decided alike, whether it was precomputed or not."""
    is_precomputed = bool(request.param == "precomputed")
    if not is_precomputed:
        monkeypatch.setattr(AsShownService, "precompute", _nothing)
    return is_precomputed


def _nothing(_service: AsShownService, _approval_id: str) -> None:
    """Precompute nothing."""


Written = bool | bytes
"""Whether something was written, or the seal of what was: empty where nothing was."""

Step = Callable[[Assumed, Callable[[], Awaitable[Written]]], Awaitable[Written]]
"""Gets what a write assumes, and what writes it."""


def on_each_step(stack: Stack, monkeypatch: pytest.MonkeyPatch, step: Step) -> None:
    """Call this instead of each write of a click that nobody read anything for."""
    approvals = stack.store.approvals
    once, as_precomputed = approvals.write_once, approvals.write_precomputed

    async def write_once(seen: Loaded, what: Write) -> Written:
        return await step(what.assumed, partial(once, seen, what))

    async def write_precomputed(
        keys: Keys, what: Precomputed, moment: Moment, beside: Beside, make: Make
    ) -> Written:
        write = partial(as_precomputed, keys, what, moment, beside, make)
        return await step(beside.assumed, write)

    monkeypatch.setattr(approvals, "write_once", write_once)
    monkeypatch.setattr(approvals, "write_precomputed", write_precomputed)


@pytest.fixture
def at_once(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> list[Assumed]:
    """Return what each write assumed that was made of a click without any reading."""
    found = list[Assumed]()

    async def noted(
        assumed: Assumed, write: Callable[[], Awaitable[Written]]
    ) -> Written:
        is_written = await write()
        if is_written and assumed.place:
            found.append(assumed)
        return is_written

    on_each_step(stack, monkeypatch, noted)
    return found


async def drawn(stack: Stack) -> tuple[Verdict, JsonObject]:
    """Return a refund and its card once that stands, and who may decide is known."""
    first = await stack.refund("t0", amount=1)
    await click(stack, await stack.card(first))
    verdict = await stack.refund()
    card = await stack.card(verdict)
    await stack.drawn(verdict)
    await stack.bot_is_quiet()
    # Else it is, a moment after it was opened.
    stack.reviews.as_shown.precompute(approval_of(verdict.item_id)[0])
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

    async def late(
        assumed: Assumed, write: Callable[[], Awaitable[Written]]
    ) -> Written:
        await stack.store.conn.command("SET", assumed.unseen, "1", "PX", 9_999)
        return await write()

    async with stack.running():
        verdict, card = await drawn(stack)
        on_each_step(stack, monkeypatch, late)

        await click(stack, card)

        assert await state(stack, verdict) is ItemState.PENDING
        assert "ingress.replayed" in caplog.text
        assert await stack.actor("U0ANA").ephemerals(CHANNEL) == []


async def test_a_request_of_which_nothing_is_known_is_not_decided_by_again(
    stack: Stack, at_once: list[Assumed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store took the step or it did not: the person was told to look."""
    stack.policy = ANA_ONLY

    async def gone(
        assumed: Assumed, _write: Callable[[], Awaitable[Written]]
    ) -> Written:
        tried.append(assumed.unseen)
        raise StoreUnavailable("gone")

    tried = list[str]()
    async with stack.running():
        verdict, card = await drawn(stack)
        with monkeypatch.context() as patch:
            on_each_step(stack, patch, gone)
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


async def test_a_card_that_another_process_drew_since_is_what_the_person_saw(
    stack: Stack, at_once: list[Assumed]
) -> None:
    """The lease went to it, or the policy or a key is another one there already."""
    stack.policy = ANA_ONLY
    digest = "sha256:" + "d" * 64
    other = Store(stack.store.conn.url, secrets=SECRETS)
    async with stack.running():
        verdict, card = await drawn(stack)
        approval, place = await stack.approval(verdict), await stack.drawn(verdict)
        await other.cards.shown(
            stack.keys,
            approval.id,
            tenant="default",
            rev=approval.rev,
            display_digest=digest,
            decision_digest=place.decision_digest,
        )

        await click(stack, card)

        [vote] = (await stack.approval(verdict)).items[0].votes
        assert vote.signed
        assert vote.signed.display == digest
    await other.close()
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


async def test_a_card_is_precomputed_by_itself_a_moment_after_it_was_drawn(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, *, precomputes: bool
) -> None:
    stack.policy = ANA_ONLY
    ways, approvals = list[str](), stack.store.approvals
    once, as_precomputed = approvals.write_once, approvals.write_precomputed

    async def write_once(seen: Loaded, what: Write) -> bool:
        ways.append("as it comes")
        return await once(seen, what)

    async def write_precomputed(
        keys: Keys, what: Precomputed, moment: Moment, beside: Beside, make: Make
    ) -> bytes:
        ways.append("precomputed")
        return await as_precomputed(keys, what, moment, beside, make)

    async with stack.running():
        first = await stack.refund("t0", amount=1)
        await click(stack, await stack.card(first))
        verdict = await stack.refund()
        card = await stack.card(verdict)
        await stack.drawn(verdict)
        seen = await clicked(stack, verdict)
        if precomputes:
            await eventually(lambda: is_precomputed(stack, seen))
        monkeypatch.setattr(approvals, "write_once", write_once)
        monkeypatch.setattr(approvals, "write_precomputed", write_precomputed)

        await click(stack, card)

        assert ways == ["precomputed" if precomputes else "as it comes"]
        assert await state(stack, verdict) is ItemState.AUTHORIZED
        await stack.card(verdict, says("Approved"))
    assert stack.sandbox.problems == []


async def clicked(stack: Stack, verdict: Verdict) -> Click:
    """Return a click on a call as it stands now."""
    approval = await stack.approval(verdict)
    return click_on(approval)


async def is_precomputed(stack: Stack, seen: Click) -> bool:
    """Return whether the approval of a call was precomputed for its card."""
    found = stack.reviews.as_shown.precomputed(seen)
    return found is not None and bool(found.call.display)

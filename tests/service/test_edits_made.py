"""The gateway confirms an edit only by its own record, and reveals no other."""

from __future__ import annotations

import json

import pytest

from keyturn.bot.cards.approval import card
from keyturn.bot.modals import edit
from keyturn.bot.modals.details import pages
from keyturn.gateway.approvals.decisions import Approve, Edit, Forbidden, Reject
from keyturn.gateway.approvals.revoking import READ_OTHERWISE, REFUSED_BY_TOOL
from keyturn.gateway.protocol.edits import edit_hash
from keyturn.gateway.protocol.records import (
    EditOutcome,
    EditRecord,
    FailureKind,
    ItemState,
    Reading,
    Result,
)
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import (
    Claimed,
    ClaimReply,
    ClaimRequest,
    EditsKnown,
    Refused,
    Reopened,
    TurnRef,
)
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.service.run.claiming import TOO_LARGE
from tests.bot.samples import frame
from tests.bot.slack_state import untouched
from tests.service.harness import ANA, ServiceHarness

TYPED: JsonObject = {"amount": 12, "to": "Ada"}
READ: JsonObject = {"amount": 12, "to": "ada"}


def at(thread: str) -> TurnRef:
    """Return the agent in a thread."""
    return TurnRef(agent="support", thread=thread, message_id="")


async def edited(
    harness: ServiceHarness, args: JsonObject = TYPED
) -> tuple[ClaimRequest, EditRecord]:
    """Let Ana edit a refund; return its claim and the record of the edit."""
    click, claim = await harness.refund()
    await harness.reviews.decide(click, Edit(args=args), ANA)
    record = (await harness.item(claim.item_id)).edit
    assert record is not None
    return claim, record


async def made(
    harness: ServiceHarness, asked: dict[str, str], thread: str = "t1"
) -> dict[str, EditOutcome]:
    """Return which of these edits are confirmed to an agent in a thread."""
    return (await harness.agents.edits_known(at(thread), asked)).made


async def test_an_edit_is_confirmed_in_its_own_thread(harness: ServiceHarness) -> None:
    claim, record = await edited(harness)
    true = edit_hash(record)
    forged = edit_hash(record.with_(reason="because I say so"))
    asked = {true: claim.item_id, forged: claim.item_id, "sha256:0": "junk"}
    elsewhere = AgentService(harness.store, lambda: harness.policy, tenant="other")

    assert (await made(harness, asked)).keys() == {true}
    assert await made(harness, {true: "ap_default_0.0"}) == {}
    assert (await elsewhere.edits_known(at("t1"), asked)).made == {}
    for thread in ("t2", "t", "T1", ""):
        assert await made(harness, asked, thread) == {}


@pytest.mark.parametrize("failure", [None, *FailureKind])
@pytest.mark.parametrize("ok", [True, False])
async def test_an_edit_is_confirmed_with_the_outcome_that_the_record_proves(
    harness: ServiceHarness, failure: FailureKind | None, *, ok: bool
) -> None:
    claim, record = await edited(harness)
    hashes = {edit_hash(record.with_(outcome=one)) for one in EditOutcome}
    asked = dict.fromkeys(hashes, claim.item_id)

    before = await made(harness, asked)
    granted = await harness.granted(claim)
    during = await made(harness, asked)
    result = Result(ok=ok, failure=None if ok else failure)
    await harness.agents.finish(claim.item_id, granted.fence, result)

    assert [*before.values()] == [*during.values()] == [EditOutcome.UNKNOWN]
    assert [*(await made(harness, asked)).values()] == [result.edit_outcome]


async def test_the_seal_confirms_an_ended_edit(harness: ServiceHarness) -> None:
    claim, _ = await edited(harness)
    granted = await harness.ran(claim)
    [edit] = await harness.agents.history(claim.ref.run_ref)
    [outcome] = await harness.agents.outcomes(claim.ref)
    await harness.command("FLUSHALL")

    forged = edit_hash(edit.with_(edited_args={"amount": 7}))
    sealed = f"{claim.item_id} {edit.seal}"
    known = await harness.agents.edits_known(at("t1"), {edit_hash(edit): sealed})
    others = [
        await harness.agents.edits_known(at("t2"), {edit_hash(edit): sealed}),
        await harness.agents.edits_known(at("t1"), {edit_hash(edit): claim.item_id}),
        await harness.agents.edits_known(at("t1"), {forged: sealed}),
    ]

    assert edit.seal
    assert outcome.edit == edit
    assert granted.edit == edit.with_(outcome=EditOutcome.UNKNOWN)
    assert known == EditsKnown(made={edit_hash(edit): EditOutcome.UNKNOWN})
    assert [one.made for one in others] == [{}, {}, {}]
    assert all(one.unknown for one in others)


# An edit that its tool reads in another way is asked again, with that reading.


async def told(
    harness: ServiceHarness, claim: ClaimRequest, reading: Reading
) -> ClaimReply:
    """Claim as an agent does whose tool reads the arguments in this way."""
    item = await harness.item(claim.item_id)
    reading = reading.with_(action_hash=reading.action_hash or item.action_hash)
    return await harness.agents.claim(claim.with_(reading=reading))


async def test_a_misread_edit_runs_as_it_was_read(harness: ServiceHarness) -> None:
    claim, _ = await edited(harness)

    assert await told(harness, claim, Reading(args=READ)) == Reopened(
        reason=READ_OTHERWISE
    )

    click = await harness.click_on(claim.item_id)
    assert (await harness.item(claim.item_id)).state is ItemState.PENDING
    for same in (Approve(), Edit(args=TYPED)):
        said = await harness.reviews.decide(click, same, ANA)
        assert isinstance(said, Forbidden), said
    await harness.reviews.decide(click, Edit(args=READ), ANA)
    reply = await harness.granted(claim)
    assert reply.edit
    assert reply.edit.edited_args == READ


async def given_back(
    harness: ServiceHarness, claim: ClaimRequest, *, has_begun: bool
) -> None:
    """Claim a call and give the claim back."""
    reply = await harness.granted(claim)
    await harness.agents.release(claim.item_id, reply.fence, has_begun=has_begun)


@pytest.mark.parametrize("misread", [1, 2])
@pytest.mark.parametrize("has_begun", [False, True])
async def test_only_a_call_whose_tool_began_counts_as_started(
    harness: ServiceHarness, misread: int, *, has_begun: bool
) -> None:
    """An agent claims a call before it reads the edit, and gives the claim back."""
    claim, _ = await edited(harness)
    if has_begun:
        await given_back(harness, claim, has_begun=True)
    for number in range(misread):
        await given_back(harness, claim, has_begun=False)
        await told(harness, claim, Reading(args=READ))
        if number + 1 < misread:
            again = Edit(args={**TYPED, "amount": 20 + number})
            await harness.decide(claim.item_id, again)
    await harness.decide(claim.item_id, Reject(reason="no"))

    (outcome,) = await harness.agents.outcomes(claim.ref)

    assert outcome.answer
    assert outcome.answer.has_started is has_begun
    assert outcome.edit
    assert (outcome.edit.outcome is EditOutcome.NOT_RUN) is not has_begun


async def test_the_form_opens_with_what_the_tool_reads(harness: ServiceHarness) -> None:
    claim, _ = await edited(harness)
    await told(harness, claim, Reading(args=READ))
    approval = await harness.approval(claim.item_id)

    view = edit.view(frame(approval), 0)
    found = edit.submitted(approval.items[0], untouched(view["blocks"]))

    assert (found.args, found.changed) == (READ, True)
    assert "The tool reads the last change as shown here" in json.dumps(view)


@pytest.mark.parametrize(
    ("reading", "reason", "shown"),
    [
        (Reading(args=READ), READ_OTHERWISE, 'to = "ada"'),
        (Reading(problem="no mailbox"), REFUSED_BY_TOOL, "no mailbox"),
    ],
)
async def test_card_and_pages_show_why_and_the_tools_reading_as_the_agents_words(
    harness: ServiceHarness, reading: Reading, reason: str, shown: str
) -> None:
    claim, _ = await edited(harness)
    await told(harness, claim, reading)
    approval = await harness.approval(claim.item_id)

    on_card = json.dumps(card(frame(approval)).blocks)
    parts = [part for page in pages(approval, approval.items[0]) for part in page]

    assert reason in on_card
    assert "The agent says:" in on_card
    assert json.dumps(shown)[1:-1] in on_card
    assert shown in "".join(part.text for part in parts)


@pytest.mark.parametrize(
    "reading",
    [
        Reading(args=READ, action_hash="sha256:" + "0" * 64),
        Reading(problem="no", action_hash="sha256:" + "0" * 64),
        Reading(args=TYPED),
    ],
)
async def test_a_reading_of_another_edit_or_of_the_same_arguments_is_ignored(
    harness: ServiceHarness, reading: Reading
) -> None:
    claim, _ = await edited(harness)

    assert isinstance(await told(harness, claim, reading), Claimed)


async def test_a_call_without_an_edit_is_asked_once(harness: ServiceHarness) -> None:
    claim = await harness.approved()

    assert isinstance(await told(harness, claim, Reading(args=READ)), Claimed)


async def test_a_reading_too_large_lets_nothing_run(harness: ServiceHarness) -> None:
    claim, _ = await edited(harness)

    reply = await told(harness, claim, Reading(args={"to": "x" * 70_000}))

    assert reply == Refused(reason=TOO_LARGE, state=ItemState.AUTHORIZED)

"""With ``privacy.name_reviewers: false``, agents never learn who decided."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.decisions import Approve, Decision, Edit, Reject, Respond
from keyturn.gateway.protocol import digest, edits, texts
from keyturn.gateway.protocol.http_api import OpenQuestion
from keyturn.gateway.protocol.records import EditOutcome, RunRef
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import Answer, AnswerKind, Claimed
from keyturn.gateway.service.run.claiming import Found, find_answers
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from tests.service.harness import POLICY, ServiceHarness, claim_of, person

SILENT = ("protect:\n", "privacy: {name_reviewers: false}\nprotect:\n")
ANA = person("U0ANA")


def is_named(told: object) -> bool:
    """Return whether a reply contains Ana's name or id."""
    return "ANA" in str(told)


async def resumed_with(harness: ServiceHarness, item_id: str) -> Found:
    """Return what the worker resumes the run of a call with."""
    approval, item = await harness.approval(item_id), await harness.item(item_id)
    asked = OpenQuestion(
        kind="keyturn.approval",
        item_id=item_id,
        action_hash=digest.action_hash(item.requested),
    )
    found = await find_answers(
        harness.store,
        approval.run_ref,
        [asked],
        hides_reviewers=harness.agents.hides_reviewers,
    )
    return found[asked]


@pytest.mark.parametrize(
    "decision",
    [
        Approve(reason="seen"),
        Edit(args={"amount": 5}, reason="partly"),
        Reject(reason="no"),
        Respond(message="ask the bank"),
    ],
)
@pytest.mark.parametrize("is_silent", [False, True])
async def test_no_reply_to_an_agent_names_the_reviewer(
    harness: ServiceHarness, decision: Decision, *, is_silent: bool
) -> None:
    harness.put_policy(*([SILENT] if is_silent else []))
    ref, [verdict] = await harness.submit(("process_refund", {"amount": 9}))
    await harness.decide(verdict, decision, ANA)

    answer = (await resumed_with(harness, verdict.item_id)).answer
    claimed = await harness.agents.claim(claim_of(ref, verdict))
    outcomes = await harness.agents.outcomes(ref)

    assert is_named(answer) is not is_silent
    assert is_named(outcomes) is not is_silent
    assert is_named(claimed) is (not is_silent and isinstance(decision, Edit))
    # People see who decided.
    assert is_named(await harness.item(verdict.item_id))


async def test_texts_of_an_unnamed_reviewer_read_well() -> None:
    nobody = person("").person.with_(name="A reviewer")
    rejected = Answer(
        type=AnswerKind.REJECT, item_id="i", action_hash="h", message="no", by=nobody
    )

    assert texts.ended_text(rejected).startswith("A reviewer rejected")


async def test_edits_without_a_name_are_confirmed(harness: ServiceHarness) -> None:
    harness.put_policy(SILENT)
    ref, [verdict] = await harness.submit(("process_refund", {"amount": 9}))
    await harness.decide(verdict, Edit(args={"amount": 5}), ANA)
    reply = await harness.agents.claim(claim_of(ref, verdict))
    assert isinstance(reply, Claimed)
    assert reply.edit
    told = edits.edit_text(reply.edit)
    asked = {edits.edit_hash(reply.edit): f"{verdict.item_id} {reply.edit.seal}"}

    harness.put_policy(of=POLICY)
    known = await harness.agents.edits_known(ref, asked)

    assert 'Changed by: "A reviewer".' in told
    assert set(known.made.values()) == {EditOutcome.UNKNOWN}
    assert not is_named(
        await harness.agents.history(RunRef(agent="support", thread="t1"))
    )


async def test_a_repeated_rejection_names_nobody(harness: ServiceHarness) -> None:
    harness.put_policy(SILENT, ("same_rejected_within: 0", "same_rejected_within: 3"))
    _, [verdict] = await harness.submit(("process_refund", {"amount": 9}))
    await harness.decide(verdict, Reject(reason="no"), ANA)
    _, [again] = await harness.submit(("process_refund", {"amount": 9}))

    assert "A reviewer rejected exactly this call" in str(again.reason)
    assert not is_named(again)


@pytest.mark.parametrize("is_silent", [False, True])
async def test_a_freeze_does_not_name_who_set_it(
    harness: ServiceHarness, *, is_silent: bool
) -> None:
    harness.put_policy(*([SILENT] if is_silent else []))
    claim = await harness.approved(thread="t2")
    look_up: tuple[str, JsonObject] = ("look_up_order", {})
    cleared, _ = await harness.submit(look_up)
    scope = FreezeScope(kind=ScopeKind.TENANT)
    await harness.reviews.freezes.freeze_by(scope, ANA, "wrong refunds")

    refused = await harness.agents.claim(claim)
    _, denied = await harness.submit(look_up)
    _, denied_again = await harness.submit(look_up, message_id=cleared.message_id)

    for reply in (refused, denied, denied_again):
        assert "wrong refunds" in str(reply)
        assert is_named(reply) is not is_silent

"""No attempt runs twice, even if older records are put back into Redis."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Self, cast
from unittest.mock import AsyncMock

import pytest
import yaml

from keyturn.cli import bot
from keyturn.cli.command_context import CommandContext
from keyturn.gateway.approvals.decisions import Approve, Reconcile, Reviewer
from keyturn.gateway.approvals.record import approval_of
from keyturn.gateway.errors import CorruptRecord
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.records import Finding, ItemState, Result
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import (
    Busy,
    Claimed,
    ClaimReply,
    ClaimRequest,
    HandOverEnd,
    InDoubt,
    TurnRef,
    Verdict,
)
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.resume.ledgers import SHORT_MS, Started, place_of, processes_of
from tests.service.harness import (
    ANA,
    CHLOE,
    POLICY,
    RULES,
    ServiceHarness,
    claim_of,
    still_members,
)
from tests.service.standing import ALLOWING, allowing, allowing_policy, chosen, refund
from tests.service.standing import allowed as allowed_similar
from tests.store_secrets import SECRETS

RAN = Result(ok=True, summary="ran")


def refunds_at(tier: str) -> Policy:
    """Return the policy with another tier for refunds."""
    listed = "process_refund: {tier: "
    return load_policy(
        POLICY.replace(f"{listed}approve}}", f"{listed}{tier}}}"), "policy.yml"
    )


FORBIDDING, ESCALATING = refunds_at("deny"), refunds_at("escalate")
NOTIFYING = refunds_at("notify")


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path, postgres: str) -> str:
    return place_of(request.param, tmp_path, postgres)


@pytest.fixture
def started(store: Store, place: str) -> Started:
    return processes_of(store, place)


Copy = list[tuple[bytes, int, bytes]]


async def copied(store: Store) -> Copy:
    """Return all of Redis: keys with their lifetimes and values."""
    found: Copy = []
    for key in cast("list[bytes]", await store.conn.command("KEYS", "*")):
        dump, left_ms = await store.conn.transaction(["DUMP", key], ["PTTL", key])
        if dump:
            found.append((key, max(0, cast("int", left_ms)), cast("bytes", dump)))
    return found


async def put_back(store: Store, copy: Copy) -> None:
    """Put all of Redis back as it was, the audit log as well."""
    await store.conn.command("FLUSHALL")
    for key, left_ms, dump in copy:
        await store.conn.command("RESTORE", key, left_ms, dump)


class Life:
    """A call from its submission to its end, with a copy of Redis after each step."""

    ref: TurnRef
    verdict: Verdict
    handed_to = ""

    def __init__(self, harness: ServiceHarness) -> None:
        self.harness = harness
        self.copies: list[Copy] = []

    async def asks(self) -> None:
        args: JsonObject = {"amount": 5}
        self.ref, (self.verdict,) = await self.harness.submit(
            ("process_refund", args), handed_to=self.handed_to
        )

    @property
    def claim(self) -> ClaimRequest:
        return claim_of(self.ref, self.verdict)

    async def note(self) -> None:
        self.copies.append(await copied(self.harness.store))

    async def approved(self, who: Reviewer = ANA) -> None:
        await self.harness.reviews.decide(
            await self.harness.click(self.verdict),
            Approve(),
            who,
            voters=still_members,
        )
        await self.note()

    async def claimed(self, owner: str = "first") -> int:
        reply = await self.harness.agents.claim(self.claim.with_(owner=owner))
        assert isinstance(reply, Claimed), reply
        await self.note()
        return reply.fence

    async def refused(self) -> None:
        reply = await self.harness.agents.claim(self.claim)
        assert not isinstance(reply, Claimed)

    async def silent(self) -> None:
        await self.harness.owner_dies(self.verdict.item_id)
        await self.harness.sweeper.sweep()
        await self.note()

    async def found(self, finding: Finding) -> None:
        await self.harness.reviews.decide(
            await self.harness.click(self.verdict),
            Reconcile(finding=finding, note="seen"),
            ANA,
            voters=still_members,
        )
        await self.note()


async def executing(life: Life) -> None:
    await life.asks()
    await life.approved()
    await life.claimed()


async def executed_after_a_pause(life: Life) -> None:
    await executing(life)
    await life.harness.agents.release(life.verdict.item_id, 1)
    await life.note()
    fence = await life.claimed("second")
    await life.harness.agents.finish(life.verdict.item_id, fence, RAN)


async def cleared(life: Life) -> None:
    life.harness.policy = NOTIFYING
    await life.asks()
    await life.note()
    fence = await life.claimed()
    await life.harness.agents.finish(life.verdict.item_id, fence, RAN)


async def withdrawn(life: Life) -> None:
    await life.asks()
    await life.approved()
    await life.harness.agents.withdraw_items(frozenset({life.verdict.item_id}))


async def superseded(life: Life) -> None:
    await life.asks()
    await life.approved()
    await life.harness.submit(("process_refund", {"amount": 6}))


async def lapsed(life: Life) -> None:
    await life.asks()
    await life.approved()
    await life.harness.lapsed(life.verdict.item_id)
    await life.harness.sweeper.sweep()


async def forbidden(life: Life) -> None:
    await life.asks()
    await life.approved()
    life.harness.policy = FORBIDDING
    await life.refused()


async def asked_anew(life: Life) -> None:
    """The claim finds another policy, which needs more people."""
    await life.asks()
    await life.approved()
    life.harness.policy = ESCALATING
    await life.refused()


async def asked_anew_and_executed(life: Life) -> None:
    await asked_anew(life)
    await life.approved(CHLOE)
    await life.approved()
    fence = await life.claimed()
    await life.harness.agents.finish(life.verdict.item_id, fence, RAN)


async def left_alone(life: Life) -> None:
    await executing(life)
    await life.silent()
    await life.found(Finding.SKIP)


async def run_again(life: Life) -> None:
    await executing(life)
    await life.silent()
    await life.found(Finding.RERUN)
    fence = await life.claimed("second")
    await life.harness.agents.finish(life.verdict.item_id, fence, RAN)


async def not_run_again(life: Life) -> None:
    """People allowed another run, and it lapsed."""
    await executing(life)
    await life.silent()
    await life.found(Finding.RERUN)
    await life.harness.lapsed(life.verdict.item_id)
    await life.harness.sweeper.sweep()


async def set_aside(life: Life) -> None:
    """Its record is damaged after the approval, found, and ended for good."""
    await life.asks()
    await life.approved()
    store = life.harness.store
    approval = approval_of(life.verdict.item_id)[0]
    head = store.keys_of_tenant("default").head(approval)
    # By a script, which seals nothing anew.
    script = "return redis.call('HSET', KEYS[1], '0:l', '1')"
    await store.conn.command("EVAL", script, 1, head)
    with pytest.raises(CorruptRecord):
        await store.approvals.load(approval)
    await life.refused()


async def covered(life: Life) -> None:
    life.harness.policy = allowing_policy()
    await allowed_similar(life.harness)
    life.ref, (life.verdict,) = await life.harness.submit(refund(20, "b"), thread="t2")
    await life.note()
    fence = await life.claimed()
    await life.harness.agents.finish(life.verdict.item_id, fence, RAN)


async def handed_over(life: Life) -> None:
    life.handed_to = "crm"
    await executing(life)
    end = HandOverEnd(item_id=life.verdict.item_id, fence=1, taken=True)
    assert await life.harness.agents.hand_over(end)


async def broken_off(life: Life) -> None:
    life.handed_to = "crm"
    await executing(life)
    await life.harness.owner_dies(life.verdict.item_id)
    await life.harness.lapsed(life.verdict.item_id)
    await life.harness.sweeper.sweep()


POLICIES: dict[Callable[[Life], Awaitable[None]], Policy] = {
    cleared: NOTIFYING,
    covered: allowing_policy(),
}
"""By which policy an older record is claimed, where not by the usual one."""

LIVES: list[Callable[[Life], Awaitable[None]]] = [
    executing,
    executed_after_a_pause,
    cleared,
    withdrawn,
    superseded,
    lapsed,
    forbidden,
    asked_anew,
    asked_anew_and_executed,
    left_alone,
    run_again,
    not_run_again,
    set_aside,
    covered,
    handed_over,
    broken_off,
]


async def answer(harness: ServiceHarness, claim: ClaimRequest) -> ClaimReply:
    """Claim until the answer is final."""
    replies: list[ClaimReply] = []

    async def is_final() -> bool:
        replies.append(await harness.agents.claim(claim))
        return not isinstance(replies[-1], Busy)

    await eventually(is_final)
    return replies[-1]


@pytest.mark.parametrize("life", LIVES, ids=lambda one: one.__name__)
async def test_no_older_record_runs_a_call_again(
    started: Started, life: Callable[[Life], Awaitable[None]]
) -> None:
    """A newly started process claims it, with a policy that would allow it."""
    async with started() as store:
        lived = Life(ServiceHarness(store))
        await life(lived)
    assert lived.copies
    for index, copy in enumerate(lived.copies):
        async with started(SHORT_MS) as store:
            await put_back(store, copy)
            harness = ServiceHarness(store, POLICIES.get(life, RULES))
            reply = await answer(harness, lived.claim.with_(owner="another"))
            assert not isinstance(reply, Claimed), f"copy {index}"
            is_handed = bool(lived.handed_to)
            assert not (is_handed and isinstance(reply, InDoubt)), f"copy {index}"


async def test_the_next_process_finishes_a_dead_hand_over(started: Started) -> None:
    """Its ledger has the claim, and its record does not, as after a kill in between."""
    async with started() as store:
        lived = Life(ServiceHarness(store))
        lived.handed_to = "crm"
        await executing(lived)
    async with started(SHORT_MS) as store:
        await put_back(store, lived.copies[0])
        harness = ServiceHarness(store)

        reply = await answer(harness, lived.claim.with_(owner="another"))

        assert isinstance(reply, Claimed)
        assert reply.fence == 2
        end = HandOverEnd(item_id=lived.verdict.item_id, fence=2, taken=True)
        assert await harness.agents.hand_over(end)


async def test_an_empty_store_runs_no_turn_twice(started: Started) -> None:
    """After a restore from before the turn, or long after everything was forgotten."""
    async with started() as store:
        lived = Life(ServiceHarness(store))
        await cleared(lived)
    async with started(SHORT_MS) as store:
        await put_back(store, [])
        harness = ServiceHarness(store, NOTIFYING)
        _, (verdict,) = await harness.submit(
            ("process_refund", {"amount": 5}), message_id=lived.ref.message_id
        )

        reply = await answer(harness, claim_of(lived.ref, verdict, owner="another"))

        assert not isinstance(reply, Claimed)


async def test_an_older_record_asks_whether_it_ran(started: Started) -> None:
    async with started() as store:
        lived = Life(ServiceHarness(store))
        await lived.asks()
        await lived.note()
        await lived.approved()
        fence = await lived.claimed()
        await lived.harness.agents.finish(lived.verdict.item_id, fence, RAN)
    async with started(SHORT_MS) as store:
        await put_back(store, lived.copies[0])
        again = Life(ServiceHarness(store))
        again.ref, again.verdict = lived.ref, lived.verdict
        await again.approved()

        assert isinstance(await answer(again.harness, again.claim), InDoubt)


Click = Callable[[ReviewService], Awaitable[object]]
InABot = Callable[[Click], Awaitable[None]]


class Clicks:
    """A bot in which a person has clicked after its start."""

    team_id = "T0"

    def __init__(self, reviews: ReviewService, click: Click) -> None:
        self._reviews, self._click = reviews, click

    async def __aenter__(self) -> Self:
        await self._click(self._reviews)
        return self

    async def __aexit__(self, *_raised: object) -> None:
        """Nothing is left to be closed."""


@pytest.fixture
def in_a_bot(
    store: Store, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> InABot:
    """Return a function that starts `keyturn bot` on the same databases and clicks."""
    config = tmp_path / "keyturn.yml"
    policy = yaml.safe_load(ALLOWING)
    config.write_text(yaml.safe_dump({"policy": policy, "checkpoints": place}))
    env = {
        "KEYTURN_REDIS_URL": store.conn.url,
        "KEYTURN_SECRET": SECRETS[0].hex(),
        "SLACK_BOT_TOKEN": "xoxb-1",
        "SLACK_APP_TOKEN": "xapp-1",
    }

    async def clicked(click: Click) -> None:
        def slack_bot(_config: object, reviews: ReviewService) -> Clicks:
            return Clicks(reviews, click)

        monkeypatch.setattr(bot, "SlackBot", slack_bot)
        monkeypatch.setattr(bot, "run_until_stopped", AsyncMock())
        command = CommandContext(config=config, env=env)
        await bot._bot(command, insecure_dev=True)  # pyright: ignore[reportPrivateUsage] - the command without its event loop

    return clicked


@pytest.mark.parametrize("is_apart", [False, True], ids=["here", "in a bot apart"])
async def test_a_standing_approval_that_ended_covers_no_call_again(
    started: Started, in_a_bot: InABot, *, is_apart: bool
) -> None:
    async with started() as store:
        harness = allowing(store)
        standing = await allowed_similar(harness)
        copy = await copied(store)
        if not is_apart:
            await harness.reviews.standing.revoke(standing.id, ANA)
    if is_apart:
        await in_a_bot(lambda reviews: reviews.standing.revoke(standing.id, ANA))
    async with started(SHORT_MS) as store:
        await put_back(store, copy)
        harness = allowing(store)
        ref, (verdict,) = await harness.submit(refund(20, "b"), thread="t2")

        reply = await answer(harness, claim_of(ref, verdict))

        assert not isinstance(reply, Claimed)
        assert (await harness.item(verdict.item_id)).state is not ItemState.AUTHORIZED


async def test_an_older_standing_approval_covers_no_more(started: Started) -> None:
    """Its record had uses left; the ledger has the calls that used them."""
    async with started() as store:
        harness = allowing(store)
        await allowed_similar(harness, what=chosen(uses=3))
        copy = await copied(store)
        for order in ("b", "c"):
            ref, (verdict,) = await harness.submit(refund(20, order), thread=order)
            for fence in (1, 2):
                reply = await answer(harness, claim_of(ref, verdict, owner=str(fence)))
                assert isinstance(reply, Claimed)
                await harness.agents.release(verdict.item_id, fence)
    async with started(SHORT_MS) as store:
        await put_back(store, copy)
        harness = allowing(store)
        for order in ("d", "e", "f"):
            ref, (verdict,) = await harness.submit(refund(20, order), thread=order)
            reply = await answer(harness, claim_of(ref, verdict))
            assert not isinstance(reply, Claimed)

"""What another process does between precomputing and click counts as it always does.

Two bots in processes of their own have precomputed the same approvals.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Sequence,
)
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.apart.house import LONG_S
from tests.approvals.builders import click_on
from tests.bot.bot_stack import DAN, Stack
from tests.bot.several_bots import (
    POLICY,
    Bot,
    Bots,
    authorized,
    item_of,
    request,
    several_bots,
    told,
    told_more,
    words_to,
)
from tests.conftest import eventually
from tests.service.harness import person
from twokey.gateway.approvals.decisions import Approve, Edit, Reject
from twokey.gateway.approvals.record import approval_of
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.wire import Verdict
from twokey.gateway.service.erasing import Eraser
from twokey.gateway.store.freezes import FreezeScope, ScopeKind
from twokey.gateway.trust.key_folder import KeyFolder, Role
from twokey.gateway.trust.keyring import Keyring

BEN = person("U0BEN").with_(team=DAN.team, usergroups=frozenset({"S0SUPPORT"}))
RACES = 8
HOURS_S = 7_200
STRICTER = "  process_refund:\n    tier: escalate"
TOOL = FreezeScope(kind=ScopeKind.TOOL, name="process_refund")


@pytest.fixture
async def bots(stack: Stack, tmp_path: Path) -> AsyncGenerator[Bots]:
    stack.policy = load_policy(POLICY, "policy.yml")
    async with several_bots(stack, tmp_path) as found:
        yield found


Act = Callable[[Stack, Verdict], Awaitable[object]]


async def approved(stack: Stack, verdict: Verdict) -> None:
    click = click_on(await stack.approval(verdict))
    assert (await stack.reviews.decide(click, Approve(), BEN)).kind == "decided"


async def edited(stack: Stack, verdict: Verdict) -> None:
    click = click_on(await stack.approval(verdict))
    edit = Edit(args={"amount": 1, "order_id": "78291"})
    assert (await stack.reviews.decide(click, edit, BEN)).kind == "decided"


async def rejected(stack: Stack, verdict: Verdict) -> None:
    click = click_on(await stack.approval(verdict))
    assert (
        await stack.reviews.decide(click, Reject(reason="no"), BEN)
    ).kind == "decided"


async def withdrawn(stack: Stack, verdict: Verdict) -> None:
    await stack.agents.withdraw(frozenset({verdict.item_id}))


async def superseded(stack: Stack, verdict: Verdict) -> None:
    await stack.agents.supersede_approvals([approval_of(verdict.item_id)[0]])


async def extended(stack: Stack, verdict: Verdict) -> None:
    await stack.reviews.times.extend(approval_of(verdict.item_id)[0], BEN)


async def frozen(stack: Stack, _: Verdict) -> None:
    await stack.reviews.freezes.freeze(TOOL, "T0/U0BEN", "wrong refunds")


async def frozen_and_lifted(stack: Stack, verdict: Verdict) -> None:
    await frozen(stack, verdict)
    assert await stack.reviews.freezes.unfreeze(TOOL, "T0/U0BEN")


async def handed_over(stack: Stack, _: Verdict) -> None:
    ben = BEN.person
    await stack.reviews.delegations.delegate(ben, "U0ANA", timedelta(hours=1))


async def erased(stack: Stack, verdict: Verdict) -> None:
    kept = await Eraser(stack.store).erase(
        approval_of(verdict.item_id)[0], by="cli/root", is_dry_run=False
    )
    assert kept.kept


async def gone(stack: Stack, verdict: Verdict) -> None:
    head = stack.keys.head(approval_of(verdict.item_id)[0])
    await stack.store.conn.command("RENAME", head, f"{head}-away")


async def back(stack: Stack, verdict: Verdict) -> None:
    head = stack.keys.head(approval_of(verdict.item_id)[0])
    await stack.store.conn.command("RENAME", f"{head}-away", head)


async def broken_off(stack: Stack, _: Verdict) -> None:
    await stack.store.conn.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


async def forgot_scripts(stack: Stack, _: Verdict) -> None:
    await stack.store.conn.command("SCRIPT", "FLUSH")


ACTS: dict[Act, tuple[ItemState, str]] = {
    approved: (ItemState.AUTHORIZED, "already approved by <@U0BEN>"),
    edited: (ItemState.AUTHORIZED, "already edited and approved by <@U0BEN>"),
    rejected: (ItemState.REJECTED, "already rejected by <@U0BEN>"),
    withdrawn: (ItemState.WITHDRAWN, "This was withdrawn"),
    superseded: (ItemState.SUPERSEDED, "The conversation moved on"),
    extended: (ItemState.AUTHORIZED, ""),
    erased: (ItemState.AUTHORIZED, ""),
    gone: (ItemState.PENDING, "This approval is not known any more"),
    broken_off: (ItemState.AUTHORIZED, ""),
    forgot_scripts: (ItemState.AUTHORIZED, ""),
    handed_over: (ItemState.AUTHORIZED, ""),
    frozen: (ItemState.PENDING, "process_refund is frozen"),
    frozen_and_lifted: (ItemState.AUTHORIZED, ""),
}
"""What comes of a call, and what Ana is told; "" where the card says it all."""


async def both(bots: Bots) -> tuple[Bot, Bot]:
    """Start two, each of which knows Ana and Ben."""
    stack = bots.stack
    started = await bots.start("one"), await bots.start("two")
    for bot in started:
        await introduced(stack, bot)
    return started


async def introduced(stack: Stack, bot: Bot) -> None:
    """Let a bot know Ana and Ben."""
    for user in ("U0ANA", "U0BEN"):
        verdict = await stack.refund(f"{bot.url} {user}", amount=9)
        await bot.click(await request(stack, verdict, user))
        assert (await item_of(stack, verdict)).state is ItemState.AUTHORIZED


async def opened(bots: Bots, names: Sequence[str]) -> list[Verdict]:
    """Return calls that all bots have precomputed, whose cards are drawn."""
    found = [
        await bots.stack.refund(name, amount=100 + number)
        for number, name in enumerate(names)
    ]
    await bots.precomputed(*found)
    return found


async def test_what_was_done_elsewhere_before_the_click_counts(
    stack: Stack, bots: Bots
) -> None:
    """The bot is paused meanwhile: it finds the click before it hears of anything."""
    one, _ = await both(bots)
    verdicts = await opened(bots, [act.__name__ for act in ACTS])
    count = 0
    for (act, (state, words)), verdict in zip(ACTS.items(), verdicts, strict=True):
        body = await request(stack, verdict, "U0ANA")
        with one.paused():
            await act(stack, verdict)
            clicking = asyncio.create_task(one.click(body))
        assert await clicking == [200], act
        if words:
            assert words in await told_more(stack, "U0ANA", count), act
            count += 1
        if act is handed_over:
            assert await stack.reviews.delegations.take_back(BEN.person)
        if act is gone:
            await back(stack, verdict)
        if act is frozen:
            assert await stack.reviews.freezes.unfreeze(TOOL, "T0/U0BEN")

        item = await item_of(stack, verdict)
        assert item.state is state, act
        is_authorized = state is ItemState.AUTHORIZED
        assert await authorized(stack, verdict) == is_authorized, act
        by = "U0BEN" if "U0BEN" in words else "U0ANA"
        if is_authorized:
            assert item.decision
            assert item.decision.by.user == by, act
        if state is ItemState.PENDING:
            await one.click(await request(stack, verdict, "U0ANA"))
            assert (await item_of(stack, verdict)).state is ItemState.AUTHORIZED, act
        if (await item_of(stack, verdict)).may_run:
            await stack.execute(verdict)

    # Afterwards a click is decided as it was precomputed.
    [verdict] = await opened(bots, ["afterwards"])
    await one.click(await request(stack, verdict, "U0ANA"))
    await one.decided_as_precomputed(verdict)
    assert len(await words_to(stack, "U0ANA")) == count


async def test_of_clicks_at_once_in_two_processes_one_counts(
    stack: Stack, bots: Bots
) -> None:
    one, two = await both(bots)
    verdicts = await opened(bots, [f"race {number}" for number in range(RACES)])
    for verdict in verdicts:
        ana, ben = [await request(stack, verdict, u) for u in ("U0ANA", "U0BEN")]
        before = {user: len(await words_to(stack, user)) for user in ("U0ANA", "U0BEN")}

        # Slack may also send one request twice; signed in another second it is another.
        at = str(await stack.store.conn.now_ms("") // 1000)
        statuses = await asyncio.gather(
            one.click(ana, ana, at=at), two.click(ben, at=at), two.click(ana, at=at)
        )

        assert [*itertools.chain(*statuses)] == [200] * 4
        assert await authorized(stack, verdict) == 1
        item = await item_of(stack, verdict)
        assert item.decision
        winner = item.decision.by.user
        loser = "U0BEN" if winner == "U0ANA" else "U0ANA"
        assert f"already approved by <@{winner}>" in await told_more(
            stack, loser, before[loser]
        )
        assert len(await words_to(stack, winner)) == before[winner]
        await stack.execute(verdict)

    async def is_any_as_precomputed() -> bool:
        return any(True in bot.tried(one) for bot in bots.running for one in verdicts)

    await eventually(is_any_as_precomputed, within_s=LONG_S)


async def test_whatever_its_clock_says_the_store_dates_a_click(
    stack: Stack, bots: Bots
) -> None:
    one = await bots.start("one")
    await introduced(stack, one)
    verdicts = await opened(bots, ["ahead", "behind", "right"])
    for verdict, ahead_s in zip(verdicts, (HOURS_S, -HOURS_S, 0), strict=True):
        body = await request(stack, verdict, "U0ANA")
        one.sets_clock(ahead_s)
        assert await one.click(body) == [200]
        item = await item_of(stack, verdict)
        assert item.decision, ahead_s
        # A bot knows the store's clock but for some milliseconds.
        off_ms = await stack.store.conn.now_ms("") - item.decision.at_ms
        assert abs(off_ms) < LONG_S * 1000
        await one.decided_as_precomputed(verdict)
        assert await authorized(stack, verdict) == 1
        await stack.execute(verdict)


async def has_ended(stack: Stack, verdict: Verdict) -> bool:
    """Say whether the time of an approval is over, by the store's clock."""
    approval = await stack.approval(verdict)
    return await stack.store.conn.now_ms("") > approval.expires_at_ms


async def test_a_bot_that_stood_still_knows_nothing_of_before(
    stack: Stack, bots: Bots, tmp_path: Path
) -> None:
    """Meanwhile a call expired, a key was replaced, and the policy is another one."""
    stack.store.keyring = Keyring(tmp_path / "keys", makes=Role)
    stack.store.keyring.make_missing(datetime.fromtimestamp(0, UTC))
    folder = KeyFolder(tmp_path / "keys", Role.BOT)
    one, two = await both(bots)
    late = (await stack.submit(("pay_soon", {"amount": 1}), thread="late"))[0]
    said = f"precomputed {approval_of(late.item_id)[0]}"

    async def is_precomputed() -> bool:
        return one.has_said(said) or await has_ended(stack, late)

    await eventually(is_precomputed, within_s=LONG_S)
    key, other, policy = await opened(bots, ["key", "other", "policy"])
    bodies = [await request(stack, one_, "U0ANA") for one_ in (late, key, other)]
    of_policy = await request(stack, policy, "U0ANA")

    one.pause()
    before = folder.signing_key().public
    folder.rotate(datetime.fromtimestamp(1, UTC))
    folder.retire(before.label, datetime.fromtimestamp(2, UTC))
    await two.click(await request(stack, other, "U0BEN"))
    await eventually(lambda: has_ended(stack, late), within_s=LONG_S)
    clicking = asyncio.create_task(one.click(*bodies))
    one.resume()
    assert await clicking == [200] * 3

    words = await told(stack, "U0ANA", 2)
    assert any("already approved by <@U0BEN>" in one for one in words)
    assert any("expired" in one for one in words)
    assert await authorized(stack, late) == 0
    [vote] = (await item_of(stack, key)).votes
    assert vote.signed
    assert vote.signed.key == folder.signing_key().public.id.hex()
    await stack.execute(key)

    # Those who left a group while it stood still are asked for again.
    one.pause()
    stack.sandbox.control.set_group("S0SUPPORT", ["U0BEN"])
    one.slept_for(HOURS_S)
    later_s = await stack.store.conn.now_ms("") // 1000 + HOURS_S
    clicking = asyncio.create_task(one.click(of_policy, at=str(later_s)))
    one.resume()
    assert await clicking == [200]
    assert (await item_of(stack, policy)).state is ItemState.PENDING
    assert len(await told(stack, "U0ANA", 3)) == 3
    stack.sandbox.control.set_group("S0SUPPORT", ["U0ANA", "U0BEN"])
    one.slept_for(0)

    # It may not have looked at the file yet. What was let start by the policy of
    # before does not start under the one in force.
    one.pause()
    stricter = POLICY.replace("  process_refund:\n    tier: approve", STRICTER)
    assert stricter != POLICY
    one.policy.write_text(stricter)
    stack.policy = load_policy(stricter, "policy.yml")
    clicking = asyncio.create_task(one.click(await request(stack, policy, "U0BEN")))
    one.resume()
    await clicking
    with pytest.raises(AssertionError):
        await stack.begin(policy)

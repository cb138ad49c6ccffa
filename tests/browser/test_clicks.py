"""How many clicks a reviewer needs for many calls; the sandbox's page counts them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TypeAlias

import pytest
from selenium.webdriver import Chrome

from keyturn.gateway.approvals.record import approval_of
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import Verdict
from keyturn.gateway.store.store import Store
from keyturn.sandbox.server import Sandbox
from tests.bot.bot_stack import CHANNEL, POLICY, Stack
from tests.browser.acts import ANA, amount_field, words_on
from tests.conftest import eventually
from tests.patience import lift_limits
from tests.sandbox.page.screen import Screen

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

RULE = "    tier: approve\n"
TOTALS = POLICY.replace(RULE, f"{RULE}    totals: [args.amount]\n", 1)
BATCHED = POLICY.replace(RULE, f"{RULE}    batch: {{within: 10m, up_to: 20}}\n", 1)
Call: TypeAlias = tuple[str, JsonObject]


def refund(n: int, amount: float) -> Call:
    args: JsonObject = {"amount": amount, "order_id": f"{78200 + n}"}
    return "process_refund", args


LAMPS = [refund(n, 219 if n == 16 else 19.9 + n % 5) for n in range(56)]
"""The amount of call 17 is far from the others."""

MIXED: list[Call] = [
    LAMPS[n] if n % 2 else ("send_email", {"to": f"{n}@example.com"}) for n in range(10)
]


def edit_one_and_reject_one(screen: Screen) -> None:
    """Edit the marked call, reject the last one, and approve the others."""
    screen.click('[data-action-id="choose"]')
    screen.click('.dialog [data-block-id="choose.edit.16"] button')
    screen.type(amount_field(screen), "21.90")
    screen.type('.dialog [data-block-id="reason"] .control', "One digit too many.")
    screen.click(".modal-submit", last=True)
    screen.wait(lambda: "Call 17, edited" in screen.words(".dialog"), "the edit")
    screen.click('.dialog input[data-value="55"]')
    screen.click('.dialog input[data-value="reject"]')
    screen.click(".modal-submit")
    screen.type('.dialog [data-block-id="reason"] .control', "Refunded before.")
    screen.click(".modal-submit")


def reject_the_last(screen: Screen) -> None:
    """Reject the last call in its row, and approve the others."""
    screen.click('[data-action-id="reject"]', last=True)
    screen.type('.dialog [data-block-id="reason"] .control', "Refunded before.")
    screen.click(".modal-submit")
    screen.gone(".dialog")
    approve_all(screen)


def approve_all(screen: Screen) -> None:
    """Approve every card of several calls as a whole."""

    def approve() -> None:
        screen.click(button)
        screen.click(".confirm-agree")

    button = '[data-action-id="approve_all"]'
    for_each(screen, button, approve)


def approve_each(screen: Screen) -> None:
    """Approve each card of one call."""
    button = '[data-action-id="approve"]'
    for_each(screen, button, lambda: screen.click(button))


def for_each(screen: Screen, button: str, decide: Callable[[], None]) -> None:
    """Decide until no card has this button."""

    def is_decided() -> bool:
        return len(screen.all(button)) < left

    while left := len(screen.all(button)):
        decide()
        screen.wait(is_decided, "the decided card")


def review_together(screen: Screen) -> None:
    """Approve the calls of separate cards by one form of the Home tab."""
    screen.open(ANA, "home")
    screen.click('[data-action-id="review_together"]')
    screen.click(".modal-submit")
    screen.wait(lambda: "Confirm" in screen.words(".dialog"), "the confirmation")
    screen.click(".modal-submit")
    screen.wait(lambda: not screen.all(".dialog"), "the closed form")


@dataclass(frozen=True)
class Case:
    """Calls, a gesture, and what the page counts.

    ``cards`` is the number of cards. ``threads`` is whether each call is asked in a
    separate thread.
    """

    calls: list[Call]
    gesture: Callable[[Screen], None]
    clicks: int
    interactions: int
    rejected: int = 0
    cards: int = 1
    threads: bool = False
    policy: str = POLICY


CASES = {
    "56 calls: 54 approved, 1 edited, 1 rejected": Case(
        LAMPS,
        edit_one_and_reject_one,
        clicks=7,
        interactions=5,
        rejected=1,
        policy=TOTALS,
    ),
    "20 threads with batch": Case(
        LAMPS[:20], approve_all, clicks=2, interactions=1, threads=True, policy=BATCHED
    ),
    "20 threads without batch, by card": Case(
        LAMPS[:20], approve_each, clicks=20, interactions=20, cards=20, threads=True
    ),
    "20 threads without batch, together": Case(
        LAMPS[:20], review_together, clicks=3, interactions=3, cards=20, threads=True
    ),
    "10 mixed": Case(MIXED, approve_all, clicks=4, interactions=2, cards=2),
    "5 of one turn": Case(
        LAMPS[:5], reject_the_last, clicks=4, interactions=3, rejected=1
    ),
    "6 of one turn": Case(
        LAMPS[:6], reject_the_last, clicks=4, interactions=3, rejected=1
    ),
}
"""What the page counts for each case. Typing is no click."""


@pytest.fixture
async def stack(store: Store, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stack]:
    lift_limits(monkeypatch)
    async with Sandbox() as sandbox:
        yield Stack(sandbox, store)


async def asked(stack: Stack, case: Case) -> list[Verdict]:
    """Submit the calls of a case, and wait for its cards."""
    stack.policy = load_policy(case.policy, "policy.yml")
    turns = [[one] for one in case.calls] if case.threads else [case.calls]
    found = [
        verdict
        for n, turn in enumerate(turns)
        for verdict in await stack.submit(*turn, thread=f"t{n}")
    ]

    async def are_there() -> bool:
        messages = await stack.actor(ANA).messages(CHANNEL)
        return len([m for m in messages if m.get("metadata")]) >= case.cards

    await eventually(are_there)
    return found


@pytest.mark.parametrize("name", CASES)
async def test_a_case_needs_these_clicks(
    stack: Stack, chrome: Chrome, name: str
) -> None:
    case = CASES[name]

    def decide() -> tuple[int, int]:
        screen = Screen(chrome, stack.sandbox.url)
        screen.size(1280, 900)
        screen.open(ANA, CHANNEL)
        words_on(screen, "Requested by")
        case.gesture(screen)
        counted: dict[str, str] = screen.run(
            "return {...document.documentElement.dataset}"
        )
        return int(counted["clicks"]), int(counted["interactions"])

    async with stack.running():
        verdicts = await asked(stack, case)
        counted = await asyncio.to_thread(decide)

        async def states() -> Counter[ItemState]:
            found = [await stack.approval(one) for one in verdicts]
            return Counter(
                one.items[approval_of(verdict.item_id)[1]].state
                for one, verdict in zip(found, verdicts, strict=True)
            )

        expected = {ItemState.AUTHORIZED: len(verdicts) - case.rejected}
        expected |= {ItemState.REJECTED: case.rejected} if case.rejected else {}

        async def are_decided() -> bool:
            return await states() == expected

        await eventually(are_decided)
    await asyncio.to_thread(chrome.get, "about:blank")
    assert counted == (case.clicks, case.interactions)

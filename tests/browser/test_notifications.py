"""A notification in a real browser: seen, reported, and its tool stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome

from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.store.store import Store
from keyturn.sandbox.server import Sandbox
from tests.bot.bot_stack import CHANNEL, POLICY, Stack
from tests.bot.listeners.test_notifications import end
from tests.browser.test_stories import words_on
from tests.sandbox.page.screen import Screen

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

DESKTOP, PHONE = (1100, 1000), (390, 1000)
MAIL = (
    'send_email: {tier: notify, description: "Write to {args.to}", redact: [args.key]}'
)


@pytest.fixture
async def stack(store: Store) -> AsyncIterator[Stack]:
    async with Sandbox() as sandbox:
        policy = POLICY.replace("send_email: {tier: approve, idempotent: true}", MAIL)
        yield Stack(sandbox, store, policy=load_policy(policy, "policy.yml"))


@pytest.fixture
def gallery(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    named = request.config.getoption("--screenshots")
    folder = Path(named) if named else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def plays(screen: Screen, gallery: Path) -> None:
    screen.size(*DESKTOP)
    screen.open("U0ANA", CHANNEL)
    words_on(screen, "2 calls without review", "1 done, 1 failed", "hidden by policy")
    screen.click('[data-action-id="report"]')
    screen.type('.dialog [data-block-id="remark"] .control', "Nobody asked for this.")
    screen.save(gallery / "report.png")
    screen.click(".modal-submit")
    screen.gone(".dialog")
    words_on(screen, "Reported by", "Nobody asked for this.")
    screen.click('[data-action-id="freeze_tool"]')
    words = screen.text(".dialog")
    assert "Freeze the tool?" in words
    screen.save(gallery / "freeze.png")
    screen.click(".confirm-agree")
    words_on(screen, "The tool send_email", "Frozen by", "The tool is frozen")
    for name, size, scheme in (
        ("notification-light", DESKTOP, "light"),
        ("notification-dark", DESKTOP, "dark"),
        ("notification-phone", PHONE, "light"),
        ("notification-phone-dark", PHONE, "dark"),
    ):
        screen.size(*size, scheme=scheme)
        screen.open("U0BEN", CHANNEL)
        words_on(screen, "Reported by")
        screen.save(gallery / f"{name}.png")
    pictures = list(gallery.glob("notification-*.png"))
    assert all(picture.stat().st_size > 10_000 for picture in pictures)
    assert len(pictures) == 4
    assert not screen.problems()


async def test_a_notification_is_seen_reported_and_its_tool_stopped(
    chrome: Chrome, stack: Stack, gallery: Path
) -> None:
    mail = {"to": "kim@example.com", "subject": "Your refund", "key": "s3cret"}
    async with stack.running():
        first, second = await stack.submit(
            ("send_email", {**mail}), ("post_notice", {"text": "We are open again."})
        )
        await end(stack, first)
        await end(stack, second, ok=False)
        screen = Screen(chrome, stack.sandbox.url)

        await asyncio.to_thread(plays, screen, gallery)

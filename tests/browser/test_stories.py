"""Reviewers' stories in a real browser, against the real bot over both transports.

The transports take turns; a deep run plays each story over both.
`tests/stories` always plays over both, without a browser.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium.webdriver import Chrome, Keys

from tests.browser.demo_process import Demo
from tests.levels import is_deep
from tests.sandbox.page.screen import PATIENCE_S, Screen

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

CHANNEL = "C0APPROVALS"
REASON = "Only half of it was damaged."
QUESTION = "Did the customer send a photo of the damage?"
REPLY = "Yes: the screen is cracked in two places."
THREAD_BOX = "#thread .composer-box"
CARD = ".message:has([data-action-id])"


TRANSPORTS = ("socket", "http")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the transport of each story, or both."""
    if "mode" in metafunc.fixturenames:
        stories = [name for name in globals() if name.startswith("test_")]
        turn = stories.index(metafunc.function.__name__) % len(TRANSPORTS)
        is_both = is_deep()
        metafunc.parametrize("mode", TRANSPORTS if is_both else [TRANSPORTS[turn]])


def words_on(screen: Screen, *expected: str, within_s: float = PATIENCE_S) -> str:
    """Wait until the channel shows all of these words; return its text."""

    def shown() -> str:
        text = str(screen.run("return document.querySelector('main').innerText"))
        return text if all(word in text for word in expected) else ""

    return screen.wait(shown, f"the words {expected}", within_s)


def amount_field(screen: Screen) -> str:
    """Return the selector of the input whose label is "amount"."""
    return field_of(screen, "amount")


def field_of(screen: Screen, label: str) -> str:
    """Return the selector of the input whose label begins with a word."""
    block = screen.wait(
        lambda: screen.run(
            "const labels = [...document.querySelectorAll('.dialog [data-block-id]')];"
            "const word = arguments[0];"
            "const found = labels.find((n) => n.innerText.trim().startsWith(word));"
            "return found ? found.dataset.blockId : null",
            label,
        ),
        f"the field {label!r}",
    )
    return f'.dialog [data-block-id="{block}"] .control'


def final_message(screen: Screen) -> str:
    """Open the thread of the first request and return its text."""

    def said() -> str:
        if not _is_open(screen):
            screen.click(".replies")
        return screen.words("#thread") if _is_open(screen) else ""

    return screen.wait(said, "the thread")


def _is_open(screen: Screen) -> bool:
    return any(node.is_displayed() for node in screen.all("#thread"))


def test_approve(screen: Screen, demo: Demo) -> None:
    screen.open("U0ANA", CHANNEL)
    words_on(screen, "Approval needed", "78291")

    screen.click('[data-action-id="approve"]')
    words_on(screen, ", done ")

    assert [effect["args"]["amount"] for effect in demo.effects()] == [899]
    assert not screen.problems()


def test_edit_with_an_inline_error_first(screen: Screen, demo: Demo) -> None:
    screen.open("U0ANA", CHANNEL)
    screen.click('[data-action-id="edit"]')
    amount = amount_field(screen)
    screen.type(amount, "0")
    screen.type('.dialog [data-block-id="reason"] .control', REASON)
    screen.click(".modal-submit")
    error = screen.words(".dialog .error")

    screen.type(amount, "449.50")
    screen.click(".modal-submit")
    screen.gone(".dialog")
    text = words_on(screen, ", done ", "449.5", REASON)

    assert error
    assert "899" in text, "the card keeps what was requested"
    assert [effect["args"]["amount"] for effect in demo.effects()] == [449.5]
    screen.wait(
        lambda: "449.50 instead of 899.00" in final_message(screen), "the last words"
    )


def test_reject_with_a_reason(screen: Screen, demo: Demo) -> None:
    screen.open("U0ANA", CHANNEL)
    screen.click('[data-action-id="reject"]')
    screen.type('.dialog [data-block-id="reason"] .control', REASON)
    screen.click(".modal-submit")
    screen.gone(".dialog")

    words_on(screen, "Rejected", REASON)

    assert not demo.effects()


def test_respond(screen: Screen, demo: Demo) -> None:
    screen.open("U0ANA", CHANNEL)
    words_on(screen, "Approval needed")
    screen.run("document.querySelector('[data-action-id=more]').focus()")
    screen.press(Keys.ENTER)
    assert screen.words(".menu").splitlines() == [
        "Respond",
        "Full details",
        "Allow similar…",
        "Ask the requester…",
        "I'm on it",
    ]
    screen.press(Keys.ARROW_DOWN, Keys.ARROW_UP, Keys.ENTER)
    screen.type('.dialog [data-block-id="message"] .control', "Ask for a photo.")
    screen.click(".modal-submit")
    screen.gone(".dialog")

    words_on(screen, "Answered", "Ask for a photo.")

    assert not demo.effects()


def test_the_requester_is_asked_and_replies_in_the_thread(
    screen: Screen, demo: Demo
) -> None:
    ask_dan(screen)
    words_on(screen, "has not replied yet", QUESTION)
    reply_as_dan(screen)

    words_on(screen, REPLY)
    screen.open("U0ANA", CHANNEL)
    words_on(screen, QUESTION, REPLY)
    screen.click('[data-action-id="approve"]')
    words_on(screen, ", done ")

    assert len(demo.effects()) == 1


def ask_dan(screen: Screen, *, is_sent: bool = True) -> None:
    """Ask the requester from the card, as Ana; or only fill the form."""
    screen.open("U0ANA", CHANNEL)
    words_on(screen, "Approval needed", "78291")
    screen.click('[data-action-id="more"]')
    screen.click('.menu [data-value^="ask_requester "]')
    screen.type('.dialog [data-block-id="question"] .control', QUESTION)
    if is_sent:
        screen.click(".modal-submit")
        screen.gone(".dialog")


def reply_as_dan(screen: Screen) -> None:
    """Reply in the thread of the newest card, once the question is there."""
    screen.open("U0DAN", CHANNEL)

    def is_asked() -> bool:
        screen.click(".replies", last=True)
        return QUESTION in screen.words("#thread")

    screen.wait(is_asked, "the question in the thread")
    screen.one(THREAD_BOX).send_keys(f"@keyturn {REPLY}\n")


def test_the_old_button_works_after_a_restart(screen: Screen, demo: Demo) -> None:
    screen.open("U0ANA", CHANNEL)
    words_on(screen, "Approval needed")

    demo.stop()
    demo.start()
    screen.open("U0ANA", CHANNEL)
    screen.click('[data-action-id="approve"]')
    words_on(screen, ", done ")

    assert len(demo.effects()) == 1


def test_the_week_s_numbers_are_a_chart_on_the_page(screen: Screen, demo: Demo) -> None:
    screen.open("U0ANA", CHANNEL)
    words_on(screen, "Approval needed")
    screen.click('[data-action-id="approve"]')
    words_on(screen, ", done ")

    demo.stop()
    demo.options = ("--digest",)
    demo.start()
    screen.open("U0ANA", CHANNEL)

    words_on(screen, "The week's numbers", "Calls of each day", "process_refund")
    screen.one(".chart-picture svg")
    titles = [node.get_attribute("textContent") for node in screen.all("rect title")]
    assert len(titles) == 4 * 8  # until this moment, so there are eight days
    assert any(str(title).endswith("Approved: 1") for title in titles)


def test_the_old_button_works_after_everything_was_killed(
    screen: Screen, demo: Demo
) -> None:
    screen.open("U0ANA", CHANNEL)
    words_on(screen, "Approval needed")

    demo.kill()
    demo.start()
    screen.open("U0ANA", CHANNEL)
    screen.click('[data-action-id="approve"]')
    # The dead process's leases, on the thread and on publishing, run out first.
    screen.wait(lambda: len(demo.effects()) == 1, "the effect", within_s=90)
    words_on(screen, ", done ", within_s=90)

    assert len(demo.effects()) == 1


def test_several_calls_on_one_card_are_decided_one_by_one(
    screen: Screen, demo: Demo
) -> None:
    screen.open("U0ANA", CHANNEL)
    words_on(screen, "Approval needed")
    screen.click('[data-hook="suggestion-1"]')
    words_on(screen, "Approval needed", "3 calls: ")

    screen.click('[data-action-id="approve_all"]')
    screen.click(".confirm-agree")
    screen.wait(lambda: len(demo.effects()) == 3, "three effects")

    tools = sorted(effect["tool"] for effect in demo.effects())
    assert tools == ["change_address", "process_refund", "send_email"]


def test_of_two_reviewers_one_wins_and_the_other_is_told(
    screen: Screen, demo: Demo, chrome: Chrome
) -> None:
    screen.open("U0ANA", CHANNEL)
    words_on(screen, "Approval needed")
    act = (
        "const state = await (await fetch('/sandbox/state?user=U0ANA')).json();"
        "const card = state.channels.flatMap((c) => c.messages.map((m) => [c, m]))"
        "  .find(([, m]) => JSON.stringify(m.blocks || []).includes('\"approve\"'));"
        "const block = card[1].blocks.find((b) => b.type === 'actions');"
        "const click = (user, action_id) => fetch('/sandbox/act', {method: 'POST',"
        "  headers: {'content-type': 'application/json'}, body: JSON.stringify({user,"
        "  type: 'block_actions', channel: card[0].id, ts: card[1].ts,"
        "  block_id: block.block_id, action_id})});"
        "await Promise.all([click('U0ANA', 'approve'), click('U0BEN', 'approve')]);"
        "return true"
    )

    screen.run(act)
    words_on(screen, ", done ")

    def told() -> bool:
        texts: list[str] = []
        for user in ("U0ANA", "U0BEN"):
            screen.open(user, CHANNEL)
            texts.append(str(screen.run("return document.body.innerText")))
        return sum("Only visible to you" in text for text in texts) == 1

    screen.wait(told, "exactly one of them to be told privately")
    assert len(demo.effects()) == 1


def test_an_outsider_and_the_requester_are_refused_in_private(
    screen: Screen, demo: Demo
) -> None:
    for user, why in (
        ("U0EVE", "Please ask one of them"),
        ("U0DAN", "You asked for this"),
    ):
        screen.open(user, CHANNEL)
        screen.click('[data-action-id="approve"]')
        words_on(screen, "Only visible to you", why)

    screen.open("U0ANA", CHANNEL)
    words_on(screen, "Approval needed")
    assert not demo.effects()


def test_a_card_that_nobody_decides_expires_before_their_eyes(
    chrome: Chrome, tmp_path: Path, mode: str
) -> None:
    policy = tmp_path / "policy.yml"
    policy.write_text(
        "version: 1\n"
        "defaults: {channel: C0APPROVALS, reviewers: [U0ANA], expires_in: 10s}\n"
        "tools: {look_up_order: {tier: auto}}\n",
        encoding="utf-8",
    )
    demo = Demo(tmp_path, mode, {"KEYTURN_POLICY": str(policy)})
    demo.start()
    try:
        screen = Screen(chrome, demo.url)
        screen.size(1280, 900)
        screen.open("U0ANA", CHANNEL)
        words_on(screen, "Approval needed")

        words_on(screen, "Expired", "Nothing ran", within_s=30)

        assert not screen.all('[data-action-id="approve"]')
        screen.wait(
            lambda: "no decision in time" in final_message(screen), "the last words"
        )
        assert not demo.effects()
    finally:
        demo.stop()


def test_everything_works_with_the_keyboard_alone(screen: Screen, demo: Demo) -> None:
    screen.open("U0ANA", CHANNEL)
    screen.with_one(
        '[data-action-id="reject"]',
        lambda node: screen.run("arguments[0].focus()", node),
    )
    screen.press(Keys.ENTER)
    screen.one(".dialog")
    screen.press(Keys.ESCAPE)
    screen.gone(".dialog")

    assert screen.has_focus('[data-action-id="reject"]')
    assert not demo.effects()

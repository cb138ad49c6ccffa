"""What takes two people and what takes time, seen in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Keys

from tests.browser.demo_process import Demo
from tests.browser.hasty import E_MAIL, SEVERAL, TWO_PEOPLE, hasty_demo
from tests.browser.test_stories import CHANNEL, amount_field, words_on
from tests.sandbox.page.screen import Screen

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

ANA, BEN, CHLOE, EVE = "U0ANA", "U0BEN", "U0CHLOE", "U0EVE"


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    """Run the demo in a hurry."""
    running = hasty_demo(tmp_path)
    running.start()
    yield running
    running.stop()


def press_last(screen: Screen, action: str) -> None:
    """Press the newest button of one kind."""
    screen.click(f'[data-action-id="{action}"]', last=True)


def choose_last(screen: Screen, action: str) -> None:
    """Choose an act in the newest menu of a card."""
    press_last(screen, "more")
    screen.click(f'.menu [data-value^="{action} "]')


def ask_for_two(screen: Screen) -> None:
    """Request the refund that takes two people, as a user of the page."""
    screen.open(ANA, CHANNEL)
    words_on(screen, "Approval needed", "78291")
    screen.click(f'[data-hook="{TWO_PEOPLE}"]')
    words_on(screen, "Needs 2 approvals", "a refund over 1000")


def approve_as(screen: Screen, user: str) -> None:
    """Approve the newest card, and confirm since it takes two."""
    screen.open(user, CHANNEL)
    press_last(screen, "approve")
    screen.click(".confirm-agree")


def last_thread(screen: Screen) -> str:
    """Open the thread under the newest message that has one; return its words."""
    screen.click(".replies", last=True)
    return screen.words("#thread")


def test_a_refund_over_1000_takes_two_people_and_calls_the_senior(
    screen: Screen, demo: Demo
) -> None:
    ask_for_two(screen)
    words_on(screen, "Escalated")
    screen.wait(
        lambda: "Still waiting for a decision" in last_thread(screen), "the reminder"
    )
    screen.wait(
        lambda: "so others are asked too" in last_thread(screen), "the escalation"
    )

    approve_as(screen, ANA)
    words_on(screen, "1 of 2 approvals", "still needs 1 from senior")
    assert not demo.effects()
    approve_as(screen, CHLOE)
    words_on(screen, ", done ")

    assert [effect["args"]["amount"] for effect in demo.effects()] == [1299]
    assert not screen.problems()


def test_who_is_on_it_is_seen_by_everybody_and_more_time_is_given(
    screen: Screen, demo: Demo
) -> None:
    ask_for_two(screen)
    words_on(screen, "Escalated")

    choose_last(screen, "take")
    words_on(screen, "Ana Alves is on it until")
    screen.open(BEN, CHANNEL)
    words_on(screen, "Ana Alves is on it until")
    choose_last(screen, "take")
    words_on(screen, "Ben Boer is on it until")
    choose_last(screen, "extend")

    screen.wait(lambda: "extended the deadline" in last_thread(screen), "the news")
    assert not demo.effects()


def test_what_nobody_decides_is_told_in_another_channel(
    screen: Screen, demo: Demo
) -> None:
    screen.open(ANA, CHANNEL)
    screen.click(f'[data-hook="{E_MAIL}"]')

    screen.open(ANA, "C0GENERAL")
    text = words_on(screen, "is not decided yet", "send_email")

    assert "sam@example.com" not in text
    assert not demo.effects()


def test_a_colleague_decides_in_somebodys_place(screen: Screen, demo: Demo) -> None:
    screen.open(EVE, CHANNEL)
    screen.click('[data-action-id="approve"]')
    words_on(screen, "Please ask one of them")
    screen.open(ANA, CHANNEL)
    screen.type('[data-hook="composer-box"]', "/approvals delegate @eve 4h")
    screen.press(Keys.ENTER)
    words_on(screen, "may decide in your place until")

    screen.open(EVE, CHANNEL)
    screen.click('[data-action-id="approve"]')
    words_on(screen, "Eve Evans for", ", done ")

    assert [effect["args"]["amount"] for effect in demo.effects()] == [899]


def test_an_edit_that_raises_the_tier_warns_and_then_takes_two_others(
    screen: Screen, demo: Demo
) -> None:
    screen.open(ANA, CHANNEL)
    screen.click('[data-action-id="edit"]')
    screen.type(amount_field(screen), "1250")
    screen.type('.dialog [data-block-id="reason"] .control', "Shipping, too.")
    screen.click(".modal-submit")
    screen.wait(
        lambda: (
            "2 other people of support or senior to approve it"
            in " ".join(screen.words(".dialog").split())
        ),
        "the warning",
    )
    said = " ".join(screen.words(".dialog").split())
    assert "Needs two people: a refund over 1000." in said

    screen.click(".modal-submit")
    screen.wait(lambda: "recorded" in screen.words(".dialog"), "the result")
    screen.press(Keys.ESCAPE)
    words_on(screen, "Needs 2 approvals", "€899.00 → €1,250.00")
    for user, said in ((ANA, "You edited this"), (BEN, "1 of 2"), (CHLOE, ", done ")):
        approve_as(screen, user)
        words_on(screen, said)

    assert [effect["args"]["amount"] for effect in demo.effects()] == [1250]


def test_home_lists_everything_that_waits_for_one_person(
    screen: Screen, demo: Demo
) -> None:
    ask_for_two(screen)
    screen.click(f'[data-hook="{SEVERAL}"]')
    # The e-mail has a separate card: it is pending for a shorter time than the others.
    words_on(screen, "Approval needed", "2 calls: ", "Write to sam@example.com")

    screen.open(ANA, "home")
    words_on(screen, "Waiting for you: ", "0 of 2 approvals", "2 calls wait")
    # Which of them is the most urgent changes while one looks.
    screen.run(
        "let row = [...document.querySelectorAll('.block-rich-text')]"
        ".find((row) => row.innerText.includes('78420'));"
        "while (!row.querySelector('button')) row = row.nextElementSibling;"
        "[...row.querySelectorAll('button')].at(-1).click()"
    )

    screen.wait(lambda: "78420" in screen.words(".dialog"), "the one that was opened")
    assert not demo.effects()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_a_phone(screen: Screen, scheme: str) -> None:
    ask_for_two(screen)
    words_on(screen, "Escalated")
    screen.size(360, 780, scheme=scheme)

    for place in (CHANNEL, "home"):
        screen.open(ANA, place)
        words_on(screen, "78420")
        widths = screen.run(
            "return [...document.querySelectorAll('main *')]"
            ".filter((n) => n.offsetParent && n.getBoundingClientRect().right > 361)"
            ".filter((n) => !n.closest('.suggestions'))"
            ".map((n) => n.className)"
        )
        assert widths == []

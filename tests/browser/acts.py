"""What people do on the page in several tests: ask, fill in, press, read."""

from __future__ import annotations

from selenium.webdriver import Keys

from tests.browser.demo_process import TWO_PEOPLE
from tests.sandbox.page.screen import PATIENCE_S, Screen

ANA, BEN, CHLOE, DAN = "U0ANA", "U0BEN", "U0CHLOE", "U0DAN"
CHANNEL = "C0APPROVALS"
REASON = "Only half of it was damaged."
QUESTION = "Did the customer send a photo of the damage?"
REPLY = "Yes: the screen is cracked in two places."
THREAD_BOX = "#thread .composer-box"


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


def ask_dan(screen: Screen) -> None:
    """Ask the requester from the card, as Ana."""
    screen.open("U0ANA", CHANNEL)
    words_on(screen, "Expires", "78291")
    screen.click('[data-action-id="more"]')
    screen.click('.menu [data-value^="ask_requester "]')
    screen.type('.dialog [data-block-id="question"] .control', QUESTION)
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
    words_on(screen, "Expires", "78291")
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


def ask(screen: Screen, order: int) -> None:
    """Request a refund of about 20 as a person without a role."""
    screen.open(DAN, CHANNEL)
    screen.type('[data-hook="composer-box"]', f"@keyturn refund order {order}")
    screen.press(Keys.ENTER)
    words_on(screen, f"refund order {order}")


def open_form(screen: Screen, order: int) -> str:
    """Open the form of the newest card; return its words."""
    ask(screen, order)
    screen.open(ANA, CHANNEL)
    words_on(screen, f"for order {order}")
    choose_last(screen, "allow_similar")
    screen.wait(lambda: "Similar calls have" in screen.words(".dialog"), "the form")
    return screen.words(".dialog")


def allow(screen: Screen, uses: int, each: str = "30") -> None:
    """Fill in the form and send it."""
    screen.type('.dialog [data-block-id="uses"] .control', f"{uses}")
    screen.type('.dialog [data-block-id="each"] .control', each)
    screen.click(".modal-submit")
    screen.gone(".dialog")
    words_on(screen, f"{uses} of {uses} calls left")

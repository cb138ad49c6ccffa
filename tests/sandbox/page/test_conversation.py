"""People write, read, reply and switch users, and lose nothing."""

import pytest
from selenium.webdriver.common.keys import Keys

from tests.sandbox.page.fake_slack import FakeSlack, Json
from tests.sandbox.page.scenes import (
    ANSWERED_TS,
    BOT,
    CHANNEL,
    channel,
    message,
    ts,
)
from tests.sandbox.page.screen import Screen

pytestmark = pytest.mark.browser

BOX = "#composer .composer-box"
THREAD_BOX = "#thread .composer-box"


def arrives(slack: FakeSlack, said: Json, at: int = 0) -> None:
    """Add a message to one of the channels."""
    channels = [dict(one) for one in slack.state["channels"]]
    channels[at]["messages"] = [*channels[at]["messages"], said]
    slack.show(channels=channels)


def said_in(screen: Screen, text: str) -> None:
    screen.wait(
        lambda: any(text in node.text for node in screen.all("article")), repr(text)
    )


def test_shift_enter_makes_a_line(screen: Screen, slack: FakeSlack) -> None:
    screen.open()

    box = screen.one(BOX)
    box.send_keys("a <b> & @ben", Keys.SHIFT + Keys.ENTER)
    box.send_keys(Keys.NULL, "second", Keys.ENTER)

    screen.wait(lambda: slack.acts, "the message")
    text = "a <b> & @ben\nsecond"
    expected = {"user": "U0ANA", "type": "message", "channel": CHANNEL, "text": text}
    assert slack.acts == [expected]
    screen.wait(lambda: box.get_attribute("value") == "", "an empty box")


def test_a_slash_command_is_completed(screen: Screen, slack: FakeSlack) -> None:
    screen.open()
    box = screen.one(BOX)

    box.send_keys("/app")
    assert [hint.text for hint in screen.all(".hint-command")] == ["/approvals"]
    box.send_keys(Keys.TAB, "list @ben", Keys.ENTER)

    screen.wait(lambda: slack.acts, "the command")
    assert slack.acts[0] == {
        "user": "U0ANA",
        "type": "command",
        "command": "/approvals",
        "text": "list @ben",
        "channel": CHANNEL,
    }


def test_a_suggestion_is_said_in_its_channel(screen: Screen, slack: FakeSlack) -> None:
    screen.open("U0DAN")

    screen.click(".suggestion")

    screen.wait(lambda: slack.acts, "the message")
    assert slack.acts[0] == {
        "user": "U0DAN",
        "type": "message",
        "channel": "C0GENERAL",
        "text": "Please refund order 78291.",
    }
    screen.wait(lambda: screen.text("#heading h2") == "general", "the channel")


def test_a_thread_opens_and_takes_replies(screen: Screen, slack: FakeSlack) -> None:
    screen.open()
    assert "2 replies" in screen.one(".replies").text

    screen.click(".replies")
    screen.wait(lambda: len(screen.all("#thread article")) == 3, "the thread")
    screen.one(THREAD_BOX).send_keys("agreed", Keys.ENTER)

    screen.wait(lambda: slack.acts, "the reply")
    assert slack.acts[0]["thread_ts"] == ANSWERED_TS
    assert f"#/{CHANNEL}/{ANSWERED_TS}" in screen.driver.current_url
    screen.click(".thread-close")
    screen.wait(
        lambda: not screen.one("#main").text.startswith("Thread"), "the channel"
    )
    assert not screen.all("#thread")[0].is_displayed()


def test_a_link_to_a_message_opens_its_thread(screen: Screen, slack: FakeSlack) -> None:
    place = f"{CHANNEL}/p{ANSWERED_TS.replace('.', '')}"
    words = f"<{screen.url}/archives/{place}|Open the conversation>"
    arrives(slack, message(ts(90), BOT, words), at=1)
    screen.open("U0ANA", "C0GENERAL")

    assert screen.words("article .link") == "Open the conversation"
    screen.click("article .link")

    screen.wait(lambda: len(screen.all("#thread article")) == 3, "the thread")
    assert screen.run("return location.search") == "?user=U0ANA"


def test_the_address_names_another_person(screen: Screen, slack: FakeSlack) -> None:
    screen.open()

    screen.click(".person")
    links = [str(n.get_attribute("href")) for n in screen.all(".menu [data-user]")]
    assert f"{screen.url}/?user=U0BEN#/{CHANNEL}" in links
    assert all(BOT not in link for link in links)
    screen.click('.menu [data-user="U0BEN"]')

    screen.wait(lambda: screen.text(".person-name") == "Ben Boer", "Ben")
    assert "user=U0BEN" in screen.driver.current_url
    screen.driver.back()
    screen.wait(lambda: screen.text(".person-name") == "Ana Alves", "Ana again")


def test_news_do_not_scroll(screen: Screen, slack: FakeSlack) -> None:
    many = [message(ts(60 - n), "U0BEN", f"line {n}") for n in range(50)]
    slack.show(channels=[channel(CHANNEL, "agent-approvals", many)])
    screen.open()
    said_in(screen, "line 49")
    top = "return document.getElementById('timeline').scrollTop"
    assert screen.run(top) > 0
    screen.run("document.getElementById('timeline').scrollTop = 100")

    arrives(slack, message(ts(0), "U0BEN", "new words"))

    screen.one(".jump")
    width = float(screen.style(".jump", "width").removesuffix("px"))
    assert width < 250, "it hides what one reads"
    assert screen.run(top) == 100
    screen.click(".jump")
    screen.gone(".jump:not([hidden])")
    assert screen.run(top) > 100

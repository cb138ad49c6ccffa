"""People write, read, reply and switch users, and lose nothing."""

import pytest
from selenium.webdriver.common.keys import Keys

from tests.sandbox.page.fake_slack import FakeSlack, Json
from tests.sandbox.page.scenes import (
    ANSWERED_TS,
    BOT,
    CHANNEL,
    approvals_messages,
    channel,
    message,
    ts,
    user,
    users,
)
from tests.sandbox.page.screen import Screen

pytestmark = pytest.mark.browser

BOX = "#composer .composer-box"
THREAD_BOX = "#thread .composer-box"
GENERAL = '#channels [data-channel="C0GENERAL"]'
APPROVALS = f'#channels [data-channel="{CHANNEL}"]'


def arrives(slack: FakeSlack, said: Json, at: int = 0) -> None:
    """Add a message to one of the channels."""
    channels = [dict(one) for one in slack.state["channels"]]
    channels[at]["messages"] = [*channels[at]["messages"], said]
    slack.show(channels=channels)


def said_in(screen: Screen, text: str) -> None:
    screen.wait(
        lambda: any(text in node.text for node in screen.all("article")), repr(text)
    )


def test_enter_sends_and_shift_enter_makes_a_line(
    screen: Screen, slack: FakeSlack
) -> None:
    screen.open()

    box = screen.one(BOX)
    box.send_keys("a <b> & @ben", Keys.SHIFT + Keys.ENTER)
    box.send_keys(Keys.NULL, "second", Keys.ENTER)

    screen.wait(lambda: slack.acts, "the message")
    text = "a <b> & @ben\nsecond"
    expected = {"user": "U0ANA", "type": "message", "channel": CHANNEL, "text": text}
    assert slack.acts == [expected]
    screen.wait(lambda: box.get_attribute("value") == "", "an empty box")


def test_a_message_that_could_not_be_sent_stays_in_the_box(
    screen: Screen, slack: FakeSlack
) -> None:
    screen.open()
    slack.answers.append({"ok": False, "error": "not_in_channel"})

    screen.one(BOX).send_keys("hello", Keys.ENTER)

    assert screen.one(".composer-trouble").text == "You are not in this channel."
    assert screen.one(BOX).get_attribute("value") == "hello"


def test_a_slash_command_is_completed_and_sent(
    screen: Screen, slack: FakeSlack
) -> None:
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


def test_an_unknown_command_is_said_to_be_unknown(
    screen: Screen, slack: FakeSlack
) -> None:
    screen.open()

    screen.one(BOX).send_keys("/nope now", Keys.ENTER)

    trouble = screen.one(".composer-trouble").text
    assert trouble == "/nope is not a command here. Known: /approvals, /agents."
    assert slack.acts == []


def test_a_draft_waits_in_its_channel(screen: Screen) -> None:
    screen.open()
    screen.one(BOX).send_keys("not yet")

    screen.click(GENERAL)
    assert screen.one(BOX).get_attribute("value") == ""
    screen.click(APPROVALS)

    assert screen.one(BOX).get_attribute("value") == "not yet"


def test_a_suggestion_is_said_in_its_channel_and_leads_there(
    screen: Screen, slack: FakeSlack
) -> None:
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


def test_a_suggestion_that_names_somebody_is_said_by_them(
    screen: Screen, slack: FakeSlack
) -> None:
    for suggestion in slack.state["suggestions"]:
        suggestion["user"] = "U0DAN"
    screen.open("U0ANA")

    assert screen.text(".suggestions-title") == "Let Dan Díaz ask the agent to"
    screen.click(".suggestion")

    screen.wait(lambda: slack.acts, "the message")
    assert slack.acts[0]["user"] == "U0DAN"


def test_a_suggestion_of_several_lines_is_a_message_for_each(
    screen: Screen, slack: FakeSlack
) -> None:
    for suggestion in slack.state["suggestions"]:
        suggestion["text"] = "refund order 1\nrefund order 2\nrefund order 3"
    screen.open("U0DAN")

    screen.click(".suggestion")

    screen.wait(lambda: len(slack.acts) == 3, "three messages")
    said = [act["text"] for act in slack.acts]
    assert said == ["refund order 1", "refund order 2", "refund order 3"]


def test_a_thread_opens_beside_and_replies_go_into_it(
    screen: Screen, slack: FakeSlack
) -> None:
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


def test_replies_are_not_repeated_in_the_channel(screen: Screen) -> None:
    screen.open()

    screen.one("article")

    assert "Half is fair here." not in screen.text("#timeline")


def test_unread_channels_have_a_dot_until_they_are_read(
    screen: Screen, slack: FakeSlack
) -> None:
    screen.open()
    screen.one(f"{GENERAL} .unread")

    screen.click(GENERAL)
    screen.gone(f"{GENERAL} .unread")
    screen.click(APPROVALS)
    arrives(slack, message(ts(0), "U0BEN", "something new"), at=1)

    screen.one(f"{GENERAL} .unread")
    assert screen.all(f"{APPROVALS} .unread") == []


def test_own_messages_make_no_channel_unread(screen: Screen, slack: FakeSlack) -> None:
    screen.open(place="C0GENERAL")
    screen.gone(f"{GENERAL} .unread")
    screen.click(APPROVALS)

    arrives(slack, message(ts(0), "U0ANA", "from another tab"), at=1)
    arrives(slack, message(ts(0, 2), "U0BEN", "seen here"))

    said_in(screen, "seen here")
    assert screen.all(f"{GENERAL} .unread") == []


def test_another_person_is_one_click_away_and_stays_in_the_address(
    screen: Screen, slack: FakeSlack
) -> None:
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


def test_the_page_names_the_person_the_server_chose(
    screen: Screen, slack: FakeSlack
) -> None:
    screen.driver.get(slack.url)

    screen.wait(lambda: "user=U0ANA" in screen.driver.current_url, "the address")


def test_an_unknown_person_is_told_how_to_become_a_known_one(
    screen: Screen, slack: FakeSlack
) -> None:
    screen.driver.get(f"{slack.url}/?user=U0NOBODY")

    screen.wait(lambda: "add ?user=" in screen.text("#status"), "the advice")
    assert "U0NOBODY" in screen.text("#status")
    assert any("400" in problem for problem in screen.problems())


def test_a_channel_of_others_can_be_read_but_not_written_in(screen: Screen) -> None:
    screen.open(place="C0OPEN")

    closed = "Ana Alves is not in this channel and can only read it."
    assert screen.one(".composer-closed").text == closed
    assert not screen.all(BOX)[0].is_displayed()
    assert "Keyturn is not in this channel" in screen.one("#heading").text


def test_new_messages_are_announced_once_and_only_new_ones(
    screen: Screen, slack: FakeSlack
) -> None:
    screen.open()
    assert screen.run("return document.getElementById('live').textContent") == ""

    said = message(
        f"{int(slack.state['now']) + 60}.000001", BOT, "*words* for <@U0ANA>"
    )
    arrives(slack, {**said, "blocks": []})

    live = "Keyturn in agent-approvals: words for @Ana Alves"
    script = "return document.getElementById('live').textContent"
    screen.wait(lambda: screen.run(script) == live, "the announcement")
    slack.show(notices=[])
    assert screen.run(script) == live


def test_reading_further_up_is_not_disturbed_by_news(
    screen: Screen, slack: FakeSlack
) -> None:
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


def test_somebody_who_reads_the_end_still_does_when_there_is_less_room(
    screen: Screen, slack: FakeSlack
) -> None:
    many = [message(ts(60 - n), "U0BEN", f"line {n}") for n in range(50)]
    slack.show(channels=[channel(CHANNEL, "agent-approvals", many)])
    screen.open()
    said_in(screen, "line 49")
    left = (
        "const box = document.getElementById('timeline');"
        "return box.scrollHeight - box.scrollTop - box.clientHeight"
    )

    screen.size(1280, 600)

    screen.wait(lambda: screen.run("return innerHeight") == 600, "the smaller screen")
    screen.wait(lambda: screen.run(left) < 2, "the end of the channel")


def test_a_long_channel_opens_at_its_end_also_above_a_high_composer(
    screen: Screen, slack: FakeSlack
) -> None:
    many = [message(ts(60 - n), "U0BEN", f"line {n}") for n in range(50)]
    asks = [{**slack.state["suggestions"][0], "label": "x" * 60} for _ in range(12)]
    slack.show(channels=[channel(CHANNEL, "agent-approvals", many)], suggestions=asks)
    screen.open()
    said_in(screen, "line 49")
    left = (
        "const box = document.getElementById('timeline');"
        "return box.scrollHeight - box.scrollTop - box.clientHeight"
    )

    screen.wait(lambda: screen.run(left) < 2, "the end of the channel")


def test_an_empty_channel_says_how_to_begin(screen: Screen, slack: FakeSlack) -> None:
    slack.show(channels=[channel(CHANNEL, "agent-approvals", [])])
    screen.open()

    assert "Mention @" in screen.words("#timeline .empty")
    arrives(slack, message(ts(0), "U0BEN", "new words"))
    said_in(screen, "new words")
    screen.gone("#timeline .empty")


def test_a_notice_is_shown_once(screen: Screen, slack: FakeSlack) -> None:
    screen.open()
    now = slack.state["now"]
    notices = [
        {"id": "n1", "text": "long ago", "level": "info", "at": now - 500},
        {"id": "n2", "text": "just now", "level": "warning", "at": now},
    ]

    slack.show(notices=notices)
    toast = screen.one(".toast")
    assert (toast.text, toast.get_attribute("role")) == ("just now", "alert")
    screen.click(".toast button")
    slack.show(notices=notices)
    screen.gone(".toast")


def test_an_app_that_is_offline_is_said_to_be(screen: Screen, slack: FakeSlack) -> None:
    slack.state["bot"]["connected"] = False

    screen.open()

    assert "Keyturn is not connected" in screen.one("#status").text


def test_a_renamed_person_is_renamed_everywhere(
    screen: Screen, slack: FakeSlack
) -> None:
    screen.open()
    screen.one("article")
    renamed = user("U0DAN", "dan", "Dana Dax", "2d7d46")

    slack.show(users=[renamed if one["id"] == "U0DAN" else one for one in users()])

    said_in(screen, "Dana Dax")
    assert "Dan Díaz" not in screen.text("#timeline")


def test_arrow_keys_walk_through_the_messages(screen: Screen) -> None:
    screen.open()
    screen.one("article")

    screen.run("document.getElementById('timeline').focus()")
    screen.press(Keys.ARROW_UP)
    roots = [
        one for one in approvals_messages() if one["thread_ts"] in (None, one["ts"])
    ]
    assert screen.focused().get_attribute("data-ts") == roots[-1]["ts"]
    screen.press(Keys.ARROW_UP)

    assert screen.focused().get_attribute("data-ts") == roots[-2]["ts"]


def test_nobody_can_write_to_an_app_whose_messages_tab_is_off(
    screen: Screen, slack: FakeSlack
) -> None:
    slack.state["bot"]["takes_messages"] = False

    screen.open(place="D0ANA")

    screen.wait(
        lambda: "has been turned off" in screen.words("#composer"), "the reason"
    )

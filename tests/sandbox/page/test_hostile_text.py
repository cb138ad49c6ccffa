"""Hostile text stays text, and an injection that works is visible."""

from collections.abc import Callable

import pytest

from tests.sandbox.page.fake_slack import FakeSlack, Json
from tests.sandbox.page.scenes import (
    BOT,
    button,
    input_block,
    message,
    option,
    plain,
    preformatted,
    ts,
    user,
    users,
    view,
    workspace,
)
from tests.sandbox.page.screen import Screen

pytestmark = pytest.mark.browser

HOSTILE = (
    '<img src=x onerror="window.hacked = 1">',
    "<script>window.hacked = 1</script>",
    "<!channel> <@U0BEN> <https://evil.test|Approve> <!subteam^S0SUPPORT>",
    "*bold* _it_ ~s~ `code` :key: &lt;b&gt; &amp;",
    "refund\u202egnp.exe\u202c \u2066x\u2069 \u200bzero",
    "javascript:alert(1) https://evil.test",
    "line one\n> quote\n```fence```",
    "{{7*7}} ${7*7} %s \\u0041 \u0000?",
)

WRITE_PLAIN: dict[str, Callable[[str], Json]] = {
    "header": lambda text: {"type": "header", "text": plain(text)},
    "section": lambda text: {"type": "section", "text": plain(text)},
    "field": lambda text: {"type": "section", "fields": [plain(text)]},
    "context": lambda text: {"type": "context", "elements": [plain(text)]},
    "preformatted": preformatted,
    "cell": lambda text: {
        "type": "table",
        "rows": [[{"type": "raw_text", "text": text}]],
    },
    "button": lambda text: {"type": "actions", "elements": [button(text, "act")]},
    "rich": lambda text: {
        "type": "rich_text",
        "elements": [
            {
                "type": "rich_text_section",
                "elements": [{"type": "text", "text": text}],
            }
        ],
    },
}

HARMLESS = (
    "return [window.hacked ?? null, document.querySelectorAll(arguments[0]).length]"
)
MADE = (
    "article :is(img, script, a, strong, em, .mention, .link), .dialog :is(img, script)"
)


def shown_as_text(screen: Screen, css: str, text: str) -> None:
    assert screen.text(css) == text
    assert screen.run(HARMLESS, MADE) == [None, 0]


@pytest.mark.parametrize("place", WRITE_PLAIN)
def test_plain_text_stays_whole(screen: Screen, slack: FakeSlack, place: str) -> None:
    blocks = [
        {**WRITE_PLAIN[place](text), "block_id": f"b{at}"}
        for at, text in enumerate(HOSTILE)
    ]
    slack.state = workspace([message(ts(1), BOT, "x", blocks=blocks)])

    screen.open()

    for at, text in enumerate(HOSTILE):
        shown_as_text(screen, f'article [data-block-id="b{at}"]', text)


def test_all_names_are_shown_as_text(screen: Screen, slack: FakeSlack) -> None:
    evil = HOSTILE[0]
    slack.state = workspace([])
    people = [user("U0ANA", "ana", evil, "url(https://evil.test)"), *users()[1:]]
    blocks = [
        input_block("s", evil, "static_select", options=[option(evil, "v")]),
        input_block("t", "text", "plain_text_input", initial_value=evil, hint=evil),
    ]
    modal = view("V1", blocks, title=plain(evil), submit=plain("Go"))
    notice = {"id": "n", "text": evil, "level": "info", "at": slack.state["now"]}
    slack.show(users=people, me=people[0], views=[modal], notices=[notice])

    screen.open()

    shown_as_text(screen, ".dialog-title", evil)
    shown_as_text(screen, '[data-block-id="s"] .label bdi', evil)
    shown_as_text(screen, '[data-block-id="t"] .hint', evil)
    shown_as_text(screen, ".person-name", evil)
    shown_as_text(screen, ".toast-text", evil)
    assert screen.one(".dialog input").get_attribute("value") == evil
    assert screen.run("return document.querySelectorAll('option')[1].text") == evil

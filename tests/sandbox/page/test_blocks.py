"""Every block is drawn, and what cannot be drawn is loud."""

import pytest

from tests.sandbox.page.block_scenes import every_block
from tests.sandbox.page.fake_slack import FakeSlack
from tests.sandbox.page.scenes import BOT, message, ts, workspace
from tests.sandbox.page.screen import Screen

pytestmark = pytest.mark.browser


@pytest.fixture
def blocks(screen: Screen, slack: FakeSlack) -> Screen:
    said = message(ts(1), BOT, "fallback", blocks=every_block())
    slack.state = workspace([said])
    screen.open()
    screen.one("article .blocks")
    return screen


def block(block_id: str) -> str:
    return f'article [data-block-id="{block_id}"]'


def test_an_unknown_block_is_a_loud_box_that_names_its_type(blocks: Screen) -> None:
    box = blocks.one(block("unknown"))

    assert '"hologram"' in box.text
    assert box.get_attribute("role") == "alert"
    assert blocks.style(block("unknown"), "backgroundColor") == "rgb(221, 17, 17)"


def test_plain_text_stays_plain_and_has_emoji_only_when_asked(blocks: Screen) -> None:
    assert blocks.text(block("header")) == "A header :key:"
    assert blocks.text(block("plain")) == "*not bold* :key:"
    assert blocks.text(block("plain-emoji")) == "open 🔓"


def test_mrkdwn_is_marked_up_and_mentions_are_loud(blocks: Screen) -> None:
    assert blocks.text(f"{block('mrkdwn')} strong") == "bold"
    mention = blocks.one(f"{block('mrkdwn')} .mention")
    assert mention.text == "@Ben Boer"
    assert mention.get_attribute("data-mention") == "U0BEN"


def test_rich_text_has_its_styles_and_its_text_is_never_parsed(blocks: Screen) -> None:
    rich = block("rich")

    for tag, text in {"strong": "bold", "em": "italic", "s": "gone"}.items():
        assert blocks.text(f"{rich} {tag}") == text
    assert blocks.text(f"{rich} pre") == "x = *1*\n  y"
    assert blocks.one(f"{rich} ol").get_attribute("start") == "3"
    assert blocks.text(f"{rich} blockquote") == "as somebody said"
    mentions = [node.text for node in blocks.all(f"{rich} .mention")]
    assert mentions == ["@Ben Boer", "@support", "#general", "@here"]


def test_a_link_shows_its_address_and_leads_nowhere(blocks: Screen) -> None:
    link = blocks.one(f"{block('rich')} .link")

    assert link.text.split() == ["a", "label", "https://example.com/a"]
    assert blocks.all("article a[href]") == []


def test_a_link_button_only_shows_its_address(blocks: Screen, slack: FakeSlack) -> None:
    address = blocks.driver.current_url

    blocks.click('[data-action-id="open"]')

    assert blocks.text(".url-button .link-url") == "https://example.com/audit"
    assert blocks.driver.current_url == address
    assert slack.acts == []


def test_a_table_has_headings_and_raw_cells(blocks: Screen) -> None:
    table = block("table")

    assert [node.text for node in blocks.all(f"{table} th")] == ["name", "n"]
    cells = blocks.all(f"{table} td")
    assert [cell.text for cell in cells] == ["*raw*", "7", "", "-"]
    assert (
        blocks.style(f"{table} tr:nth-child(2) td:last-child", "textAlign") == "right"
    )


def test_pictures_are_described_and_never_loaded(blocks: Screen) -> None:
    image = blocks.one(f"{block('image')} [role=img]")

    assert image.get_attribute("aria-label") == "a chart of refunds"
    assert blocks.all("img, image, picture, video, iframe") == []
    loaded: list[str] = blocks.run(
        "return performance.getEntriesByType('resource').map((e) => e.name);"
    )
    assert all(name.startswith(blocks.url) for name in loaded)

"""The page fits its screen, can be read and hit, in both schemes; pictures prove it.

The pictures are written to pytest's temporary folder; `KEYTURN_SHOTS` names another.
"""

import os
from pathlib import Path

import pytest

from tests.levels import sample
from tests.sandbox.page.block_scenes import edit_modal, every_block, home_view
from tests.sandbox.page.fake_slack import FakeSlack
from tests.sandbox.page.scenes import (
    ANSWERED_TS,
    BOT,
    channel,
    message,
    ts,
)
from tests.sandbox.page.screen import Screen

pytestmark = pytest.mark.browser

SCREENS = {
    "light": (1280, 860, "light"),
    "tablet": (820, 1100, "light"),
    "phone-dark": (390, 844, "dark"),
    "dark": (1280, 860, "dark"),
    "phone": (390, 844, "light"),
}
SHOWN = sample(SCREENS, 2)
"""Outside of a deep run, a large light screen and a small dark one."""

# Contrast of every visible text against the nearest opaque background, by WCAG 2.2:
# https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio
CONTRAST = """
const parse = (text) => {
  const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
  return {r, g, b, a};
};
const light = ({r, g, b}) => [r, g, b]
  .map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
  .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
const behind = (node) => {
  for (let at = node; at; at = at.parentElement) {
    const color = parse(getComputedStyle(at).backgroundColor);
    if (color.a === 1) return color;
  }
  return parse("rgb(255, 255, 255)");
};
const poor = [];
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
  const node = texts.currentNode.parentElement;
  if (!texts.currentNode.data.trim() || !node.checkVisibility({opacityProperty: true,
      visibilityProperty: true})) continue;
  if (node.closest(".place-dim, :disabled, [aria-disabled=true], option,"
      + " .message-compact > .time, .visually-hidden")) continue;
  const [a, b] = [light(parse(getComputedStyle(node).color)), light(behind(node))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const said = `${ratio.toFixed(2)} ${node.className} ${texts.currentNode.data}`;
  if (ratio < 4.5) poor.push(said);
}
return poor;
"""

OVERFLOW = """
const wide = document.documentElement.scrollWidth > innerWidth;
const out = [...document.querySelectorAll("article *, .dialog *, #home *")]
  .filter((node) => node.checkVisibility() && !node.closest(".block-table, pre"))
  .filter((node) => node.getBoundingClientRect().right > innerWidth + 1)
  .map((node) => node.className);
return [wide, out];
"""

SMALL = """
const seen = "article button, .dialog button, .dialog .control, #composer button,"
  + " #heading button, .suggestion";
return [...document.querySelectorAll(seen)]
  .filter((node) => node.checkVisibility())
  .map((node) => [node.className, node.getBoundingClientRect()])
  .filter(([, {height}]) => height < 43.9)
  .map(([name, {height}]) => `${name} ${height}`);
"""


@pytest.fixture(scope="session")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Path:
    named = os.environ.get("KEYTURN_SHOTS")
    folder = Path(named) if named else tmp_path_factory.mktemp("shots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def keep(screen: Screen, gallery: Path, name: str) -> None:
    """Write a picture once nothing moves any more."""
    screen.wait(
        lambda: screen.run("return document.getAnimations().length === 0"),
        "the page to come to rest",
    )
    screen.save(gallery / f"{name}.png")


def check(screen: Screen, gallery: Path, name: str) -> None:
    keep(screen, gallery, name)
    assert screen.run(CONTRAST) == []
    assert screen.run(OVERFLOW) == [False, []]


@pytest.mark.parametrize("kind", SHOWN)
def test_every_view_can_be_read(
    screen: Screen, slack: FakeSlack, gallery: Path, kind: str
) -> None:
    width, height, scheme = SCREENS[kind]
    screen.size(width, height, scheme=scheme)
    said = message(ts(1), BOT, "x", blocks=every_block())
    more = channel("C0BLOCKS", "all", [said])
    slack.show(channels=[*slack.state["channels"], more], home=home_view())

    for name, place, css in (
        ("channel", "C0APPROVALS", '[data-action-id="approve"]'),
        ("thread", f"C0APPROVALS/{ANSWERED_TS}", "#thread article"),
        ("blocks", "C0BLOCKS", '[data-block-id="unknown"]'),
        ("home", "home", "#home .block"),
    ):
        screen.open(place=place)
        screen.one(css)
        check(screen, gallery, f"{name}-{kind}")
    slack.show(views=[edit_modal()])
    screen.click(".modal-submit")
    screen.one(".has-error")
    check(screen, gallery, f"form-{kind}")


def test_thumbs_hit_every_control_on_a_phone(screen: Screen, slack: FakeSlack) -> None:
    screen.size(390, 844)
    screen.open()
    screen.one('[data-action-id="approve"]')
    assert screen.run(SMALL) == []

    slack.show(views=[edit_modal()])
    screen.one(".dialog")

    assert screen.run(SMALL) == []

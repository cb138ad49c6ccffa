"""Take the pictures of the docs, and see that each shows what it is named for."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium.webdriver import Chrome

from tests.browser.demo_process import Demo
from tests.browser.test_stories import REASON, amount_field, words_on
from tests.sandbox.page.screen import Screen

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

CHANNEL = "C0APPROVALS"
DESKTOP, PHONE = (1100, 800), (390, 844)


@pytest.fixture
def gallery(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return where pictures go: a temporary folder unless one is named."""
    named = request.config.getoption("--screenshots")
    folder = Path(named) if named else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.parametrize("demo", ["socket"], indirect=True)
def test_pictures_of_a_card_from_asked_to_done(
    chrome: Chrome, demo: Demo, gallery: Path
) -> None:
    screen = Screen(chrome, demo.url)
    for name, size, scheme in (
        ("card-light", DESKTOP, "light"),
        ("card-dark", DESKTOP, "dark"),
        ("card-phone", PHONE, "light"),
    ):
        screen.size(*size, scheme=scheme)
        screen.open("U0ANA", CHANNEL)
        words_on(screen, "Approval needed", "78291")
        screen.save(gallery / f"{name}.png")

    screen.size(*DESKTOP)
    screen.open("U0ANA", CHANNEL)
    screen.click('[data-action-id="edit"]')
    screen.type(amount_field(screen), "449.50")
    screen.type('.dialog [data-block-id="reason"] .control', REASON)
    screen.save(gallery / "edit.png")
    screen.click(".modal-submit")
    screen.gone(".dialog")
    words_on(screen, "done", "449.5")
    screen.save(gallery / "edited.png")

    screen.click('[data-hook="suggestion-1"]')
    words_on(screen, "3 of 3 calls")
    screen.size(1100, 1500)
    screen.save(gallery / "several.png")
    pictures = sorted(path.name for path in gallery.glob("*.png"))
    assert len(pictures) == 6
    assert all((gallery / name).stat().st_size > 10_000 for name in pictures)

"""Find a Chromium and its driver, install Debian's if allowed, or name the package."""

import os
import shutil
from pathlib import Path

from selenium.webdriver import Chrome, ChromeOptions, ChromeService

from tests.debian import find_or_install

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PACKAGES = ("chromium", "chromium-driver", "fonts-noto-color-emoji")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--force-color-profile=srgb",
    "--lang=en-GB",
)


class NoChromium(Exception):
    """There is no browser to test with."""


def find(kind: str, setting: str, names: tuple[str, ...]) -> str:
    """Return the path of a program.

    Raises:
        NoChromium: nothing of that kind is installed.
    """
    named = os.environ.get(setting)
    found = named or find_or_install(lambda: _installed(names), *PACKAGES)
    if found is None or not Path(found).is_file():
        raise NoChromium(
            f"The browser tests need a {kind} and found {named!r} (looked for "
            f"{', '.join(names)}). Install it, on Debian with "
            f"`apt-get install chromium chromium-driver`, or set {setting} to its path."
        )
    return found


def _installed(names: tuple[str, ...]) -> str | None:
    return next(filter(None, map(shutil.which, names)), None)


def start(profile: Path) -> Chrome:
    """Start a headless Chromium with a fresh profile in the folder `profile`.

    Raises:
        NoChromium: a browser or its driver is missing.
    """
    options = ChromeOptions()
    options.binary_location = find("Chromium", "KEYTURN_CHROMIUM", BROWSERS)
    driver = find("ChromeDriver", "KEYTURN_CHROMEDRIVER", ("chromedriver",))
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return Chrome(options=options, service=ChromeService(driver))

"""Find a Chromium and its driver, install Debian's where allowed, or say what to do."""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from selenium.webdriver import Chrome, ChromeOptions, ChromeService

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
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
    found = named or _installed(names)
    if found is None and install_package():
        found = _installed(names)
    if found is None or not Path(found).is_file():
        raise NoChromium(
            f"The browser tests need a {kind} and found {named!r} (looked for "
            f"{', '.join(names)}). Install it, on Debian with "
            f"`apt-get install chromium chromium-driver`, or set {setting} to its path."
        )
    return found


def _installed(names: tuple[str, ...]) -> str | None:
    return next(filter(None, map(shutil.which, names)), None)


@cache
def install_package() -> bool:
    """Install Debian's Chromium when this user may; say whether that was tried."""
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        return False
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "-y", "chromium", "chromium-driver"]):
        run = subprocess.run([apt, "-qq", *words], env=env, check=False)
        if run.returncode != 0:
            return False
    return True


def start(profile: Path) -> Chrome:
    """Start a headless Chromium with a fresh profile in the folder `profile`.

    Raises:
        NoChromium: a browser or its driver is missing.
    """
    options = ChromeOptions()
    options.binary_location = find("Chromium", "TWOKEY_CHROMIUM", BROWSERS)
    driver = find("ChromeDriver", "TWOKEY_CHROMEDRIVER", ("chromedriver",))
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return Chrome(options=options, service=ChromeService(driver))

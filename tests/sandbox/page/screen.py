"""Look at the page and use it the way a person does."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from selenium.common.exceptions import (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    StaleElementReferenceException,
)
from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

T = TypeVar("T")
PATIENCE_S = 60.0
FIRST_PAUSE_S, LAST_PAUSE_S = 0.02, 0.25
# The page redraws changed parts at any time, so read again. If an element disappears
# while the driver focuses it before a key press, the driver reports it as an element
# that takes no keys.
REDRAWN = (
    StaleElementReferenceException,
    ElementClickInterceptedException,
    ElementNotInteractableException,
)


class Screen:
    """One browser tab that shows the page of one server."""

    def __init__(self, driver: Chrome, url: str) -> None:
        self.driver = driver
        self.url = url
        # Selenium leaves parts of its types open; these calls go through here.
        self._untyped: Any = driver
        driver.get("about:blank")
        self.problems()  # not those of the previous page

    def open(self, user: str = "U0ANA", place: str = "") -> None:
        """Load the page as `user`; `place` is the part after `#/`."""
        self.driver.get("about:blank")
        self.driver.get(f"{self.url}/?user={user}#/{place}")
        self.one("#heading .heading-title")

    def size(self, width: int, height: int, *, scheme: str = "light") -> None:
        """Pretend to be a screen of this size and colour scheme."""
        self._tell(
            "Emulation.setDeviceMetricsOverride",
            {
                "width": width,
                "height": height,
                "deviceScaleFactor": 1,
                "mobile": width < 500,
            },
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._tell("Emulation.setEmulatedMedia", {"features": features})

    def _tell(self, command: str, arguments: dict[str, Any]) -> None:
        self._untyped.execute_cdp_cmd(command, arguments)

    def wait(
        self, found: Callable[[], T | None], what: str, within_s: float = PATIENCE_S
    ) -> T:
        """Return the first true answer of `found`, or fail naming `what`."""
        deadline, pause_s = time.monotonic() + within_s, FIRST_PAUSE_S
        while True:
            try:
                result = found()
            except REDRAWN:
                result = None
            if result:
                return result
            if time.monotonic() > deadline:
                raise AssertionError(f"Waited {within_s} s for {what}.")
            time.sleep(pause_s)
            # Each look costs the browser a layout, and some waits are long.
            pause_s = min(1.5 * pause_s, LAST_PAUSE_S)

    def all(self, css: str) -> list[WebElement]:
        """Return every element for a selector, now."""
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def one(self, css: str) -> WebElement:
        """Wait for an element that can be seen, and return it."""

        def seen() -> WebElement | None:
            return next((node for node in self.all(css) if node.is_displayed()), None)

        return self.wait(seen, f"{css!r} to be seen")

    def gone(self, css: str) -> None:
        """Wait until nothing matches."""
        self.wait(lambda: not self.all(css), f"{css!r} to be gone")

    def with_one(
        self, css: str, do: Callable[[WebElement], T], *, last: bool = False
    ) -> T:
        """Do something with the first (or last) such element that can be seen.

        An element that is redrawn in between is found and tried again.
        """

        def done() -> tuple[T] | None:
            nodes = [node for node in self.all(css) if node.is_displayed()]
            return (do(nodes[-1 if last else 0]),) if nodes else None

        return self.wait(done, f"{css!r} to be seen")[0]

    def text(self, css: str) -> str:
        """Return the exact text content, hidden characters included."""
        return str(
            self.with_one(
                css, lambda node: self.run("return arguments[0].textContent", node)
            )
        )

    def words(self, css: str) -> str:
        """Return the text as it is seen."""
        return self.with_one(css, lambda node: node.text)

    def click(self, css: str, *, last: bool = False) -> None:
        """Click the first (or last) one once it is there."""
        self.with_one(css, WebElement.click, last=last)

    def type(self, css: str, text: str) -> None:
        """Replace the text of an input."""

        def replace(box: WebElement) -> None:
            box.clear()
            box.send_keys(text)

        self.with_one(css, replace)

    def press(self, *keys: str) -> None:
        """Press keys wherever the focus is."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def has_focus(self, css: str) -> bool:
        """Return whether the one element for a selector has the focus."""
        script = "return document.activeElement === arguments[0]"
        return bool(self.with_one(css, lambda node: self.run(script, node)))

    def focused(self) -> WebElement:
        """Return the element that has the focus."""
        return self.driver.switch_to.active_element

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page and return its answer; it may await."""
        wrapped = (
            "const done = arguments[arguments.length - 1];"
            "const given = [...arguments].slice(0, -1);"
            f"(async function () {{ {script} }}).apply(null, given)"
            ".then((result) => done({result, failed: null}),"
            " (error) => done({failed: String(error)}));"
        )
        answer: Any = self._untyped.execute_async_script(wrapped, *arguments)
        if answer["failed"] is not None:
            raise AssertionError(f"The script failed: {answer['failed']}")
        return answer["result"]

    def style(self, css: str, name: str) -> str:
        """Return the computed value of a style property."""
        script = "return getComputedStyle(arguments[0])[arguments[1]]"
        return str(self.with_one(css, lambda node: self.run(script, node, name)))

    def left(self, css: str) -> list[float]:
        """Return where each matching element begins, in pixels from the left."""
        lefts: list[float] = self.run(
            "return [...document.querySelectorAll(arguments[0])]"
            ".map((node) => node.getBoundingClientRect().left)",
            css,
        )
        return lefts

    def save(self, path: Path) -> None:
        """Write a picture of the screen."""
        if not self._untyped.save_screenshot(str(path)):
            raise AssertionError(f"The picture {path} could not be written.")

    def problems(self) -> list[str]:
        """Return what the console complained about since the last call."""
        entries: list[dict[str, Any]] = self._untyped.get_log("browser")
        return [e["message"] for e in entries if e["level"] in {"SEVERE", "WARNING"}]

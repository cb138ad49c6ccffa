"""What pages quote of the benchmark is what the kept run measured."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from bench.quoted import QUOTES, RESULTS, ROOT, found

RUN: dict[str, Any] = json.loads(RESULTS.read_text("utf-8"))


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """Copy the pages that quote, to be changed."""
    for name in {quote.page for quote in QUOTES}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text("utf-8"), "utf-8")
    return tmp_path


def changed(ratio: str, **values: float) -> dict[str, Any]:
    """Return the kept run with other values of one ratio."""
    run = copy.deepcopy(RUN)
    for figure in run["figures"].values():
        for one in figure["ratios"]:
            if one["name"] == ratio:
                one.update(values)
    return run


def test_a_page_that_names_the_kept_run_has_its_figures() -> None:
    wrong = [
        f"{one.place} says {one.said}, and the run {one.measured}"
        for one in found(RUN)
        # A page that names another commit quotes an earlier run.
        if one.differs
        and (one.quote.within or (one.commit and RUN["commit"].startswith(one.commit)))
    ]

    assert not wrong


def test_a_quote_is_compared_with_the_digits_that_it_has() -> None:
    run = changed("Twokey / bare, p50", value=1.2345, low=1.04, high=10.96)

    one = next(one for one in found(run) if one.quote.ratio == "Twokey / bare, p50")

    digits = [len(text.partition(".")[2]) for text in one.said]
    assert [len(text.partition(".")[2]) for text in one.measured] == digits
    assert float(one.measured[0]) == pytest.approx(1.2345, abs=0.06)
    assert one.differs


def test_a_size_may_be_a_little_off_and_no_more() -> None:
    [said] = {one.said[0] for one in found(RUN) if one.quote.within}
    size = float(said.replace(",", ""))
    near = changed("bytes per pending approval", value=size * 1.01)
    far = changed("bytes per pending approval", value=size * 1.05)

    assert not [one for one in found(near) if one.quote.within and one.differs]
    assert len([one for one in found(far) if one.quote.within and one.differs]) == 2


def test_a_quote_that_is_gone_or_stands_twice_is_reported(pages: Path) -> None:
    page = pages / "docs/encryption.md"
    text = page.read_text("utf-8")
    line = next(one for one in text.splitlines() if "674 bytes" in one)

    page.write_text(text.replace(line, "Nothing."), "utf-8")
    with pytest.raises(LookupError, match="0 times"):
        list(found(RUN, pages))
    page.write_text(f"{text}\n{line}\n", "utf-8")
    with pytest.raises(LookupError, match="2 times"):
        list(found(RUN, pages))

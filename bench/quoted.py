"""Compare the figures that pages quote with the run that is kept.

``python -m bench.quoted`` prints each quoted figure with its place, beside what
`results.json` says now, and exits with 1 where they differ: run it after a run was
kept. A page that names the commit it was measured on may be older than that run; where
it names the run's own, the figures have to be the run's (`tests/docs`).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results.json"

_RANGE = r"(\d[\d,.]*) \((\d[\d,.]*) to (\d[\d,.]*)\)"
_COMMIT = re.compile(r"commit ([0-9a-f]{8,})")


@dataclass(frozen=True)
class Quote:
    """Where a page quotes a ratio of a run.

    Attributes:
        page: its path.
        line: a pattern with a group for each number: the value, or the value, the
            smallest and the largest round.
        figure: key of the figure in `results.json`.
        ratio: its name.
        within: how far the page may be from the run, of the value; 0 where it quotes
            the run by its commit.
    """

    page: str
    line: str
    figure: str
    ratio: str
    within: float = 0.0


QUOTES = (
    Quote(
        "README.md",
        rf"^\| no middleware at all \| {_RANGE} \|$",
        "auto_call",
        "Twokey / bare, p50",
    ),
    Quote(
        "README.md",
        rf"^\| LangChain's `HumanInTheLoopMiddleware` that .* \| {_RANGE} \|$",
        "auto_call",
        "auto call: Twokey / LangChain, p50",
    ),
    Quote(
        "README.md",
        rf"^\| LangChain's again, where the policy .* \| {_RANGE} \|$",
        "auto_call",
        "Twokey weighed / LangChain, p50",
    ),
    Quote(
        "docs/encryption.md",
        r"instead of (\d[\d,]*) for one with arguments of 674 bytes",
        "record_size",
        "bytes per pending approval",
        within=0.02,
    ),
    Quote(
        "docs/decisions/0014-encryption-at-rest.md",
        r"beside (\d[\d,]*) for an approval that waits",
        "record_size",
        "bytes per pending approval",
        within=0.02,
    ),
)


@dataclass(frozen=True)
class Found:
    """One quote as the page has it, and as the run does.

    Attributes:
        quote: which one.
        place: page and line.
        said: the numbers of the page.
        measured: those of the run, with as many digits.
        commit: the one that the page names before it; "" for none.
        differs: whether they are not the same.
    """

    quote: Quote
    place: str
    said: tuple[str, ...]
    measured: tuple[str, ...]
    commit: str
    differs: bool


def found(run: Mapping[str, Any], root: Path = ROOT) -> Iterator[Found]:
    """Yield each quote beside a run.

    Raises:
        LookupError: a page does not quote it, or twice, or the run lacks it.
    """
    for quote in QUOTES:
        lines = (root / quote.page).read_text("utf-8").splitlines()
        rows = [(n, re.search(quote.line, one)) for n, one in enumerate(lines, 1)]
        hits = [(n, one) for n, one in rows if one]
        if len(hits) != 1:
            raise LookupError(f"{quote.page} quotes {quote.ratio!r} {len(hits)} times")
        ((number, hit),) = hits
        values = _values(run, quote)
        said = hit.groups()
        measured = tuple(
            _as_said(text, value) for text, value in zip(said, values, strict=False)
        )
        named = _COMMIT.findall("\n".join(lines[:number]))
        away = abs(float(said[0].replace(",", "")) - values[0]) / values[0]
        yield Found(
            quote,
            f"{quote.page}:{number}",
            said,
            measured,
            named[-1] if named else "",
            away > quote.within if quote.within else said != measured,
        )


def _values(run: Mapping[str, Any], quote: Quote) -> tuple[float, float, float]:
    for ratio in run["figures"][quote.figure]["ratios"]:
        if ratio["name"] == quote.ratio:
            return ratio["value"], ratio["low"], ratio["high"]
    raise LookupError(f"{quote.ratio!r} is not in the run")


def _as_said(said: str, value: float) -> str:
    """Return a number with as many digits as the page has behind the point."""
    return f"{value:,.{len(said.partition('.')[2])}f}"


def main() -> int:
    """Print all quotes; return 1 where a page says something else than the run."""
    rows = list(found(json.loads(RESULTS.read_text("utf-8"))))
    for one in rows:
        mark = "differs" if one.differs else "same"
        said, measured = ", ".join(one.said), ", ".join(one.measured)
        print(f"{mark:8}{one.place}: {one.quote.ratio}: {said}; measured {measured}")
    return int(any(one.differs for one in rows))


if __name__ == "__main__":
    sys.exit(main())

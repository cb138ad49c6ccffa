"""The chart of a run: each figure beside its target, as SVG.

A bar is how many times a figure is better than its target, on a logarithmic scale: it
ends right of the middle line where the target is reached, and left of it where not.
"""

from __future__ import annotations

import math
from xml.sax.saxutils import escape

from bench.results import targets
from bench.run import Run
from bench.stats import Ratio, short

_WIDTH, _ROW, _TOP, _TEXT, _VALUE = 900, 26, 46, 410, 150
_MIDDLE = _TEXT + (_WIDTH - _TEXT - _VALUE) / 2
_TENFOLD = (_WIDTH - _TEXT - _VALUE) / 2
_REACHED, _MISSED, _LINE, _INK = "#2f7d4f", "#b3392f", "#9a9a9a", "#222"


def svg(run: Run) -> str:
    """Return the chart of a run."""
    rows = [one for _, one in targets(run)]
    height = _TOP + _ROW * len(rows) + 10
    size = f'width="{_WIDTH}" height="{height}"'
    font = f'font-family="sans-serif" font-size="12" fill="{_INK}"'
    body = [_row(one, _TOP + _ROW * place) for place, one in enumerate(rows)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>',
            f'<rect {size} fill="#fff"/>',
            _text(10, 20, f"Commit {run['commit']}, {run['date']}", "start"),
            _text(_MIDDLE, 20, "target", "middle"),
            _text(_MIDDLE - _TENFOLD, 36, "ten times worse", "start"),
            _text(_MIDDLE + _TENFOLD, 36, "ten times better", "end"),
            *body,
            f'<path d="M{_MIDDLE:g} 26V{height - 6}" stroke="{_LINE}"/>',
            "</svg>\n",
        ]
    )


def advantage(one: Ratio) -> float:
    """Return how many times a figure is better than its target; 1 is just as good."""
    if one.at_least is not None:
        return one.value / one.at_least
    bound = one.at_most or 0.0
    if one.value == 0:
        return math.inf if bound else 1.0  # nothing lost, where nothing may be
    return bound / one.value


def _row(one: Ratio, top: float) -> str:
    times = min(max(advantage(one), 0.1), 10.0)
    length = _TENFOLD * math.log10(times)
    left, width = _MIDDLE + min(length, 0.0), max(abs(length), 1.0)
    colour = _REACHED if one.is_reached else _MISSED
    size = f'width="{width:.1f}" height="{_ROW - 8}"'
    value = f"{short(one.value)} {one.unit}".rstrip()
    return "\n".join(
        [
            _text(_TEXT - 8, top + 15, one.name, "end"),
            f'<rect x="{left:.1f}" y="{top + 3:g}" {size} fill="{colour}"/>',
            _text(_WIDTH - _VALUE + 8, top + 15, f"{value} ({_bound(one)})", "start"),
        ]
    )


def _bound(one: Ratio) -> str:
    return one.target.rpartition(" ")[0]


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'

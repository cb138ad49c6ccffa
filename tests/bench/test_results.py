"""What a run of the benchmark leaves: page, chart, comparison with a kept run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from bench import __main__ as command
from bench.chart import advantage, svg
from bench.compare import worse
from bench.results import markdown
from bench.stats import Figure, Measured, NotMeasured, Ratio, plain, ratio

SLOW = Measured("slow", "ms", ((4.0, 4.0), (6.0,)))
FAST = Measured("fast", "ms", ((1.0,), (1.0,)))


def _run(*ratios: Ratio, **failed: str) -> dict[str, Any]:
    figure = Figure("A title", "How | where.", (SLOW, FAST), ratios)
    return {
        "machine": "a machine",
        "date": "2026-11-24T20:00+00:00",
        "commit": "0123456789ab",
        "note": "Nobody else was there.",
        "is_quick": False,
        "figures": {"one": figure.as_json()},
        "failed": failed,
    }


def _measuring(*ratios: Ratio) -> Any:
    async def measure(*, is_quick: bool) -> Figure:
        return Figure("A title", "How.", (SLOW, FAST), ratios)

    return measure


def test_the_page_has_each_figure_with_limit_target_machine_date_and_commit() -> None:
    page = markdown(
        _run(
            ratio("slow / fast", SLOW, FAST, at_most=2.0, limit="peer: fast"),
            plain("slow, p50", SLOW, at_most=9.0),
            ratio("fast / slow", FAST, SLOW),
            other="Not every click got 200.",
        )
    )

    assert "| slow / fast | 5.00 | 4.00 to 6.00 | ≤ 2 **missed** | peer: fast |" in page
    assert "| slow, p50 | 5.00 ms | 4.00 to 6.00 | ≤ 9 ms reached |  |" in page
    assert "| fast / slow | 0.21 | 0.17 to 0.25 |" in page
    assert "| other | Not every click got 200. |" in page
    assert "Commit 0123456789ab, 2026-11-24T20:00+00:00. Nobody else was there." in page


def test_page_and_chart_are_made_from_the_data_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = ratio("slow / fast", SLOW, FAST, at_most=9.0)
    monkeypatch.setattr(command, "FIGURES", {"one": _measuring(found)})

    assert command.main(["--results", str(tmp_path)]) == 0

    run = json.loads((tmp_path / "results.json").read_text("utf-8"))
    assert (tmp_path / "results.md").read_text("utf-8") == markdown(run)
    assert (tmp_path / "results.svg").read_text("utf-8") == svg(run)
    assert "rounds" not in run["figures"]["one"]["measured"][0]


def test_the_chart_shows_by_colour_and_side_whether_a_target_is_reached() -> None:
    missed = ratio("<slow> / fast", SLOW, FAST, at_most=2.5)
    reached = ratio("fast / slow", FAST, SLOW, at_least=0.1)

    root = ET.fromstring(svg(_run(missed, reached)))  # noqa: S314 - our own text

    at = "{http://www.w3.org/2000/svg}"
    _, bad, good = root.iter(f"{at}rect")
    assert bad.get("fill") != good.get("fill")
    assert float(bad.get("x", "")) < float(good.get("x", ""))
    assert "<slow> / fast" in [one.text for one in root.iter(f"{at}text")]


@pytest.mark.parametrize(
    ("one", "times"),
    [
        (Ratio("", 2.0, 0, 0, at_least=1.0), 2.0),
        (Ratio("", 2.0, 0, 0, at_most=1.0), 0.5),
        (Ratio("", 0.0, 0, 0, at_most=0.0), 1.0),
        (Ratio("", 3.0, 0, 0, at_most=0.0), 0.0),
    ],
)
def test_an_advantage_is_how_many_times_a_figure_is_better(
    one: Ratio, times: float
) -> None:
    assert advantage(one) == times


@pytest.mark.parametrize(
    ("now", "unit", "is_worse"),
    [(1.14, "", False), (1.16, "", True), (1.16, "B", True), (1.16, "ms", False)],
)
def test_what_is_15_percent_worse_is_told_unless_it_depends_on_the_machine(
    now: float,
    unit: str,
    is_worse: bool,  # noqa: FBT001 - a case of the test
) -> None:
    def run(value: float) -> dict[str, Any]:
        return _run(Ratio("r", value, value, value, at_most=9.0, unit=unit))

    assert worse(run(now), run(1.0)) == (["r: 1.16, was 1.00"] if is_worse else [])
    assert worse(run(1.0), run(now)) == []


def test_a_rate_is_worse_when_it_falls_and_a_new_figure_is_not_compared() -> None:
    before = _run(Ratio("r", 1.0, 1.0, 1.0, at_least=0.1))

    assert worse(_run(Ratio("r", 0.84, 0.84, 0.84, at_least=0.1)), before)
    assert not worse(_run(Ratio("r", 0.86, 0.86, 0.86, at_least=0.1)), before)
    assert not worse(_run(Ratio("new", 0.1, 0.1, 0.1, at_least=0.1)), before)
    assert not worse(_run(), before)


def test_a_run_that_is_worse_than_the_kept_one_fails_and_a_missed_target_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        command, "FIGURES", {"one": _measuring(ratio("s / f", SLOW, FAST, at_most=1.0))}
    )
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps(_run(Ratio("s / f", 4.0, 4.0, 4.0, at_most=1.0))))

    assert command.main(["--compare", str(kept)]) == 1
    told = "More than 15 % worse than at 0123456789ab: s / f: 5.00, was 4.00"
    assert told in capsys.readouterr().err

    kept.write_text(json.dumps(_run(Ratio("s / f", 4.5, 4.5, 4.5, at_most=1.0))))
    assert command.main(["--compare", str(kept)]) == 0


def test_what_cannot_be_measured_stops_no_other_figure_and_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def broken(*, is_quick: bool) -> Figure:
        raise NotMeasured("It hung up.")

    found = ratio("slow / fast", SLOW, FAST, at_most=9.0)
    figures = {"broken": broken, "one": _measuring(found)}
    monkeypatch.setattr(command, "FIGURES", figures)

    assert command.main(["--results", str(tmp_path)]) == 1

    run = json.loads((tmp_path / "results.json").read_text("utf-8"))
    assert list(run["figures"]) == ["one"]
    assert run["failed"] == {"broken": "It hung up."}


def test_the_results_in_the_repository_are_those_of_their_data() -> None:
    folder = Path(command.__file__).parent
    run = json.loads((folder / "results.json").read_text("utf-8"))

    assert (folder / "results.md").read_text("utf-8") == markdown(run)
    assert (folder / "results.svg").read_text("utf-8") == svg(run)

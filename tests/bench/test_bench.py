"""Every figure of the bench can be measured, and fails if it measured nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench import __main__ as command
from bench import load
from bench.clicks import ensure_decided, prepare
from bench.results import section
from bench.stats import Figure, Measured, NotMeasured, percentile, result
from keyturn.gateway.store.store import Store
from keyturn.sandbox.server import Sandbox


async def test_a_click_that_decided_nothing_fails_the_measurement(store: Store) -> None:
    async with Sandbox() as sandbox:
        clicks = await prepare(store, sandbox, 2)

        with pytest.raises(NotMeasured, match="is pending, decided by nobody"):
            await ensure_decided(store, clicks)


async def test_a_server_that_hangs_up_fails_the_measurement() -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port: int = server.sockets[0].getsockname()[1]
        request = load.Request({}, "payload=1")

        with pytest.raises(NotMeasured, match="was not answered"):
            await load.fire(f"http://127.0.0.1:{port}/x", [request], connections=1)


def test_a_ratio_is_the_median_of_its_rounds_and_shows_their_range() -> None:
    slow = Measured("slow", "ms", ((10.0, 30.0, 20.0), (40.0,), (90.0,)))
    fast = Measured("fast", "ms", ((10.0,), (10.0,), (10.0,)))

    found = result("slow / fast", slow, fast, at_most=3.0)

    assert (found.value, found.low, found.high) == (4.0, 2.0, 9.0)
    assert found.target == "≤ 3 MISSED"
    assert result("fast / slow", fast, slow, at_least=0.2).target == "≥ 0.2 reached"


def test_a_percentile_lies_between_the_samples_around_it() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert percentile([1.0, 2.0], 0.95) == pytest.approx(1.95)
    assert percentile([7.0], 0.95) == 7.0
    with pytest.raises(ValueError, match="no sample"):
        percentile([], 0.5)


def test_the_command_prints_a_figure_and_writes_only_the_page_it_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = Measured("ours", "ms", ((1.0, 3.0), (2.0, 2.0)))
    theirs = Measured("theirs", "ms", ((4.0,), (4.0,)))
    compared = (
        result("ours / theirs", ours, theirs, at_most=0.4, limit="peer: theirs"),
        result("theirs / ours", theirs, ours),
    )
    figure = Figure("A title", "How | where.", (ours, theirs), compared)

    async def measure(*, is_quick: bool) -> Figure:
        assert is_quick
        return figure

    async def broken(*, is_quick: bool) -> Figure:
        raise NotMeasured("It hung up.")

    monkeypatch.setattr(command, "FIGURES", {"broken": broken, "one": measure})
    monkeypatch.chdir(tmp_path)

    assert command.main(["one", "--quick"]) == 0
    assert list(tmp_path.iterdir()) == []
    assert section("one", figure) in capsys.readouterr().out

    assert command.main(["--quick", "--results", "results.md"]) == 1
    page = Path("results.md").read_text(encoding="utf-8")
    row = "| ours / theirs | 0.50 | 0.50 to 0.50 | ≤ 0.4 **missed** | peer: theirs |"
    assert row in page
    assert "| theirs / ours | 2.00 | 2.00 to 2.00 |" in page
    assert "| broken | It hung up. |" in page


def test_a_missed_target_is_told_in_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = Measured("slow", "ms", ((4.0,),))
    fast = Measured("fast", "ms", ((1.0,),))
    missed = result("slow / fast", slow, fast, at_most=2.0)

    async def measure(*, is_quick: bool) -> Figure:
        return Figure("A title", "How.", (slow, fast), (missed,))

    monkeypatch.setattr(command, "FIGURES", {"one": measure})

    assert command.main([]) == 1
    assert "Targets that were missed: slow / fast." in capsys.readouterr().err
    assert command.main(["--quick"]) == 0


def test_a_figure_that_cannot_be_measured_is_told_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def measure(*, is_quick: bool) -> Figure:
        raise NotMeasured("Not every click got 200.")

    monkeypatch.setattr(command, "FIGURES", {"one": measure})

    assert command.main([]) == 1
    told = "one could not be measured: Not every click got 200.\n"
    assert capsys.readouterr().err.endswith(told)

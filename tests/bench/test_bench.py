"""Every figure of the bench can be measured, and says when it measured nothing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from bench import __main__ as command
from bench import (
    click_to_ack,
    decision_cost,
    decision_over_http,
    decision_to_tool,
    drawn_clicks,
    load,
    receipts,
)
from bench.clicks import ensure_decided, prepare
from bench.stats import Figure, Measured, NotMeasured, percentile, ratio, table
from twokey.gateway.store.store import Store
from twokey.sandbox.server import Sandbox

# Both start real servers: some seconds each, more when the machine is busy.
smoke = pytest.mark.timeout(240)


@smoke
async def test_the_way_from_decision_to_tool_is_measured() -> None:
    plan = decision_to_tool.Plan(rounds=1, approvals=2)

    figure = await decision_to_tool.measured(plan)

    twokey, bare, poller, writing = figure.measured
    assert [len(one.rounds[0]) for one in figure.measured] == [2, 2, 2, 2]
    assert bare.at(0.0) > 0
    assert twokey.at(0.0) > 0
    # The first of the two decisions comes 118 ms after a poll, so 382 before the next.
    assert poller.at(1.0) > 380
    # Beside the figure stands what it cannot go below, measured in the same run.
    alone = figure.ratios[0]
    assert f"a bare resume in this run ({bare.at(0.5):.1f} ms)" in alone.limit
    assert "2 durable writes" in alone.limit
    assert alone.limit.endswith(f" takes {writing.at(0.5):.1f} ms")


@smoke
async def test_the_way_over_http_is_measured_beside_that_in_one_process() -> None:
    plan = decision_to_tool.Plan(rounds=1, approvals=2)

    figure = await decision_over_http.measured(plan)

    assert [one.name for one in figure.measured] == ["in process", "over HTTP"]
    assert [len(one.rounds[0]) for one in figure.measured] == [2, 2]
    assert all(one.at(0.0) > 0 for one in figure.measured)
    [over] = figure.ratios
    assert over.at_most == 2


@smoke
async def test_the_way_from_click_to_acknowledgement_is_measured() -> None:
    plan = click_to_ack.Plan(rounds=1, alone=5, together=25)

    figure = await click_to_ack.measured(plan)

    ours, bolts, our_rate, bolts_rate, workers, least, *rates = figure.measured
    lengths = [len(one.rounds[0]) for one in figure.measured]
    assert lengths == [5, 5, 1, 1, 1, 5, 1, 1, 1]
    # Bolt's runner looks for the answer every 10 ms.
    assert bolts.at(0.0) > 10
    assert ours.at(0.0) > 0
    assert our_rate.at(0.5) > 1
    assert bolts_rate.at(0.5) > 1
    assert workers.at(0.5) > 1
    assert least.at(0.0) > 0
    assert all(rate.at(0.5) > 1 for rate in rates)
    assert [one.at_least for one in figure.ratios] == [None, 1.2, 2.0, None, None]
    # The limits stand beside the figures.
    assert all("one script: " in one.limit for one in figure.ratios[:2])
    assert all("bots that cost nothing" in one.limit for one in figure.ratios[1:3])


@smoke
async def test_clicks_are_measured_until_their_cards_are_drawn() -> None:
    figure = await drawn_clicks.measured(rounds=1, count=25)

    both, answered, bolts = (one.at(0.5) for one in figure.measured)
    assert 1 < both < answered
    assert bolts > 1
    assert all(one.target == "" for one in figure.ratios)


@smoke
async def test_the_moves_of_an_approval_keep_to_their_round_trips() -> None:
    figure = await decision_cost.measured(decision_to_tool.Plan(rounds=1, approvals=2))

    trips = [one for one in figure.ratios if one.at_most is not None]
    assert [one.value for one in trips] == [1, 1, 1]
    assert all(one.is_reached for one in trips)


async def test_a_click_that_decided_nothing_fails_the_measurement(store: Store) -> None:
    async with Sandbox() as sandbox:
        clicks = await prepare(store, sandbox, 2)

        with pytest.raises(NotMeasured, match="is pending, decided by nobody"):
            await ensure_decided(store, clicks)


async def test_a_prepared_click_is_on_a_card_of_its_own(store: Store) -> None:
    async with Sandbox() as sandbox:
        clicks = await prepare(store, sandbox, 3)

    keys = store.keys_of_tenant("default")
    places = [await store.cards.place(keys, click.approval) for click in clicks]
    assert len({place.ts for place in places if place}) == 3
    assert len({click.request.body for click in clicks}) == 3


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

    found = ratio("slow / fast", slow, fast, at_most=3.0)

    assert (found.value, found.low, found.high) == (4.0, 2.0, 9.0)
    assert found.target == "≤ 3 MISSED"
    assert ratio("fast / slow", fast, slow, at_least=0.2).target == "≥ 0.2 reached"


def test_a_percentile_lies_between_the_samples_around_it() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert percentile([1.0, 2.0], 0.95) == pytest.approx(1.95)
    assert percentile([7.0], 0.95) == 7.0
    with pytest.raises(ValueError, match="no sample"):
        percentile([], 0.5)


def test_the_command_prints_a_table_and_writes_only_the_file_it_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = Measured("ours", "ms", ((1.0, 3.0), (2.0, 2.0)))
    theirs = Measured("theirs", "ms", ((4.0,), (4.0,)))
    figure = Figure("A title", "How.", (ours, theirs), (ratio("r", ours, theirs),))

    async def measure(*, is_quick: bool) -> Figure:
        assert is_quick
        return figure

    monkeypatch.setattr(command, "FIGURES", {"one": measure})
    monkeypatch.chdir(tmp_path)

    assert command.main(["--quick"]) == 0
    assert list(tmp_path.iterdir()) == []
    assert table(figure) in capsys.readouterr().out

    assert command.main(["one", "--quick", "--json", "out.json"]) == 0
    written = json.loads(Path("out.json").read_text(encoding="utf-8"))
    assert written["figures"]["one"]["measured"][0]["rounds"] == [
        [1.0, 3.0],
        [2.0, 2.0],
    ]


def test_a_missed_target_is_told_in_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = Measured("slow", "ms", ((4.0,),))
    fast = Measured("fast", "ms", ((1.0,),))
    missed = ratio("slow / fast", slow, fast, at_most=2.0)

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


def test_an_unknown_figure_is_refused_with_the_names_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stopped:
        command.main(["click_to_ak"])

    assert stopped.value.code == 2
    assert (
        "no figure 'click_to_ak'; choose from click_to_ack" in capsys.readouterr().err
    )


@smoke
async def test_what_signatures_and_receipts_add_is_measured() -> None:
    figure = await receipts.measured(decision_to_tool.Plan(rounds=1, approvals=2))

    signed, unsigned, *_ = (one.at(0.5) for one in figure.measured)
    assert unsigned > 0
    assert signed > 0
    assert [one.at_most for one in figure.ratios] == [1.3, None, 1.0, 1.0]

"""Decisions of the service are measured beside the very script that writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import help_time, peer_work, service_decisions
from bench.service_decisions import _words  # pyright: ignore[reportPrivateUsage] - what MONITOR escapes
from bench.stats import NotMeasured


@pytest.mark.timeout(60)
async def test_service_and_raw_script_write_the_same_decisions() -> None:
    plan = service_decisions.Plan(rounds=1, approvals=3)

    figure = await service_decisions.measured(plan)

    service, script = figure.measured
    assert service.at(0.5) > 0
    assert script.at(0.5) > 0
    (share,) = figure.ratios
    assert share.value == pytest.approx(service.at(0.5) / script.at(0.5))
    assert share.at_least == 0.25
    assert f"{script.at(0.5):,.0f}/s" in share.limit


def test_a_line_of_monitor_is_read_as_the_words_that_were_sent() -> None:
    line = rb'+1.5 [0 unix:/s] "EVALSHA" "a \"b\" \\" "\x00\xc3\xa9\r\n"' + b"\r\n"

    assert _words(line) == (b"EVALSHA", b'a "b" \\', "\0é\r\n".encode())


async def test_the_time_of_the_help_page_is_measured_beside_its_limit() -> None:
    figure = await help_time.measure(is_quick=True)

    (ours,) = figure.ratios
    assert ours.value > 0
    assert (ours.unit, ours.at_most) == ("s", 0.5)


async def test_other_products_that_are_not_installed_are_not_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(peer_work, "PYTHON", tmp_path / "python")

    with pytest.raises(NotMeasured, match="make bench-peers"):
        await peer_work.measure(is_quick=True)

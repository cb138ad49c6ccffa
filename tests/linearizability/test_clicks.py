"""Clicks under kills: the model, the reading of logs, and a short run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.levels import size
from tests.linearizability import kills
from tests.linearizability.audited import contradictions
from tests.linearizability.checker import violation, violations
from tests.linearizability.click_model import ClickModel
from tests.linearizability.history import NEVER, Operation, Value
from tests.linearizability.reconciliation import reconciled, unexplained
from tests.resume.postgres_server import NoPostgres

ANA, BEN = "U0ANA", "U0BEN"
DECISIONS = size(deep=1000, short=15)


def click(person: str, at: int, until: int = NEVER, said: str = "") -> Operation:
    return Operation("a", "click", (person,), at, until, said or None)


def read(at: int, status: str, by: str = "") -> Operation:
    return Operation("a", "read", (), at, at, (status, by))


def effect(at: int) -> Operation:
    return Operation("a", "effect", (), at, at)


WON, LOST = click(ANA, 1, 4, "decided"), click(BEN, 1, 4, "stale")


@pytest.mark.parametrize(
    "history",
    [
        [WON, LOST, effect(5), read(6, "executed", ANA)],
        [WON, LOST, effect(3), read(6, "executing", ANA), read(7, "in_doubt", ANA)],
        [click(ANA, 1), read(2, "pending"), effect(3), read(4, "executing", ANA)],
        [click(ANA, 1), click(BEN, 1, 4, "stale"), effect(5)],
        # Repeated until a replica had it, and then second to itself.
        [click(ANA, 1, 4, "stale"), effect(5)],
        [click(ANA, 1), click(BEN, 1), read(9, "pending")],
        # Claimed, given back, claimed again.
        [WON, read(5, "executing", ANA), read(6, "authorized", ANA), effect(7)],
        # The model asks again, and people decide its new call.
        [WON, read(5, "authorized", ANA), read(6, "lapsed", ANA)],
    ],
)
def test_what_may_be_seen_has_an_order(history: list[Operation]) -> None:
    assert violation(history, ClickModel()) is None


@pytest.mark.parametrize(
    "history",
    [
        pytest.param([WON, read(5, "pending")], id="an acknowledged decision is lost"),
        pytest.param([WON, read(5, "authorized", BEN)], id="another one has won"),
        pytest.param([WON, click(BEN, 1, 4, "decided")], id="two have won"),
        pytest.param([WON, effect(5), read(6, "lapsed", ANA)], id="it did run"),
        pytest.param([read(5, "lapsed")], id="what nobody decided lapses"),
        pytest.param([effect(5), click(ANA, 6, 7, "decided")], id="nobody decided yet"),
        pytest.param(
            [LOST, read(5, "pending")], id="it was late, and nobody was first"
        ),
        pytest.param([WON, effect(5), effect(6)], id="the tool ran twice"),
        pytest.param([WON, read(5, "executed", ANA)], id="it ended without an effect"),
        pytest.param(
            [WON, effect(5), read(6, "executed", ANA), read(7, "executing", ANA)],
            id="a reader goes back",
        ),
        pytest.param(
            [WON, effect(5), read(6, "authorized", ANA)], id="it may run once more"
        ),
    ],
)
def test_what_must_not_be_seen_has_none(history: list[Operation]) -> None:
    assert violation(history, ClickModel()) is not None


def test_a_click_is_what_a_bot_logged_of_it_and_open_without_a_line() -> None:
    clicks = [("a", ANA, 1), ("a", BEN, 2), ("a", ANA, 7), ("b", ANA, 8)]
    line = "INFO click.decided decision=approve outcome={} approval=a index=0 user={}"
    logged = [(9, line.format("decided", ANA)), (9, "INFO bot.started"), (5, "")]

    found = kills.clicks_of(clicks, logged)

    told: dict[tuple[str, Value], list[tuple[int, int, Value]]] = {}
    for one in found:
        times = (one.called, one.returned, one.output)
        told.setdefault((one.key, one.given[0]), []).append(times)
    assert told == {
        ("a", ANA): [(1, 9, "decided"), (1, NEVER, None)],
        ("a", BEN): [(2, NEVER, None)],
        ("b", ANA): [(8, NEVER, None)],
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("topologies")
async def test_clicks_have_an_order_while_store_bots_and_gateways_are_killed(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    try:
        found = await kills.record(
            tmp_path,
            decisions=DECISIONS,
            within_s=size(deep=900, short=60),
            say=said.append,
        )
    except NoPostgres as missing:
        pytest.skip(str(missing))

    told = [str(one) for one in violations(found.history, ClickModel())]

    assert not told, "\n".join(told[:3])
    accounts = reconciled(found.history, found.threads)
    assert not unexplained(accounts)
    assert not contradictions(accounts, found.moments)
    ran = [one for one in found.history if one.name == "effect"]
    assert 0 < len(ran) <= len(found.threads)
    assert any(one.output == "decided" for one in found.history)

"""A forged approval in the store runs nothing, and is reported.

`keyturn demo --script tamper` plays it with the real agent, gateway, bot and store.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.forked import Forked

ROOT = Path(__file__).parents[2]
STOP_S = 90


@pytest.mark.slow
def test_nothing_runs_and_the_log_proves_what_happened() -> None:
    run = Forked("keyturn", "demo", "--script", "tamper", "--json", cwd=ROOT)
    lines = [json.loads(line) for line in run.stdout]

    assert (run.wait(STOP_S), lines[-1]["ok"]) == (0, True), lines
    told = {line["event"]: line for line in lines}
    assert [line["event"] for line in lines][3:] == [
        "store.forged",
        "security.detected",
        "audit.verified",
        "export.verified",
        "export.refused",
        "script.ended",
    ]
    forged = told["card.posted"]["approval"]
    assert told["security.detected"]["approval"] == forged
    assert told["audit.verified"]["entries"] >= 4
    assert told["export.refused"]["first_bad_index"] is not None

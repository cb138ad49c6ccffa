"""The mixed load performs its activities, and samples memory and keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.levels import size
from tests.soak.mixed_load import Plan, run


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_loaded_system_is_sampled(tmp_path: Path) -> None:
    plan = Plan(seconds=size(deep=120, short=4), sample_s=1.0, kept_s=4, ask_s=1.0)
    samples, done = await run(plan, tmp_path)

    assert len(samples) >= 2
    assert all(one.found["memory of the store, kB"] > 100 for one in samples)
    assert {
        "memory of gateway-1, kB",
        "memory of the store itself, kB",
        "open files of bot-1",
        "keys a",
        "members of ev",
        "readers of rs",
        "kB of ev",
    } <= {*samples[-1].found}
    assert min(one.found["memory of bot-1, kB"] for one in samples) > 10_000
    assert min(one.found["open files of bot-1"] for one in samples) > 5
    assert samples[-1].at_s > samples[0].at_s >= 2 * 4
    assert max(one.left_s.get("keys lease", 0) for one in samples) <= 15
    assert min(done["messages"], done["clicks"]) > 0

"""The mixed load does what it says, and samples memory and keys meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.mixed_load import Plan, run


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_loaded_system_is_sampled(tmp_path: Path) -> None:
    samples, done = await run(Plan(seconds=4.0, sample_s=1.0, kept_s=5), tmp_path)

    assert len(samples) >= 2
    assert all(one.found["memory of the store, kB"] > 100 for one in samples)
    assert {"memory of gateway-1, kB", "memory of bot-2, kB", "keys a"} <= {
        *samples[-1].found
    }
    assert samples[-1].at_s > samples[0].at_s >= 2 * 5
    assert max(one.left_s.get("keys lease", 0) for one in samples) <= 15
    assert min(done["messages"], done["clicks"]) > 0

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
    assert all(one["memory of the store, kB"] > 100 for one in samples)
    assert {"memory of gateway-1, kB", "memory of bot-2, kB", "keys a"} <= {
        *samples[-1]
    }
    assert min(done["messages"], done["clicks"]) > 0

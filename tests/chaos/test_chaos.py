"""A short run under random faults; `make chaos` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.run import Plan, run
from tests.levels import size


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_chaos_doubles_and_loses_nothing(tmp_path: Path) -> None:
    plan = Plan(seconds=size(deep=300, short=10), seed=7)
    said: list[str] = []

    found = await run(plan, tmp_path, said.append)

    assert not found.wrong, "\n".join([*said, *found.wrong])
    assert found.counts["effects"] > 0
    assert found.counts["clicks"] > 0
    assert found.counts["undecided in quiet"] > 0

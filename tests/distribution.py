"""How pytest-xdist hands tests to the processes that share a run."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped] # says no types


class ForgettingScheduling(LoadGroupScheduling):  # type: ignore[misc] # as above
    """`--dist loadgroup` that forgets finished tests.

    After each test, xdist's own version counts the rest of all tests that a process
    ever got: with ten thousand tests that takes seconds. The order of the tests stays
    the same.
    """

    def mark_test_complete(
        self, node: Any, item_index: int, duration: float = 0
    ) -> None:
        """Forget the group of a test, too, once each of its tests has been run."""
        scope = self._split_scope(self.registered_collections[node][item_index])
        super().mark_test_complete(node, item_index, duration)
        given = self.assigned_work[node]
        if all(given[scope].values()):
            del given[scope]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Replace the scheduler of `--dist loadgroup`."""
    is_ours = config.getoption("dist") == "loadgroup"
    return ForgettingScheduling(config, log) if is_ours else None

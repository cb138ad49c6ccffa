"""Each test goes to one process, once, and finished tests are forgotten."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.distribution import ForgettingScheduling

TESTS = [f"tests/test_a.py::test_{number}" for number in range(20)]
GROUPED = [f"tests/test_b.py::test_{number}@topologies" for number in range(3)]
EVERY = [*TESTS, *GROUPED]


class Process:
    """What a process of tests is to the scheduler."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.given = deque[int]()
        self.shutting_down = False

    def send_runtest_some(self, indices: Iterable[int]) -> None:
        self.given.extend(indices)

    def shutdown(self) -> None:
        self.shutting_down = True


def silent(*_: object) -> None:
    """Log nothing."""


@pytest.fixture
def processes() -> list[Process]:
    return [Process("gw0"), Process("gw1")]


@pytest.fixture
def scheduling(processes: list[Process]) -> Any:
    options = {"tx": ["popen"] * len(processes), "px": [], "loadscopereorder": True}
    config: Any = SimpleNamespace(
        option=SimpleNamespace(**options), getvalue=options.get
    )
    made: Any = ForgettingScheduling(config)
    made.log = silent
    for process in processes:
        made.add_node(process)
        made.add_node_collection(process, EVERY)
    made.schedule()
    return made


def run(scheduling: Any, processes: list[Process]) -> list[tuple[str, str]]:
    """Run the given tests in the processes; return which process ran which test."""
    ran = list[tuple[str, str]]()
    while any(process.given for process in processes):
        for process in processes:
            if process.given:
                index = process.given.popleft()
                ran.append((cast("str", process.gateway.id), EVERY[index]))
                scheduling.mark_test_complete(process, index)
    return ran


def test_each_test_runs_once_and_groups_stay_together(
    scheduling: Any, processes: list[Process]
) -> None:
    ran = run(scheduling, processes)

    assert sorted(test for _, test in ran) == sorted(EVERY)
    assert len({name for name, test in ran if test in GROUPED}) == 1
    assert len({name for name, _ in ran}) == 2
    assert scheduling.tests_finished
    assert all(process.shutting_down for process in processes)

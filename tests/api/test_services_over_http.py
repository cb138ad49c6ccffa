"""What holds of the services in one process holds over HTTP: the same tests, again."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from importlib import import_module

import pytest

from tests.api.over_http import harness_over_http

MODULES = (
    "tests.races.test_batch_races",
    "tests.races.test_turns",
    "tests.service.test_answered_before",
    "tests.service.test_asking",
    "tests.service.test_auto_runs",
    "tests.service.test_business_state",
    "tests.service.test_cards_of_a_turn",
    "tests.service.test_claim_policy",
    "tests.service.test_doubts",
    "tests.service.test_edits_made",
    "tests.service.test_executions",
    "tests.service.test_inside",
    "tests.service.test_questions",
    "tests.service.test_stricter_policy",
)
"""Where the tests are; fixtures of one name are the same in all of them."""

OTHERWISE = (
    # What is counted is of one process: a request reads its key first.
    "test_56_calls_that_start_and_end_at_once_take_four_writes_and_no_reading",
    "test_an_auto_approved_call_takes_one_round_trip",
    "test_what_a_thread_has_behind_it_costs_nothing",
    "test_what_waits_around_and_beside_an_agent_costs_nothing",
    # A key belongs to one tenant, a lease travels in a header: tests/api has both.
    "test_an_item_of_another_tenant_is_refused",
    "test_calls_of_two_holders_of_a_lease_are_not_written_in_one_step",
)


def _again() -> None:
    """Give this module the tests and the fixtures of the others."""
    for module in MODULES:
        for name, found in vars(import_module(module)).items():
            if not name.startswith("_") and name not in OTHERWISE:
                globals().setdefault(name, found)


_again()


@pytest.fixture(autouse=True)
async def over_http(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[None]:
    """Let the agents of every harness ask over HTTP."""
    async with harness_over_http(monkeypatch):
        yield

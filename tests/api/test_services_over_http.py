"""What holds of the services in one process holds over HTTP: the same tests, again."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from tests.api.over_http import harness_over_http
from tests.races.test_batch_races import *  # noqa: F403
from tests.races.test_turns import *  # noqa: F403
from tests.service.test_answered_before import *  # noqa: F403 - its tests
from tests.service.test_asking import *  # noqa: F403
from tests.service.test_auto_runs import *  # noqa: F403
from tests.service.test_business_state import *  # noqa: F403
from tests.service.test_cards_of_a_turn import *  # noqa: F403
from tests.service.test_claim_policy import *  # noqa: F403
from tests.service.test_doubts import *  # noqa: F403
from tests.service.test_edits_made import *  # noqa: F403
from tests.service.test_executions import *  # noqa: F403
from tests.service.test_inside import *  # noqa: F403
from tests.service.test_questions import *  # noqa: F403
from tests.service.test_stricter_policy import *  # noqa: F403


@pytest.fixture(autouse=True)
async def over_http(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[None]:
    """Let the agents of every harness ask over HTTP."""
    async with harness_over_http(monkeypatch):
        yield


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
for _name in OTHERWISE:
    del globals()[_name]

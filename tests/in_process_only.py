"""Tests for the gateway's process alone, with reasons; see `tests.transports`."""

from __future__ import annotations

from collections.abc import Mapping

_COUNTS = "It counts round trips of one process; a request reads its key first."
_ORDERS = (
    "It chooses the order of round trips inside the process of the gateway, and knows "
    "of no other."
)

IN_PROCESS_ONLY: Mapping[str, str] = {
    "tests/races/test_window_interleavings.py::test_several_at_once_in_any_order": (
        _ORDERS
    ),
    "tests/races/test_window_interleavings.py::test_two_at_once_in_every_order": (
        _ORDERS
    ),
    "tests/service/test_auto_runs.py::test_an_auto_approved_call_takes_one_round_"
    "trip": _COUNTS,
    "tests/service/test_auto_runs.py::test_what_a_thread_has_behind_it_costs_"
    "nothing": _COUNTS,
    "tests/service/test_auto_runs.py::test_what_waits_around_and_beside_an_agent_costs_"
    "nothing": _COUNTS,
    "tests/service/test_cancelled_starts.py::test_others_get_their_answer_from_what_a_"
    "cancelled_one_wrote": "It counts scripts; requests come one after another.",
    "tests/service/test_claim_receipts.py::test_no_receipt_is_issued_by_a_process_"
    "without_the_key": (
        "What the operator of a gateway has to set right is an outage for who asks; "
        "tests/api/test_errors_over_http.py has the row."
    ),
    "tests/service/test_executions.py::test_an_item_of_another_tenant_is_refused": (
        "A key belongs to one tenant; tests/api/test_http_gateway.py asks with another."
    ),
    "tests/service/test_request_windows.py::test_no_order_of_three_requests_lets_the_"
    "third_through": _ORDERS,
}
"""By file and name."""

STORIES_IN_ONE_PROCESS: Mapping[str, str] = {
    "test_a_reviewers_day.py": "test_a_reviewers_day_over_http.py plays its scripts.",
    "test_a_reviewers_day_over_http.py": "It is over HTTP.",
    "test_killed_in_the_middle.py": (
        "It kills the one process; tests/apart kills gateway, bot and agent."
    ),
    "test_somebody_forges_an_approval.py": (
        "test_a_reviewers_day_over_http.py plays its script."
    ),
    "test_your_own_agent.py": (
        "The README's first program has the gateway in it; "
        "tests/docs/test_agents_anywhere.py runs one that has an API key."
    ),
}
"""Stories that do not run again as ``[http]``, by file."""

RACES_IN_ONE_PROCESS: Mapping[str, str] = {}
"""Races that do not run again as ``[http]``, by file."""

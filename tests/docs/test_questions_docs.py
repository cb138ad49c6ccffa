"""The examples of docs/questions.md work unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyturn.agent import ApprovalMiddleware
from keyturn.gateway.approvals.decisions import Decision, Reject, Respond
from keyturn.gateway.policy.evaluate import evaluate_question
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.store.store import Store
from tests.docs.reviewing import HEAD, approved_run, embedded, run
from tests.docs.test_readme import ROOT, blocks

PAGE = (ROOT / "docs" / "questions.md").read_text(encoding="utf-8")
AGENT, NODE = blocks("python", PAGE)


def test_the_agent_of_the_page_can_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    names = run(AGENT)

    assert any(
        name.startswith(ApprovalMiddleware("x").name) for name in names["graph"].nodes
    )


@pytest.mark.parametrize(
    ("decision", "region"), [(Respond(answers=("US",)), "US"), (Reject(), "EU")]
)
async def test_the_node_of_the_page_goes_on_with_what_people_answer(
    store: Store, tmp_path: Path, decision: Decision, region: str
) -> None:
    graph = run(NODE)["graph"]
    async with embedded(store, tmp_path) as tk:
        final = await approved_run(tk, graph, {}, agent="deploy", decision=decision)

    assert final["region"] == region


def test_the_entry_of_the_page_says_who_answers_where_and_until_when() -> None:
    roles = "roles: {support: {users: [U0BEN]}}\n"
    rules = load_policy(HEAD + roles + blocks("yaml", PAGE)[0], "policy.yml")

    found = evaluate_question(rules, agent="a", tool="ask_user", has_requester=True)

    assert [role.name for role in found.requirement.roles] == ["support"]
    assert (found.channel, found.ttl_ms) == ("#support", 4 * 3_600_000)
    assert found.escalate_at_ms == 2 * 3_600_000

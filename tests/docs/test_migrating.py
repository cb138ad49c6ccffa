"""The examples of docs/migrating.md work unchanged."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from keyturn.agent import connected
from keyturn.agent.scripted_model import calling, scripted
from keyturn.gateway.policy.evaluate import Evaluation, evaluate
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.records import Tier, Verb
from keyturn.gateway.protocol.wire import ProposedCall
from keyturn.gateway.service.submit.turn_evaluation import apply_hint
from tests.agent.fake_gateway import FakeGateway
from tests.docs.test_readme import ROOT, blocks

PAGE = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
CODE = blocks("python", PAGE)
POLICY, LIKE_LANGCHAIN = (
    load_policy(block, "policy.yml") for block in blocks("yaml", PAGE)
)
EMAIL = ("send_email", {"to": "alice@else.org", "body": "Hi"}, "c1")
INSIDE = ("send_email", {"to": "bob@example.com", "body": "Hi"}, "c2")
DELETE = ("delete_file", {"path": "report"}, "c3")
READ = ("read_file", {"path": "notes"}, "c4")
CONFIG: Any = {"configurable": {"thread_id": "9"}}


class PolicyGateway(FakeGateway):
    """The gateway in memory, with evaluations by a real policy."""

    def __init__(self, policy: Policy = POLICY) -> None:
        super().__init__()
        self.policy = policy

    def _evaluation(self, call: ProposedCall) -> Evaluation:
        def evaluate_at(requested_tier: Tier | None) -> Evaluation:
            return evaluate(
                self.policy,
                agent="mailer",
                tool=call.tool,
                args=call.args,
                requested_tier=requested_tier,
            )

        return apply_hint(evaluate_at, call.hint)


def page(*replies: AIMessage) -> dict[str, Any]:
    """Run every block of the page in order; return the resulting names."""
    names: dict[str, Any] = {"__name__": "page", "model": scripted(list(replies))}
    for number, code in enumerate(CODE):
        exec(compile(code, f"migrating.md#{number}", "exec"), names)  # noqa: S102 - the page's own code
    return names


def asked(graph: Any, gateway: FakeGateway, config: Any = CONFIG) -> set[str]:
    """Run a graph of the page; return the ids of the calls that wait for a person."""
    graph.checkpointer = InMemorySaver()
    with connected(gateway):
        graph.invoke({"messages": [("user", "go")]}, config)
    return {item.ctx.tool_call_id for item in gateway.pending()}


def texts(messages: list[BaseMessage]) -> dict[str, str]:
    return {m.tool_call_id: m.text for m in messages if isinstance(m, ToolMessage)}


def test_the_agent_after_pauses_at_the_same_tools_and_is_answered_by_people() -> None:
    gateway = PolicyGateway()
    graph = page(calling(EMAIL, DELETE, READ))["graph"]

    waiting = asked(graph, gateway)
    by_call = {item.ctx.tool_call_id: item for item in gateway.pending()}
    gateway.approve(by_call["c1"].id)
    gateway.reject(by_call["c3"].id, "Keep the report.")
    answers = {
        pause.id: gateway.answer(pause.value["item_id"]).model_dump(mode="json")
        for pause in graph.get_state(CONFIG).interrupts
    }
    with connected(gateway):
        end = graph.invoke(Command(resume=answers), CONFIG)

    assert waiting == {"c1", "c3"}
    assert by_call["c3"].allow == (Verb.APPROVE, Verb.REJECT)
    assert by_call["c3"].summary == "The agent says: Deleted files do not come back"
    assert by_call["c1"].summary == ("The agent says: Tool execution pending approval")
    told = texts(end["messages"])
    assert told["c1"] == "Sent to alice@else.org."
    assert "Keep the report." in told["c3"]
    assert told["c4"] == "The text of notes."


def test_the_predicate_holds_only_what_leaves_the_stack() -> None:
    careful = page(calling(EMAIL, INSIDE))["careful"]

    assert asked(careful, PolicyGateway()) == {"c1"}


@pytest.mark.parametrize("way", ["configuration", "context"])
def test_the_wish_of_one_run_holds_a_tool(way: str) -> None:
    names = page(calling(READ))
    gateway = PolicyGateway()
    graph = names["graph"]
    graph.checkpointer = InMemorySaver()
    question = {"messages": [("user", "read")]}

    with connected(gateway):
        if way == "configuration":
            graph.invoke(question, names["run_config"])
        else:
            graph.invoke(question, CONFIG, context={"keyturn": names["overrides"]})

    assert gateway.only().tool == "read_file"
    assert gateway.only().is_pending
    assert gateway.only().allow == (Verb.APPROVE, Verb.REJECT)


@pytest.mark.parametrize("name", ["general-purpose", "cleaner"])
def test_each_subagent_of_deepagents_is_gated(name: str) -> None:
    task = ("task", {"description": "clean up", "subagent_type": name}, "t1")
    tools = {**POLICY.tools, "task": POLICY.tools["read_file"]}
    policy = POLICY.model_copy(update={"tools": tools})
    gateway = PolicyGateway(policy)

    waiting = asked(page(calling(task), calling(DELETE))["deep"], gateway)

    assert waiting == {"c3"}
    assert gateway.only().ctx.agent == "mailer"

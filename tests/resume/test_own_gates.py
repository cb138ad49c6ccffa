"""Which tools ask is read from a graph; a tool that nobody asks about is refused."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, cast

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from keyturn.agent import ApprovalMiddleware
from keyturn.connect.local_gate import LocalGate
from keyturn.gateway.approvals.decisions import Edit, Respond
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.config import Settings
from keyturn.gateway.dialects.asked import Question
from keyturn.gateway.embed import Keyturn, own_gate_of
from keyturn.gateway.errors import GraphError, SettingsError
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol import wire
from keyturn.gateway.protocol.http_api import OpenQuestion
from keyturn.gateway.protocol.records import ItemState, RunRef
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.remote.program import RemoteKeyturn
from keyturn.gateway.resume.graphs import as_graph, described
from keyturn.gateway.resume.own_gates import OwnGates
from keyturn.gateway.resume.program_runs import GivenUp
from keyturn.gateway.resume.threads import ThreadState
from keyturn.gateway.store.store import Store
from tests.api.remote_program import remote_program
from tests.conftest import eventually
from tests.dialects import sample_agents
from tests.dialects.sample_agents import KINDS, Agent
from tests.resume.programs import asked, begin, decide, in_process, items_of
from tests.resume.resume_stack import AT_ONCE, POLICY
from tests.service.harness import ServiceHarness
from tests.streams import audit_entries

TEXT = """\
version: 1
defaults: {tier: approve, needs: U0ANA, channel: "#x"}
tools:
  look: {tier: auto}
  mail: {tier: auto, raise: [{to: approve, when: "true", because: it may}]}
  task: {tier: auto}
  ban: {tier: deny}
"""
GATED = load_policy(TEXT, "policy.yml")
PAY = {"pay": KINDS}
BUILTIN = ["builtin"]


async def load(graph: object, ungated: Collection[str] = ()) -> str:
    """Load a graph with its own gate; describe its tools."""
    own_gate = own_gate_of("crm", GATED)
    compiled = await as_graph(graph, "crm.py:graph", ungated, own_gate)
    return described(compiled, ungated)


@pytest.mark.parametrize("mode", ["batched", "per_call"])
async def test_a_graph_that_asks_about_its_tools_is_taken(mode: str) -> None:
    found = await load(sample_agents.langchain(PAY, mode=mode).graph)

    assert "asked about by its own middleware: pay" in found


async def test_the_tools_of_subagents_are_read_as_well() -> None:
    found = await load(sample_agents.deep_agent(PAY).graph, BUILTIN)

    for place in ("billing", "mailing"):
        assert f"pay (tools > task > {place} > tools)" in found
    assert "ungated as the settings say: " in found


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: sample_agents.langchain(PAY, free="wipe"), "'wipe' in 'tools'"),
        # The policy may put some of its calls to people.
        (lambda: sample_agents.langchain(PAY, free="mail"), "'mail' in 'tools'"),
        (lambda: sample_agents.langchain(PAY, free="ban"), "'ban' in 'tools'"),
        (
            lambda: sample_agents.langchain(PAY, when=lambda _: False),
            "'pay' in 'tools'",
        ),
        (lambda: sample_agents.deep_agent({}, extra="wipe"), "'wipe' in"),
    ],
)
async def test_an_unasked_tool_is_refused(make: Callable[[], Any], names: str) -> None:
    with pytest.raises(GraphError, match="does not always ask") as told:
        await load(make().graph, BUILTIN)

    assert names in str(told.value)
    assert "interrupt_on" in str(told.value)


async def test_a_named_exception_is_taken() -> None:
    agent = sample_agents.langchain(PAY, free="wipe")
    assert "ungated as the settings say: wipe" in await load(agent.graph, ["wipe"])


async def test_the_tools_of_deepagents_itself_are_named_as_one_or_refused() -> None:
    with pytest.raises(GraphError, match="'write_file'"):
        await load(sample_agents.deep_agent(PAY).graph)


async def test_a_graph_without_the_setting_is_refused_and_told_of_it() -> None:
    with pytest.raises(GraphError, match="set 'own_gate' of this agent"):
        await as_graph(sample_agents.langchain(PAY).graph, "crm.py:graph")


@pytest.mark.parametrize("first", ["ours", "theirs"])
@pytest.mark.parametrize("mode", ["batched", "per_call"])
async def test_two_gates_on_one_tool_are_refused(first: str, mode: str) -> None:
    gate = ApprovalMiddleware("crm")
    graph = sample_agents.langchain(PAY, mode=mode, gate=(first, gate)).graph

    for own_gate in (None, own_gate_of("crm", GATED)):
        with pytest.raises(GraphError, match="asks people twice about 'pay'"):
            await as_graph(graph, "crm.py:graph", (), own_gate)


async def test_a_newly_unasked_tool_is_refused(store: Store, tmp_path: Path) -> None:
    (tmp_path / "crm.py").write_text(
        "from tests.dialects.sample_agents import KINDS, langchain\n"
        "graph = langchain({'pay': KINDS}).graph\n"
    )
    policy, file = tmp_path / "policy.yml", tmp_path / "keyturn.yml"
    policy.write_text(TEXT)
    file.write_text(f"""
agents: {{crm: {{graph: "crm.py:graph", own_gate: true}}}}
redis_url: "{store.conn.url}"
""")
    async with Keyturn(Settings.load(file, {})) as tk:
        before = tk.service.policy_now.digest
        policy.write_text(TEXT.replace("look: {tier: auto}", "look: {tier: approve}"))

        refused: list[str] = []

        async def is_refused() -> bool:
            keys = store.keys_of_tenant("default")
            found = await audit_entries(store.conn, keys)
            name = EventName.POLICY_REFUSED
            refused[:] = [one.reason for one in found if one.name is name]
            return bool(refused)

        await eventually(is_refused)

    assert "'look' in 'tools'. Name them in interrupt_on" in refused[0]
    assert tk.service.policy_now.digest == before


def test_one_name_instead_of_a_list_of_agents_is_refused() -> None:
    with pytest.raises(SettingsError, match="give a list of names of agents"):
        RemoteKeyturn("http://127.0.0.1", own_gate="crm")


# A program runs an agent that nobody edited, with a gateway here or elsewhere.


TOOLS = "tools:\n  look: {tier: auto}\n  pay: {tier: approve}"
RULES = load_policy(POLICY.replace("tools:", TOOLS), "policy.yml")
SHORT = load_policy(POLICY.replace("expires_in: 1h", "expires_in: 1s"), "policy.yml")
OPTIONS: Any = {"own_gate": ["shop"], "ungated": {"shop": ["look"]}}


@pytest.fixture(params=["here", "elsewhere"])
async def tk(
    request: pytest.FixtureRequest, store: Store, tmp_path: Path
) -> AsyncGenerator[Keyturn]:
    """Give a program whose gateway is in its process, and one with an API key."""
    if request.param == "here":
        async with in_process(store, tmp_path, policy=RULES, **OPTIONS) as here:
            yield here
        return
    async with remote_program(
        store, RULES, tmp_path, retries=AT_ONCE, **OPTIONS
    ) as elsewhere:
        yield elsewhere


def stock(**options: Any) -> tuple[Agent, Any]:
    """Return a stock agent, and its graph without a checkpointer."""
    agent = sample_agents.langchain({"pay": KINDS}, **options)
    return agent, agent.graph.copy(update={"checkpointer": None})


@pytest.mark.parametrize("mode", ["batched", "per_call"])
async def test_a_run_hands_peoples_decision_over(tk: Keyturn, mode: str) -> None:
    agent, graph = stock(mode=mode)
    call = {"name": "pay", "args": {"order": "7", "amount": 7.0}}
    run = begin(tk, graph, agent.given([call]))
    item = await asked(tk)
    assert item.handed_to == "agent shop"
    await decide(tk, item, Edit(args={"order": "7", "amount": 5}, reason="half"))
    final = await run

    assert "__interrupt__" not in final
    assert agent.effects == [("pay", {"order": "7", "amount": 5.0})]
    assert [one.state for one in await items_of(tk)] == [ItemState.HANDED_OVER]


class _State(TypedDict):
    said: list[str]


def asking(_: _State) -> dict[str, Any]:
    """Ask a plain question in the graph's own code."""
    return {"said": [interrupt("Which account?")]}


def plain() -> Any:
    """Make a graph that asks a plain question."""
    builder: Any = StateGraph(_State)
    builder.add_node("asking", cast("Callable[..., Any]", asking))
    builder.add_edge(START, "asking")
    return builder.compile()


async def test_a_plain_question_gets_a_persons_answer(tk: Keyturn) -> None:
    run = begin(tk, plain(), {"said": []})
    await decide(tk, await asked(tk), Respond(answers=("DE-7",)))

    assert (await run)["said"] == ["DE-7"]


async def test_a_plain_question_is_left_alone(store: Store, tmp_path: Path) -> None:
    async with in_process(store, tmp_path, policy=SHORT, **OPTIONS) as tk:
        with pytest.raises(GivenUp, match="did not answer a question"):
            await begin(tk, plain(), {"said": []})


async def test_a_program_may_get_the_question(store: Store, tmp_path: Path) -> None:
    options = {"ungated": {"shop": ["pay", "look"]}}
    agent, graph = stock()
    async with in_process(store, tmp_path, policy=RULES, **options) as tk:
        call = {"name": "pay", "args": {"order": "7", "amount": 7.0}}
        final = await begin(tk, graph, agent.given([call]))

    assert json.dumps(final["__interrupt__"][0].value).startswith('{"action_requests"')
    assert agent.effects == []


# A claim that is for another decision than the answer that was read.


RUN = RunRef(agent="crm", thread="t1")
VALUE: Any = {
    "action_requests": [{"name": "pay", "args": {"amount": 5}}],
    "review_configs": [
        {"action_name": "pay", "allowed_decisions": ["approve", "edit", "reject"]}
    ],
}


class Stale:
    """Reads an approval, which people have replaced by an edit since then."""

    def __init__(self, gateway: Any) -> None:
        self.gateway = gateway

    async def found(
        self, run: RunRef, questions: Sequence[OpenQuestion]
    ) -> Mapping[OpenQuestion, tuple[JsonObject, int]]:
        answers = {
            one: wire.Answer(
                type=wire.AnswerKind.APPROVE,
                item_id=one.item_id,
                action_hash=one.action_hash,
            )
            for one in questions
        }
        return {one: (it.model_dump(mode="json"), 0) for one, it in answers.items()}

    async def handed(self, run: RunRef) -> Sequence[Item]:
        return ()

    async def withdraw(
        self, run: RunRef, item_ids: Collection[str] | None = None
    ) -> tuple[str, ...]:
        return ()


async def test_a_replaced_decision_is_not_handed_over(store: Store) -> None:
    people = ServiceHarness(store, load_policy(POLICY, "policy.yml"))
    gate = LocalGate(store, lambda: people.policy)
    asked = Question(id="q1", value=VALUE)
    state = ThreadState(exists=True, pending=(asked,), schemas={})
    threads: Any = Stale(gate)
    handing = OwnGates(threads)

    [question] = await handing.waiting(RUN, state)
    await people.decide(question.item_id, Edit(args={"amount": 3}))
    assert await handing.ready(RUN, state) == []

    item = await people.item(question.item_id)
    assert item.state is ItemState.AUTHORIZED
    await gate.aclose()

"""A call is evaluated once, waits for a person, and ends in exactly one way."""

from __future__ import annotations

import asyncio
import copy
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import (
    AIMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import ParentCommand
from langgraph.types import Command, interrupt
from pydantic import BaseModel
from typing_extensions import override

from keyturn.agent import ApprovalMiddleware, connected, guarded
from keyturn.agent.middleware import with_note
from keyturn.agent.scripted_model import calling, scripted
from keyturn.gateway.approvals.lifecycle import Transition
from keyturn.gateway.approvals.requirement import Vote
from keyturn.gateway.protocol.records import ItemState, Person, Tier, Verb
from keyturn.gateway.protocol.texts import ended_text
from keyturn.gateway.protocol.wire import (
    APPROVAL_INTERRUPT,
    AgentNote,
    Answer,
    AnswerKind,
    Turn,
    Verdict,
)
from tests.agent.agent_runner import (
    CONFIG,
    FREE,
    STRICT,
    Effects,
    Runner,
    build,
    by_call,
    item_of,
    paused,
    pay,
    results,
)
from tests.agent.fake_gateway import ANNA, FakeGateway

TURN = calling(
    ("pay", {"amount": 10, "to": "ada"}, "c1"),
    ("look_up", {"query": "x"}, "c2"),
    ("pay", {"amount": 20, "to": "bob"}, "c3"),
    text="I pay both.",
)


def test_middleware_can_be_copied() -> None:
    assert copy.deepcopy(ApprovalMiddleware("support")).agent == "support"


async def test_a_turn_is_submitted_once(runner: Runner, saver: Any) -> None:
    gateway = FakeGateway(FREE)
    graph = build(gateway, runner.tools(), TURN, saver=saver)

    await runner.say(graph, "pay them")

    (turn, _verdicts) = next(iter(gateway.turns.values()))
    snapshot = await runner.state(graph)
    assert gateway.calls["submit"] == 1
    assert [call.tool_call_id for call in turn.calls] == ["c1", "c2", "c3"]
    assert (turn.ref.agent, turn.ref.thread, turn.ref.ns) == (
        "support",
        "thread-1",
        "",
    )
    assert turn.ref.message_id == snapshot.values["messages"][1].id
    assert turn.says == "I pay both."
    assert turn.schemas["pay"]["required"] == ["amount", "to"]
    assert {pause.value["item_id"] for pause in snapshot.interrupts} == {
        "ap0.0",
        "ap1.0",
    }
    assert runner.looked == ["x"]
    assert runner.paid == []


async def test_the_question_names_call_and_answers(runner: Runner) -> None:
    gateway = FakeGateway(FREE, allow=(Verb.APPROVE, Verb.REJECT))
    graph = build(gateway, runner.tools(), pay())

    await runner.say(graph, "pay")

    (pause,) = (await runner.state(graph)).interrupts
    assert pause.value == {
        "type": APPROVAL_INTERRUPT,
        "v": 1,
        "item_id": "ap0.0",
        "tool": "pay",
        "tool_call_id": "c1",
        "args": {"amount": 10, "to": "ada"},
        "action_hash": gateway.only().action_hash,
        "allow": ["approve", "reject"],
        "errors": [],
    }


@pytest.mark.slow
async def test_only_approved_calls_run(runner: Runner, saver: Any) -> None:
    gateway = FakeGateway(FREE)
    ids = ["approve", "edit", "reject", "respond", "expire", "withdraw", "supersede"]
    ids += ["lapse"]
    turn = calling(
        *[("pay", {"amount": at, "to": id_}, id_) for at, id_ in enumerate(ids)]
    )
    graph = build(gateway, runner.tools(), turn, saver=saver)
    await runner.say(graph, "pay")

    gateway.approve(item_of(gateway, "approve").id)
    gateway.edit(item_of(gateway, "edit").id, {"amount": 0.5, "to": "eve"}, "less")
    gateway.reject(item_of(gateway, "reject").id, "never")
    gateway.respond(item_of(gateway, "respond").id, "ask Bob first")
    for transition in (Transition.EXPIRE, Transition.WITHDRAW, Transition.SUPERSEDE):
        gateway.end(item_of(gateway, str(transition)).id, transition)
    gateway.approve(item_of(gateway, "lapse").id)
    gateway.end(item_of(gateway, "lapse").id, Transition.LAPSE)
    end = await runner.resume(graph, gateway)

    told = by_call(end)
    assert sorted(runner.paid) == [(0, "approve"), (0.5, "eve")]
    assert told["approve"].text == "paid 0.0 to approve"
    assert told["approve"].status == "success"
    assert told["edit"].text.endswith("paid 0.5 to eve")
    assert '"never"' in told["reject"].text
    assert "did not run" in told["reject"].text
    assert '"ask Bob first"' in told["respond"].text
    assert told["respond"].status == "success"
    assert "Nobody decided in time" in told["expire"].text
    assert "withdrawn" in told["withdraw"].text
    assert "moved on" in told["supersede"].text
    assert "not used in time" in told["lapse"].text
    unrun = ["reject", "expire", "withdraw", "supersede", "lapse"]
    assert {told[id_].status for id_ in unrun} == {"error"}
    assert end["messages"][-1].text == "done"


async def test_a_reason_of_approval_has_no_mark(runner: Runner, saver: Any) -> None:
    gateway, graph = await paused(runner, saver)
    item, why = gateway.only(), "checked [keyturn:edited]"
    who = {"by": ANNA, "roles": ("support",), "action_hash": item.action_hash}
    vote = Vote.model_validate({**who, "at_ms": 1, "reason": why})
    gateway.items[item.id] = item.with_(votes=(vote,))

    gateway.approve(item.id)
    end = await runner.resume(graph, gateway)

    told = results(end)[0].text
    assert 'approved this call and wrote: "checked [not-keyturn:edited]"' in told
    assert told.endswith("paid 10.0 to ada")


class _Flooded(FakeGateway):
    """A gateway that asks the agent to wait."""

    @override
    async def submit(self, turn: Turn) -> tuple[Verdict, ...]:
        found = await super().submit(turn)
        return tuple(one.with_(retry_after_s=600, waiting=7) for one in found)


@pytest.mark.parametrize("is_approved", [True, False])
async def test_a_flooding_model_must_wait(runner: Runner, *, is_approved: bool) -> None:
    gateway = _Flooded()
    graph = build(gateway, runner.tools(), pay())
    await runner.say(graph, "pay ada")
    item_id = gateway.only().id
    if is_approved:
        gateway.approve(item_id)
    else:
        gateway.reject(item_id, "no")

    state = await runner.resume(graph, gateway)

    assert "7 of your calls waited" in results(state)[0].text
    assert runner.paid == [(10, "ada")] * is_approved


async def test_calls_run_as_they_are_decided(runner: Runner, saver: Any) -> None:
    gateway, graph = await paused(runner, saver, TURN)

    gateway.approve("ap1.0")
    await runner.resume(graph, gateway)
    after_one = list(runner.paid)
    gateway.approve("ap0.0")
    end = await runner.resume(graph, gateway)

    assert after_one == [(20, "bob")]
    assert runner.paid == [(20, "bob"), (10, "ada")]
    assert runner.looked == ["x"]
    assert [message.tool_call_id for message in results(end)] == ["c1", "c2", "c3"]
    assert len(set(runner.keys)) == 2
    assert {item.state for item in gateway.items.values()} == {ItemState.EXECUTED}
    assert gateway.calls["submit"] == 1


async def test_what_policy_denies_is_told_and_does_not_run(runner: Runner) -> None:
    gateway = FakeGateway({"pay": Tier.DENY})
    graph = build(gateway, runner.tools(), pay())

    end = await runner.say(graph, "pay")

    assert runner.paid == []
    assert by_call(end)["c1"].text == "Policy forbids it."
    assert by_call(end)["c1"].status == "error"


@pytest.mark.parametrize("fault", ["submit", "forbid submit"])
async def test_a_silent_gateway_runs_nothing(runner: Runner, fault: str) -> None:
    gateway = FakeGateway(FREE)
    gateway.down.add(fault)
    graph = build(gateway, runner.tools(), TURN)

    end = await runner.say(graph, "pay")

    assert (runner.paid, runner.looked) == ([], [])
    assert {message.status for message in results(end)} == {"error"}
    assert len({message.text for message in results(end)}) == 1
    assert end["messages"][-1].text == "done"


async def test_a_missing_gateway_runs_nothing_and_is_told(runner: Runner) -> None:
    graph = build(None, runner.tools(), TURN)

    end = await runner.say(graph, "pay")

    assert (runner.paid, runner.looked) == ([], [])
    assert "No approval gateway is connected" in results(end)[0].text


async def test_two_calls_with_one_id_are_both_refused(runner: Runner) -> None:
    gateway = FakeGateway(FREE)
    turn = calling(
        ("pay", {"amount": 1, "to": "a"}, "same"),
        ("pay", {"amount": 2, "to": "b"}, "same"),
        ("look_up", {"query": "x"}, "c3"),
    )
    graph = build(gateway, runner.tools(), turn)

    end = await runner.say(graph, "pay")

    assert runner.paid == []
    assert runner.looked == ["x"]
    assert gateway.items == {}
    same = [m for m in results(end) if m.tool_call_id == "same"]
    assert len(same) == 2
    assert all("same id" in message.text for message in same)


@pytest.mark.parametrize("config", [{}, CONFIG], ids=["no thread", "no checkpointer"])
async def test_a_graph_needs_a_thread(runner: Runner, config: RunnableConfig) -> None:
    gateway = FakeGateway(FREE)
    graph = build(gateway, runner.tools(), TURN, saver=False)

    # Without `durability`, which `runner` asks for: nothing is kept.
    words = {"messages": [("user", "pay")]}
    if runner.is_async:
        end = await graph.ainvoke(words, config)
    else:
        end = await asyncio.to_thread(graph.invoke, words, config)

    assert (runner.paid, runner.looked) == ([], [])
    assert gateway.calls["submit"] == 0
    assert "thread_id" in results(end)[0].text


async def test_a_verdict_on_something_else_clears_nothing(runner: Runner) -> None:
    class Confused(FakeGateway):
        async def submit(self, turn: Any) -> tuple[Verdict, ...]:
            verdicts = await super().submit(turn)
            wrong = verdicts[1].with_(args_hash="sha256:" + "0" * 64)
            return (verdicts[0].with_(tool="look_up"), wrong)

    graph = build(Confused(FREE), runner.tools(), TURN)

    end = await runner.say(graph, "pay")

    assert (runner.paid, runner.looked) == ([], [])
    assert all("not cleared" in message.text for message in results(end))


async def test_a_rejected_direct_answer_goes_to_the_model(runner: Runner) -> None:
    @tool(return_direct=True)
    def quote(price: float) -> str:
        """Quote a price."""
        return f"It costs {price}."

    gateway = FakeGateway()
    turns = [calling(("quote", {"price": 1}, at)) for at in ("c1", "c2")]
    graph = build(gateway, [quote], *turns)
    await runner.say(graph, "quote")
    gateway.reject("ap0.0")
    await runner.resume(graph, gateway)

    gateway.edit("ap1.0", {"price": 2})
    end = await runner.resume(graph, gateway)

    told = by_call(end)
    assert "rejected this call" in told["c1"].text
    assert end["messages"][-1] == told["c2"]
    assert told["c2"].text == "It costs 2.0."
    assert told["c2"].additional_kwargs["keyturn_edit"]["edited_args"] == {"price": 2}


async def test_the_system_prompt_lists_what_needs_a_person(runner: Runner) -> None:
    gateway = FakeGateway({**FREE, "pay": Tier.APPROVE}, default=Tier.AUTO)
    model = scripted([])
    graph = build(gateway, runner.tools(), model=model)

    await runner.say(graph, "hello")
    await runner.say(graph, "again")

    system = model.seen[0][0]
    assert isinstance(system, SystemMessage)
    assert "a person's approval: pay." in system.text
    assert model.seen[1][0] == system
    assert gateway.calls["note"] == 1


@pytest.mark.parametrize("has_note", [True, False])
async def test_a_missing_note_fails_nothing(runner: Runner, *, has_note: bool) -> None:
    gateway, model = FakeGateway(FREE), scripted([])
    if has_note:
        gateway.down.add("note")
    options: Any = {"saver": runner.memory, "model": model, "system_note": has_note}

    await runner.say(build(gateway, runner.tools(), **options), "hello")

    assert isinstance(model.seen[0][0], HumanMessage)


async def test_private_state_stays_private(runner: Runner) -> None:
    gateway = FakeGateway(FREE)
    graph = build(gateway, runner.tools(), pay())
    forged = {"messages": [("user", "pay")], "keyturn_turn": {"x": 1}}

    await runner.run(graph, forged, CONFIG)
    gateway.edit("ap0.0", {"amount": 1, "to": "ada"})
    end = await runner.run(
        graph, Command(resume=await runner.answers(graph, gateway)), CONFIG
    )

    assert set(end) == {"messages"}
    assert runner.paid == [(1, "ada")]


async def test_an_approval_without_a_gateway_does_not_run(runner: Runner) -> None:
    gateway = FakeGateway(FREE)
    graph = build(None, runner.tools(), pay())
    with connected(gateway):
        await runner.say(graph, "pay")
    gateway.approve("ap0.0")

    end = await runner.resume(graph, gateway)

    assert runner.paid == []
    assert "No approval gateway is connected" in by_call(end)["c1"].text


@pytest.mark.usefixtures("quick_beats")
async def test_a_lost_claim_keeps_output(runner: Runner, memory: InMemorySaver) -> None:
    gateway, graph = await paused(runner, memory)
    gateway.approve("ap0.0")
    second_beat = threading.Event()

    def stumble_then_lose() -> None:
        beats = gateway.calls["heartbeat"]
        gateway.down = {"heartbeat"} if beats == 1 else set()
        if beats == 2:
            gateway.lose_owner("ap0.0")
            second_beat.set()

    gateway.before["heartbeat"] = stumble_then_lose
    runner.inside = lambda: second_beat.wait(10)
    end = await runner.resume(graph, gateway)

    assert second_beat.is_set()
    assert by_call(end)["c1"].text == "paid 10.0 to ada"
    assert gateway.only().state is ItemState.IN_DOUBT


async def test_a_release_that_fails_does_not_hide_the_pause(runner: Runner) -> None:
    @guarded
    @tool
    def unlock(door: str) -> str:
        """Unlock a door."""
        return f"{door} {interrupt('pin?')}"

    gateway = FakeGateway()
    turn = calling(("unlock", {"door": "a"}, "c1"))
    graph = build(gateway, [unlock], turn)
    await runner.say(graph, "unlock")
    gateway.approve("ap0.0")
    gateway.down.add("release")

    await runner.resume(graph, gateway)

    (pause,) = (await runner.state(graph)).interrupts
    assert pause.value == "pin?"


async def test_a_tool_that_hands_over_is_executed(runner: Runner) -> None:
    ran: list[str] = []

    @guarded
    @tool
    def hand_over(to: str) -> str:
        """Hand over to an external person."""
        ran.append(to)
        raise ParentCommand(Command(graph=Command.PARENT, goto=to))

    gateway = FakeGateway()
    turn = calling(("hand_over", {"to": "boss"}, "c1"))
    graph = build(gateway, [hand_over], turn)
    await runner.say(graph, "hand over")
    gateway.approve("ap0.0")
    answers = await runner.answers(graph, gateway)

    with pytest.raises(ParentCommand):
        await runner.run(graph, Command(resume=answers), STRICT)

    assert ran == ["boss"]
    assert gateway.only().state is ItemState.EXECUTED


async def test_a_call_that_no_message_asks_for_does_not_run(effects: Effects) -> None:
    middleware = ApprovalMiddleware("support", gateway=FakeGateway(FREE))
    tools: list[BaseTool] = effects.tools()
    runtime: Any = SimpleNamespace(tools=tools)

    def handler(request: ToolCallRequest) -> Any:
        raise AssertionError(request)

    for messages in ([], [AIMessage("no calls", id="m1")], [pay()]):
        request = ToolCallRequest(
            tool_call=pay().tool_calls[0],
            tool=tools[0],
            state={"messages": messages},
            runtime=runtime,
        )
        told = middleware.wrap_tool_call(request, handler)
        assert isinstance(told, ToolMessage)
        assert "not cleared" in told.text


async def test_a_tool_without_a_json_schema_is_evaluated(runner: Runner) -> None:
    class Strange(BaseModel):
        model_config = {"arbitrary_types_allowed": True}
        lock: threading.Event | None = None
        amount: float

    @tool(args_schema=Strange)
    def odd(amount: float, lock: Any = None) -> str:
        """Do something odd."""
        return f"odd {amount}"

    gateway = FakeGateway()
    turn = calling(("odd", {"amount": 1}, "c1"))
    graph = build(gateway, [odd], turn)
    await runner.say(graph, "go")
    gateway.approve("ap0.0")

    end = await runner.resume(graph, gateway)

    (submitted, _) = next(iter(gateway.turns.values()))
    assert submitted.schemas == {}
    assert by_call(end)["c1"].text == "odd 1.0"


@pytest.mark.parametrize("content", ["You help.", [{"type": "text", "text": "You"}]])
def test_the_note_is_added_to_a_system_message_of_either_shape(content: Any) -> None:
    note = AgentNote(gated_tools=("pay",), other_tools_are_gated=True)

    system = with_note(SystemMessage(content), note)

    assert system is not None
    assert system.text.startswith("You")
    assert "approval: pay. Other tools may need it too." in system.text
    assert type(system.content) is type(content)


ANA = Person(team="T0", user="U0ANA", name="Ana")


def ended(kind: AnswerKind, *, message: str = "", has_started: bool = False) -> Answer:
    return Answer(
        type=kind,
        item_id="ap0.0",
        action_hash="sha256:aa",
        message=message,
        by=ANA,
        has_started=has_started,
    )


@pytest.mark.parametrize("kind", [AnswerKind.REJECT, AnswerKind.RESPOND])
def test_of_a_call_that_began_nobody_says_that_it_did_not_run(kind: AnswerKind) -> None:
    before = ended_text(ended(kind))
    after = ended_text(ended(kind, has_started=True))

    assert "did not run" in before
    assert "did not run" not in after
    assert "was stopped; its effects up to then remain" in after

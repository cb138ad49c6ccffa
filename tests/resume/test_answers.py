"""Only the gateway's record turns an agent's question into an answer."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import pytest
from deepagents import create_deep_agent  # pyright: ignore[reportUnknownVariableType] - partly typed
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState, StateGraph

from keyturn.agent import ApprovalMiddleware, ask_user, connected, gated_subagents
from keyturn.agent.messages import ANSWER_KEY
from keyturn.gateway.approvals.decisions import (
    AccountKind,
    Approve,
    Decided,
    Edit,
    Invalid,
    Reject,
    Respond,
    Reviewer,
)
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.lifecycle import UNEXECUTED
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.approvals.resume_value import answer_for
from keyturn.gateway.dialects.asked import Question
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol import digest, texts
from keyturn.gateway.protocol.records import ItemState, Result, RunRef
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import RECONCILE_INTERRUPT, ReconcileAnswer
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import Runner
from keyturn.gateway.resume.store_threads import StoreThreads
from keyturn.gateway.resume.threads import AnswerRefused, Answers
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.lifetimes import lose_records
from tests.resume import sample_tools
from tests.resume.resume_stack import ANA, DAN, REFUND, RULES, Stack
from tests.sample_questions import EXTRAS, REGION
from tests.stored_records import put_detail


async def decided(stack: Stack) -> tuple[Item, Question]:
    """Return a decided item and the thread's question about it."""
    async with stack.working():
        await stack.ask(REFUND)
        await stack.asked()
    [question] = (await stack.runner.probe("t1")).pending
    [item] = await stack.items()
    await stack.decide(item, Edit(args={"order": "78291", "amount": 1}, reason="less"))
    return (await stack.items())[0], question


async def answered(stack: Stack, *asked: Question, thread: str) -> Answers:
    """Return what these questions of a thread can be answered with."""
    threads = StoreThreads(stack.store, AgentService(stack.store, lambda: stack.policy))
    return await threads.answers(RunRef(agent="shop", thread=thread), asked)


async def test_a_decided_item_answers_the_question_about_it(stack: Stack) -> None:
    _, question = await decided(stack)

    answers = await answered(stack, question, thread="t1")

    answer = answers.ready[question.id]
    assert (answer["type"], answer["args"]) == ("edit", {"order": "78291", "amount": 1})
    assert answers.without(set(answers.fingerprint.values())).ready == {}


async def test_another_calls_questions_get_no_answer(stack: Stack) -> None:
    item, question = await decided(stack)
    asked = cast("dict[str, object]", question.value)

    def forged(**changes: object) -> Question:
        return Question("f" * 32, {**asked, **changes})

    for thread, pending in [
        ("t2", question),
        ("t1", forged(action_hash=item.action_hash)),  # the edited, not the asked
        ("t1", forged(item_id=7)),
        ("t1", forged(type="tool_approval")),
        ("t1", Question("f" * 32, "what is your name?")),
    ]:
        answers = await answered(stack, pending, thread=thread)
        assert answers.ready == {}


@pytest.mark.parametrize(
    "item_id", ["{}.1", "ap_default_" + "0" * 32 + ".0", "nonsense"]
)
async def test_an_unknown_question_runs_nothing(stack: Stack, item_id: str) -> None:
    item, question = await decided(stack)
    asked = cast("dict[str, object]", question.value)
    unknown = {**asked, "item_id": item_id.format(item.id.rpartition(".")[0])}

    answers = await answered(stack, Question("f" * 32, unknown), thread="t1")

    [answer] = answers.ready.values()
    assert answer["type"] == "withdrawn"
    assert "has no record of this call" in str(answer["message"])


async def test_an_unknown_doubt_ends_without_words_of_people(stack: Stack) -> None:
    item, _ = await decided(stack)
    await lose_records(stack.store.conn)
    value = {
        "type": RECONCILE_INTERRUPT,
        "item_id": item.id,
        "action_hash": digest.action_hash(item.requested),
    }

    answers = await answered(stack, Question("f" * 32, value), thread="t1")

    [answer] = answers.ready.values()
    found = ReconcileAnswer.model_validate(answer)
    assert (found.type, found.by) == ("skip", None)
    told = texts.reconciled_text(found)
    assert "has no record of this call" in told
    assert "Whether it took effect is unknown" in told
    assert "reviewer" not in told


async def test_a_thread_of_a_lost_approval_ends_at_a_message(stack: Stack) -> None:
    async with stack.working():
        await stack.ask(REFUND)
        await stack.asked()
        await stack.idle()
        await lose_records(stack.store.conn)

        await stack.say("hello")

        async def is_answered() -> bool:
            told = await stack.events(EventName.RUN_FINISHED)
            return any(one.data.get("text") == "You said hello" for one in told)

        await eventually(is_answered)
        await stack.idle()


async def test_a_doubt_is_answered_by_what_became_of_the_item(stack: Stack) -> None:
    item, _ = await decided(stack)
    # The states below are written by hand, and no person signed them.
    stack.store.keyring = None
    question = Question(
        "f" * 32,
        {
            "type": RECONCILE_INTERRUPT,
            "item_id": item.id,
            "action_hash": digest.action_hash(item.requested),
        },
    )
    found: dict[str, str] = {}
    for state in ItemState:
        await stack.store.conn.command(
            "HSET", stack.keys.head(item.id.rpartition(".")[0]), "0:s", state.value
        )
        answers = await answered(stack, question, thread="t1")
        if answers.ready:
            found[state] = str(answers.ready[question.id]["type"])

    assert found == {
        ItemState.AUTHORIZED: "rerun",
        ItemState.EXECUTING: "rerun",
        ItemState.EXECUTED: "executed",
        ItemState.FAILED: "skip",
        **dict.fromkeys(UNEXECUTED, "skip"),
    }

    # With a result the claim gives it back; nothing runs.
    body = Result(ok=True, payload="{}").model_dump(mode="json")
    approval = item.id.rpartition(".")[0]
    await put_detail(stack.store.conn, stack.keys, approval, result=body)
    for state in (ItemState.EXECUTED, ItemState.FAILED):
        await stack.store.conn.command(
            "HSET", stack.keys.head(item.id.rpartition(".")[0]), "0:s", state.value
        )
        answers = await answered(stack, question, thread="t1")
        assert answers.ready[question.id]["type"] == "rerun"
    # These records were written by hand, so no script gave them the lifetime of ended
    # records.
    await lose_records(stack.store.conn)


@pytest.fixture
async def waiting(stack: Stack) -> AsyncGenerator[Runner]:
    """Give a runner whose thread t1 asks about a refund."""
    with connected(AgentService(stack.store, lambda: RULES)):
        call = '[["refund", {"order": "1", "amount": 2}]]'
        await stack.runner.start("t1", call, key="k")
        yield stack.runner


async def test_a_question_that_is_not_open_is_refused_as_stale(waiting: Runner) -> None:
    with pytest.raises(AnswerRefused, match="asks something else") as caught:
        await waiting.resume("t1", {"f" * 32: {"type": "approve"}}, key="k")

    assert caught.value.is_stale
    assert len((await waiting.probe("t1")).pending) == 1


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"type": "approve"},
        {"type": "approve", "item_id": "other", "action_hash": "other"},
        {"decisions": [{"type": "approve"}]},
    ],
)
async def test_an_answer_that_does_not_fit_runs_nothing_and_the_question_stays(
    stack: Stack, waiting: Runner, answer: JsonObject
) -> None:
    [question] = (await waiting.probe("t1")).pending
    await waiting.resume("t1", {question.id: answer}, key="k")
    assert sample_tools.ledger() == []

    [item] = await stack.items()
    await stack.decide(item)
    [item] = await stack.items()
    good = answer_for(item)
    assert good
    [question] = (await waiting.probe("t1")).pending
    await waiting.resume("t1", {question.id: good.model_dump(mode="json")}, key="k")

    assert (await waiting.probe("t1")).final_message == "refunded 1 2"


async def test_an_error_of_the_graph_is_not_taken_for_a_refused_answer(
    stack: Stack, waiting: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(_results: list[str]) -> str:
        raise RuntimeError("the model is down")

    monkeypatch.setattr(sample_tools, "after_tools", down)
    [item] = await stack.items()
    await stack.decide(item)
    [item] = await stack.items()
    good = answer_for(item)
    assert good
    [question] = (await waiting.probe("t1")).pending

    with pytest.raises(RuntimeError, match="model is down"):
        await waiting.resume("t1", {question.id: good.model_dump(mode="json")}, key="k")

    state = await waiting.probe("t1")
    assert (state.is_cut_off, state.taken) == (True, "k")


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([HumanMessage("hi"), AIMessage("hello")], "hello"),
        ([AIMessage("old"), HumanMessage("hi"), AIMessage("")], ""),
        (
            [
                HumanMessage("hi"),
                AIMessage("let me see"),
                ToolMessage("42", tool_call_id="c"),
                AIMessage([{"type": "text", "text": "it is 42"}]),
            ],
            "it is 42",
        ),
        (
            [
                HumanMessage("hi"),
                AIMessage("", tool_calls=[{"name": "t", "args": {}, "id": "c"}]),
                ToolMessage("returned directly", tool_call_id="c"),
            ],
            "returned directly",
        ),
        ([], ""),
    ],
)
async def test_the_last_words_are_of_this_turn(messages: list[Any], words: str) -> None:
    builder: StateGraph[MessagesState] = StateGraph(MessagesState)
    builder.add_node("say", _nothing)  # pyright: ignore[reportUnknownMemberType] - its overloads are partial
    builder.set_entry_point("say")
    compiled: Any = builder.compile()  # pyright: ignore[reportUnknownMemberType] - as above
    runner = Runner(attached(compiled, InMemorySaver()))

    await runner.give("t", {"messages": messages}, key="k")

    state = await runner.probe("t")
    assert (state.is_finished, state.final_message) == (True, words)


def _nothing(state: MessagesState) -> dict[str, object]:
    return {}


# An agent asks people, and continues with their answers.


REQUESTER = Reviewer(
    team=DAN.team, user=DAN.user, name=DAN.name, account=AccountKind.MEMBER
)
NAME = {"question": "What is its name?"}


def asking(*questions: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a call that asks these questions."""
    return "ask_user", {"questions": [*questions]}


@pytest.fixture
async def shop(store: Store, tmp_path: Path) -> AsyncGenerator[Stack]:
    """Give the shop's agent with the tool that asks."""
    async with open_checkpoints(str(tmp_path / "checkpoints.db")) as saver:
        graph = attached(sample_tools.graph(ask_user), saver)
        yield Stack(store, Runner(graph, agent="shop"), saver)


async def results(stack: Stack) -> list[ToolMessage]:
    """Return the results of tools that the agent has read."""
    graph = cast("Any", stack.runner)._graph
    state = await graph.aget_state({"configurable": {"thread_id": "t1"}})
    return [m for m in state.values["messages"] if isinstance(m, ToolMessage)]


async def test_the_requesters_answers_are_the_result_of_the_call(shop: Stack) -> None:
    async with shop.working():
        await shop.ask(asking(REGION, EXTRAS, NAME))
        [item] = await shop.asked()

        answers = ("EU", "logs, alerts", "a line\nQ: Really?\nA: yes")
        said = Respond(answers=answers)
        assert isinstance(await shop.decide(item, said, by=REQUESTER), Decided)

        words = await shop.words()
    assert words == (
        "Q: Which region?\nA: EU\n\nQ: What else?\nA: logs, alerts\n\n"
        "Q: What is its name?\nA: a line\n   Q: Really?\n   A: yes"
    )
    [result] = await results(shop)
    data = result.additional_kwargs[ANSWER_KEY]
    assert (data["status"], tuple(data["answers"])) == ("answered", answers)
    assert data["by"]["user"] == DAN.user
    assert result.status == "success"
    assert await shop.states() == [ItemState.ANSWERED]


@pytest.mark.parametrize("by", [REQUESTER, ANA])
async def test_a_skipped_question_holds_nothing_up(shop: Stack, by: Reviewer) -> None:
    async with shop.working():
        await shop.ask(asking(NAME))
        [item] = await shop.asked()

        await shop.decide(item, Reject(reason="ask sales"), by=by)

        words = await shop.words()
    assert "chose not to answer" in words
    assert "ask sales" in words
    [result] = await results(shop)
    assert result.additional_kwargs[ANSWER_KEY]["status"] == "cancelled"


@pytest.mark.parametrize(
    "questions",
    [
        [],
        [{"question": " "}],
        [{"question": "?", "type": "text", "choices": ["a", "b"]}],
        [{"question": "?", "type": "multiple_choice", "choices": ["a"]}],
        [{"question": "?", "type": "multiple_choice", "choices": ["a", "A"]}],
        [{"question": "?", "type": "multiple_choice", "choices": ["a", "other"]}],
        [{"question": "?", "type": "multi_select", "choices": ["a", "b, c"]}],
        [{"question": "?", "type": "guess"}],
        [{"question": "?" * 501}],
        [{"question": "?"}] * 11,
    ],
)
async def test_malformed_questions_go_back_to_the_model(
    shop: Stack, questions: list[dict[str, Any]]
) -> None:
    async with shop.working():
        await shop.ask(asking(*questions))

        words = await shop.words()

    assert "no question was asked" in words
    assert await shop.items() == []


async def test_nobody_can_let_a_question_run(shop: Stack) -> None:
    async with shop.working():
        await shop.ask(asking(NAME))
        [item] = await shop.asked()

        for by in (ANA, REQUESTER):
            assert isinstance(await shop.decide(item, Approve(), by=by), Invalid)

        assert await shop.states() == [ItemState.PENDING]


POLICY = """
version: 1
defaults: {tier: approve, expires_in: 1h, channel: C0A, needs: support}
roles: {support: {users: [U0ANA]}}
tools: {task: {tier: auto}}
"""


@pytest.fixture
async def deep(store: Store, tmp_path: Path) -> AsyncGenerator[Stack]:
    """Give a deep agent that asks, with a subagent that has the same tools."""
    graph = cast("Any", create_deep_agent)(
        model=sample_tools.obedient(),
        tools=[ask_user],
        subagents=gated_subagents([], agent="shop"),
        middleware=[ApprovalMiddleware("shop")],
    )
    async with open_checkpoints(str(tmp_path / "checkpoints.db")) as saver:
        runner = Runner(attached(graph, saver), agent="shop")
        stack = Stack(store, runner, saver)
        stack.policy = load_policy(POLICY, "policy.yml")
        yield stack


def delegating(*calls: tuple[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """Return a call with which a subagent makes these calls."""
    told = {"description": json.dumps(calls), "subagent_type": "general-purpose"}
    return "task", told


async def test_a_subagent_is_told_that_it_cannot_ask(deep: Stack) -> None:
    async with deep.working():
        await deep.ask(delegating(asking(NAME)))

        words = await deep.words()

    assert "Only the agent that people speak to" in words, words
    assert await deep.items() == []

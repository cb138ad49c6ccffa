"""Each format is read exactly, answered in the same format, and never guessed."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, cast

import pytest
from langgraph.types import Command, Interrupt
from pydantic import JsonValue

from keyturn.gateway.dialects.asked import Asked, Ended, NoWord, Question
from keyturn.gateway.dialects.dialects import answer, read, turn_of
from keyturn.gateway.protocol.digest import same
from keyturn.gateway.protocol.records import Tier, Verb
from keyturn.gateway.protocol.wire import (
    APPROVAL_INTERRUPT,
    Answer,
    AnswerKind,
    ProposedCall,
    Verdict,
    VerdictKind,
)
from tests.dialects import sample_agents
from tests.dialects.sample_agents import KINDS, Agent, Call, Effect
from tests.levels import size

STANDARD = "Tool execution requires approval\n\nTool: pay\nArgs: {'order': '7'}"


def asked(value: object, schema: Any = None) -> Asked:
    """Return what a value asks."""
    found = read(Question("q", value, schema))
    assert found is not None
    return found


def said(value: object, *ends: Ended, schema: Any = None) -> JsonValue:
    """Return the answer to a value."""
    return answer(Question("q", value, schema), ends)


def end(kind: str, **given: Any) -> Answer:
    """Return an end of a call."""
    return Answer(type=AnswerKind(kind), item_id="i", action_hash="h", **given)


def denied(reason: str) -> Verdict:
    """Return the policy's refusal."""
    return Verdict(
        kind=VerdictKind.DENY, tool="pay", tool_call_id="q:0", tier=Tier.DENY,
        args_hash="h", reason=reason,
    )  # fmt: skip


def batch(*kinds: str, args: Any = None, description: str = STANDARD) -> dict[str, Any]:
    """Return a batched question about one call."""
    request = {
        "name": "pay",
        "args": {"order": "7"} if args is None else args,
        "description": description,
    }
    review = {"action_name": "pay", "allowed_decisions": [*kinds]}
    return {"action_requests": [request], "review_configs": [review]}


def per_call(**branches: Any) -> dict[str, Any]:
    """Return a response schema with these decisions."""
    return {
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in branches],
        "$defs": {
            name: {"properties": {"type": {"const": name}, **more}}
            for name, more in branches.items()
        },
    }


def javascript(value: dict[str, Any]) -> dict[str, Any]:
    """Return a batched question in the spelling of JavaScript."""
    names = {
        "action_requests": "actionRequests", "review_configs": "reviewConfigs",
        "action_name": "actionName", "allowed_decisions": "allowedDecisions",
    }  # fmt: skip
    text = json.dumps(value)
    for old, new in names.items():
        text = text.replace(old, new)
    return cast("dict[str, Any]", json.loads(text))


def inbox(**allows: bool) -> dict[str, Any]:
    """Return a request of Agent Inbox."""
    config = {f"allow_{name}": is_so for name, is_so in allows.items()}
    action = {"action": "pay", "args": {"order": "7"}}
    return {"action_request": action, "config": config, "description": None}


WHOLE = batch("approve", "reject")
CALL: dict[str, Any] = {
    "type": "tool_approval", "tool_call_id": "c", "name": "pay", "args": {},
}  # fmt: skip


RESEMBLING: list[Any] = [
    WHOLE | javascript(WHOLE),
    {"action_requests": WHOLE["action_requests"]},
    {"action_requests": WHOLE["action_requests"], "review_configs": []},
    {**WHOLE, "review_configs": javascript(WHOLE)["reviewConfigs"]},
    {**WHOLE, "review_configs": [{"action_name": "other"}]},
    {**WHOLE, "action_requests": [{"name": 7, "args": {}}]},
    {**WHOLE, "action_requests": [{"name": "pay", "args": "all"}]},
    {**WHOLE, "action_requests": [{"name": "pay", "arguments": {}}]},
    {**WHOLE, "action_requests": [{"name": "pay", "args": {}, "arguments": {}}]},
    {**WHOLE, "action_requests": [{"name": "\ud800", "args": {}}]},
    {**WHOLE, "action_requests": WHOLE["action_requests"] * 1001},
    {**WHOLE, "action_requests": []},
    batch("defer"),
    {**WHOLE, "review_configs": [*WHOLE["review_configs"],
                                 *batch("edit")["review_configs"]]},
    WHOLE | inbox(accept=True),
    [WHOLE],
    CALL,
    inbox(),
    {"action_request": {"action": "pay", "args": {}}},
    [inbox(accept=True), {"note": "look"}],
    {"type": "ask_user"},
    {"type": "ask_user", "questions": [{"question": "?", "type": "riddle"}]},
    {"type": APPROVAL_INTERRUPT, "item_id": "i"},
    float("nan"),
    object(),
]  # fmt: skip
"""Values that only resemble a format."""


@pytest.mark.parametrize("value", RESEMBLING)
def test_a_value_that_only_resembles_a_format_is_unknown(value: object) -> None:
    assert read(Question("q", value)) is None
    with pytest.raises(NoWord):
        said(value, end("approve"))


def test_a_batch_is_answered_in_the_spelling_of_its_question() -> None:
    edit = end("edit", args={"order": "8"})
    value = batch("approve", "edit", "reject", "respond")

    assert said(value, edit) == {
        "decisions": [
            {"type": "edit", "edited_action": {"name": "pay", "args": {"order": "8"}}}
        ]
    }
    assert said(javascript(value), edit) == {
        "decisions": [
            {"type": "edit", "editedAction": {"name": "pay", "args": {"order": "8"}}}
        ]
    }
    assert asked(value).tells_edits
    assert not asked(javascript(value)).tells_edits


def test_only_decisions_that_the_format_takes_are_offered() -> None:
    def offered(value: object, schema: Any = None) -> list[str]:
        [call] = asked(value, schema).calls
        assert call.hint is not None
        assert call.hint.allow is not None
        return [verb.value for verb in call.hint.allow]

    assert offered(batch("approve", "reject")) == ["approve", "reject"]
    assert offered(batch("edit")) == ["approve", "edit"]
    assert offered(batch("respond")) == ["reject", "respond"]
    assert offered(inbox(accept=True, ignore=False)) == ["approve"]
    assert offered(CALL, per_call(approve={}, respond={})) == [
        "approve", "reject", "respond",
    ]  # fmt: skip


def test_a_call_that_its_format_cannot_approve_always_waits_for_people() -> None:
    [answered], [approvable] = asked(batch("respond")).calls, asked(WHOLE).calls
    assert (answered.hint and answered.hint.hold) is True
    assert (approvable.hint and approvable.hint.hold) is None


def test_an_approval_may_be_an_edit_without_changes() -> None:
    [found] = cast("Any", said(batch("edit"), end("approve")))["decisions"]
    assert found["edited_action"] == {"name": "pay", "args": {"order": "7"}}
    assert said(inbox(edit=True), end("approve")) == [
        {"type": "edit", "args": {"action": "pay", "args": {"order": "7"}}}
    ]


def test_an_edit_that_changes_nothing_is_an_approval() -> None:
    value = batch("approve", "edit", args={"b": 7.0, "a": 1})
    same = end("edit", args={"a": 1, "b": 7})
    assert said(value, same) == {"decisions": [{"type": "approve"}]}


def test_unchanged_values_of_an_edit_keep_their_type_and_their_place() -> None:
    value = batch("edit", args={"to": "ada", "amount": 7.0, "why": "?"})
    canonical = end("edit", args={"amount": 7, "to": "ada", "why": "lunch"})
    [found] = cast("Any", said(value, canonical))["decisions"]

    given = found["edited_action"]["args"]
    assert json.dumps(given) == '{"to": "ada", "amount": 7.0, "why": "lunch"}'


@pytest.mark.parametrize(
    "ended",
    [
        end("expired", message="Nobody decided in time, so the call did not run."),
        end("lapsed", message="Not used in time."),
        end("withdrawn", message="Taken back."),
        denied("The policy forbids it."),
    ],
)
def test_an_end_without_approval_is_a_rejection(ended: Ended) -> None:
    reason = ended.reason if isinstance(ended, Verdict) else ended.message
    rejected = {"type": "reject", "message": reason}
    assert said(WHOLE, ended) == {"decisions": [rejected]}
    assert said(CALL, ended, schema=per_call(reject={})) == rejected

    [response] = cast("Any", said(batch("respond"), ended))["decisions"]
    assert response["message"] == f"This call was refused and did not run. {reason}"

    with pytest.raises(NoWord):
        said(batch("approve"), ended)


def test_agent_inbox_gets_a_list_also_for_one_request() -> None:
    everything = inbox(accept=True, edit=True, ignore=True, respond=True)
    action = {"action": "pay", "args": {"order": "7"}}

    assert said(everything, end("approve")) == [{"type": "accept", "args": action}]
    assert said([everything], end("reject", message="No.")) == [
        {"type": "ignore", "args": None}
    ]
    assert said(everything, end("respond", message="Ask Ada.")) == [
        {"type": "response", "args": "Ask Ada."}
    ]
    assert not asked(everything).keeps_reason
    assert asked(inbox(accept=True, respond=True)).keeps_reason


def test_a_rejection_without_a_reason_leaves_the_words_to_langchain() -> None:
    assert said(WHOLE, end("reject")) == {"decisions": [{"type": "reject"}]}


def test_langchains_own_description_is_dropped_and_any_other_is_kept() -> None:
    def shown(value: object) -> str:
        [call] = asked(value).calls
        assert call.hint is not None
        return call.hint.description

    assert shown(WHOLE) == ""
    assert shown(batch("approve", description="Look at <!here> *this*")) == (
        "Look at <!here> *this*"
    )
    own = STANDARD.replace("Tool execution requires approval", "Money leaves")
    assert shown(batch("approve", description=own)) == "Money leaves"


def test_a_question_about_one_call_brings_the_schema_of_its_arguments() -> None:
    args = {"$ref": "#/$defs/pay"}
    edited = {"edited_action": {"properties": {"args": args}}}
    schema = per_call(approve={}, edit=edited)
    schema["$defs"]["pay"] = {"type": "object", "properties": {"n": {"type": "number"}}}

    found = asked(CALL, schema).schemas["pay"]
    assert found["properties"] == {"n": {"type": "number"}}
    assert "pay" in cast("Any", found["$defs"])


def test_a_call_with_arguments_that_cannot_be_shown_is_refused_alone() -> None:
    value = batch("approve", "reject")
    value["action_requests"].append({"name": "pay", "args": {"n": float("nan")}})
    first, second = asked(value).calls

    assert first.problem == ""
    assert second.problem.startswith("This call did not run: ")
    assert second.args == {}


def test_there_is_one_end_for_each_call() -> None:
    with pytest.raises(ValueError, match="1 calls need as many ends: 2"):
        said(WHOLE, end("approve"), end("approve"))


def test_ask_user_of_deepagents_is_answered_in_order_or_with_the_reason() -> None:
    value = {
        "type": "ask_user",
        "tool_call_id": "c",
        "questions": [
            {"question": "Where?", "type": "text"},
            {
                "question": "Which?",
                "type": "multi_select",
                "choices": [{"value": "a"}, {"value": "b"}],
                "required": False,
            },
        ],
    }
    [call] = asked(value).calls

    assert call.is_question
    assert said(value, end("respond", answers=("Bonn", "a, b"))) == {
        "status": "answered",
        "answers": ["Bonn", "a, b"],
    }
    assert said(value, end("expired", message="Nobody answered in time.")) == {
        "status": "error",
        "error": "Nobody answered in time.",
    }
    assert said(value, end("withdrawn")) == {"status": "cancelled"}


@pytest.mark.parametrize(
    ("value", "schema", "words", "given"),
    [
        ("Which account?", None, "7", "7"),
        ("Which account?", None, " no ", " no "),
        ("How many?", {"type": "integer"}, "12", 12),
        ("Go on?", {"type": "boolean"}, "No", False),
        ("Which?", {"enum": ["a", "b"]}, "b", "b"),
        ({"question": "How many?", "options": [1, 2]}, None, "2", 2),
        ({"draft": "Dear Ada"}, None, "shorter", "shorter"),
        (["a", "b"], None, "a", "a"),
    ],
)
def test_a_plain_question_gets_exactly_what_a_person_answered(
    value: object, schema: Any, words: str, given: object
) -> None:
    assert said(value, end("respond", answers=(words,)), schema=schema) == given
    for nobody in ("expired", "superseded", "withdrawn", "lapsed"):
        with pytest.raises(NoWord):
            said(value, end(nobody, message="Nobody."), schema=schema)


@pytest.mark.parametrize(
    ("kind", "words"), [("integer", "many"), ("number", "true"), ("boolean", "perhaps")]
)
def test_words_of_another_type_are_not_sent(kind: str, words: str) -> None:
    with pytest.raises(NoWord, match="takes"):
        said("How?", end("respond", answers=(words,)), schema={"type": kind})


@pytest.mark.parametrize("kind", ["object", ["string", "null"], {}, None, 7])
def test_a_question_for_an_answer_of_another_type_is_unknown(kind: Any) -> None:
    assert read(Question("q", "How?", {"type": kind})) is None


def test_a_plain_question_is_shown_word_for_word() -> None:
    def shown(value: object) -> tuple[Any, str]:
        found = asked(value)
        [question] = cast("Any", found.calls[0].args["questions"])
        return question["question"], found.says

    assert shown("Which <!channel>?") == ("Which <!channel>?", "")
    title, says = shown({"draft": "Dear Ada"})
    assert title == "The agent waits for an answer to the text above."
    assert json.loads(says) == {"draft": "Dear Ada"}
    assert shown("x" * 501) == (title, "x" * 501)


def test_a_turn_is_a_lane_of_its_question_and_is_named_by_its_value_too() -> None:
    def ref(value: object) -> Any:
        question = Question("q1", value)
        found = asked(value)
        turn = turn_of(question, found, agent="crm", thread="t", handed_to="agent crm")
        assert [call.tool_call_id for call in turn.calls] == ["q:0"]
        return turn.ref

    one, other = ref("Which?"), ref("Which now?")
    assert (one.agent, one.thread, one.ns) == ("crm", "t", "q1")
    assert one.message_id.startswith("q1.")
    assert one.message_id != other.message_id
    assert one == ref("Which?")


@pytest.mark.parametrize(
    ("value", "untold"),
    [
        (WHOLE, ["edit_reason"]),
        (javascript(WHOLE), ["edit_reason", "edit"]),
        (inbox(accept=True, ignore=True), ["edit_reason", "edit", "rejection_reason"]),
        ("Which?", None),
    ],
)
def test_a_turn_says_what_is_untold(value: object, untold: list[str] | None) -> None:
    question = Question("q", value)
    turn = turn_of(question, asked(value), agent="crm", thread="t", handed_to="crm")
    [call] = turn.calls
    found = call.hint and [one.value for one in call.hint.untold]
    assert found == untold


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("agent crm", "agent crm"),
        ("agent kündigung <!here>", "agent k-ndigung -here"),
        ("*", "the agent"),
        ("x" * 100, "x" * 80),
    ],
)
def test_a_program_is_named_without_markup(given: str, shown: str) -> None:
    question = Question("q", WHOLE)
    turn = turn_of(question, asked(WHOLE), agent="crm", thread="t", handed_to=given)
    assert turn.handed_to == shown


# Threads of real agents are answered: none is stuck, and only decided calls run.


# Each thread proposes random calls to an agent of another library. Its open questions
# are answered through the dialects, in random order and groups.


RULES = {
    "pay": KINDS,
    "mail": ("approve", "reject"),
    "wipe": ("approve", "edit"),
    "change": ("edit",),
    "ask": ("respond",),
    "stop": ("reject",),
}
FREE = "look"
"""A tool that no middleware asks about."""
JAVASCRIPT = {name: kinds for name, kinds in RULES.items() if "respond" not in kinds}
AGENTS: dict[str, Callable[[], Agent]] = {
    "batched": lambda: sample_agents.langchain(RULES),
    "per_call": lambda: sample_agents.langchain(RULES, mode="per_call"),
    "deepagents": lambda: sample_agents.deep_agent(RULES),
    "inbox": lambda: sample_agents.inbox(RULES, as_list=True),
    "inbox of one": lambda: sample_agents.inbox(RULES, as_list=False),
    "JavaScript": lambda: sample_agents.javascript(JAVASCRIPT),
}
THREADS = dict.fromkeys(AGENTS, 2000) | {"deepagents": 500}


@cache
def made(name: str) -> Agent:
    """Make an agent once."""
    return AGENTS[name]()


@pytest.mark.slow
@pytest.mark.parametrize("name", AGENTS)
def test_every_thread_ends_and_runs_exactly_what_was_decided(name: str) -> None:
    count = size(deep=THREADS[name], short=THREADS[name] // 40)
    for seed in range(count):
        play(name, random.Random(f"{name} {seed}"))  # noqa: S311 - tests


def play(name: str, chance: random.Random) -> None:
    """Play one thread; a failure names its seed by the arguments of its calls."""
    agent = made(name)
    agent.effects.clear()
    calls = proposed_by(name, chance)
    config: Any = {"configurable": {"thread_id": str(chance.random())}}
    agent.graph.invoke(given(name, calls, agent), config)

    expected = [(one["name"], one["args"]) for one in calls if one["name"] == FREE]
    unsaid: set[str] = set()
    for _ in range(50):
        pending = [one for one in open_of(agent, config) if one.id not in unsaid]
        if not pending:
            break
        chosen = chance.sample(pending, chance.randint(1, len(pending)))
        answers: dict[str, Any] = {}
        for one in chosen:
            question = Question(one.id, one.value, cast("Any", one.response_schema))
            asked = read(question)
            assert asked is not None, one.value
            ends = [end_of(call, chance) for call in asked.calls]
            try:
                answers[one.id] = answer(question, ends)
            except NoWord:
                assert is_unsayable(asked, ends)
                unsaid.add(one.id)
            else:
                expected += effects_of(asked, ends)
        if answers:
            agent.graph.invoke(Command(resume=answers), config)

    assert {one.id for one in open_of(agent, config)} == unsaid
    if not unsaid:
        assert not agent.graph.get_state(config).next, "the thread is stuck"
    assert effects(agent.effects, unsaid) == effects(expected, unsaid)


def effects(found: Sequence[Effect], unsaid: set[str]) -> list[str]:
    """Return effects in a fixed order; a batch without an answer runs nothing else."""
    return sorted(
        json.dumps(one, sort_keys=True) for one in found if one[0] != FREE or not unsaid
    )


def proposed_by(name: str, chance: random.Random) -> list[Call]:
    """Return the calls of a thread's message."""
    rules = JAVASCRIPT if name == "JavaScript" else RULES
    most = 1 if name == "inbox of one" else 5
    tools = [*rules, FREE] if name in {"batched", "per_call"} else [*rules]
    names = [chance.choice(tools) for _ in range(chance.randint(1, most))]
    return [{"name": one, "args": args(chance)} for one in names]


def args(chance: random.Random) -> dict[str, Any]:
    """Return arguments in any order, with whole and other numbers."""
    found = {
        "order": chance.choice(["7", "ü <!channel>", "", "x" * 50]),
        "amount": chance.choice([7.0, 0.5, 1e15, -0.0]),
    }
    return dict(chance.sample([*found.items()], 2))


def given(name: str, calls: Sequence[Call], agent: Agent) -> dict[str, Any]:
    """Return the input of a thread; that of deepagents has subagents do the calls."""
    if name != "deepagents":
        return agent.given(calls)
    halves = [calls[::2], calls[1::2]]
    tasks = [
        {
            "name": "task",
            "args": {"description": json.dumps(half), "subagent_type": kind},
        }
        for half, kind in zip(halves, ("billing", "mailing"), strict=True)
        if half
    ]
    return agent.given(tasks)


def open_of(agent: Agent, config: Any) -> tuple[Interrupt, ...]:
    """Return the open questions of a thread."""
    found: tuple[Interrupt, ...] = agent.graph.get_state(config).interrupts
    return found


def end_of(call: ProposedCall, chance: random.Random) -> Ended:
    """Return any end of a call that the gateway could give it."""
    hint = call.hint
    assert hint is not None
    assert hint.allow
    ends: list[AnswerKind | VerdictKind] = [
        *(AnswerKind(verb.value) for verb in hint.allow),
        AnswerKind.EXPIRED,
        AnswerKind.WITHDRAWN,
        VerdictKind.DENY,
    ]
    if hint.hold is None:
        ends.append(VerdictKind.RUN)
    kind = chance.choice(ends)
    if isinstance(kind, VerdictKind):
        return verdict(call, kind)
    edited = chance.choice([args(chance), {**call.args, "amount": 9.0}, call.args])
    return Answer(
        type=kind,
        item_id="i",
        action_hash="h",
        args=edited if kind is AnswerKind.EDIT else None,
        message=chance.choice(["", "Too <!here> much.", '"quoted"']),
    )


def verdict(call: ProposedCall, kind: VerdictKind) -> Verdict:
    """Return a verdict on a call without people."""
    return Verdict(
        kind=kind,
        tool=call.tool,
        tool_call_id=call.tool_call_id,
        tier=Tier.AUTO,
        args_hash="h",
        reason="The policy forbids it.",
    )


def effects_of(asked: Asked, ends: Sequence[Ended]) -> Iterator[Effect]:
    """Return the arguments that the decisions allow to run."""
    for call, end in zip(asked.calls, ends, strict=True):
        if isinstance(end, Verdict):
            if end.kind is VerdictKind.RUN:
                yield call.tool, full(call.args)
        elif end.type is AnswerKind.EDIT:
            assert end.args is not None
            is_same = same(end.args, call.args)
            yield call.tool, full(call.args if is_same else end.args)
        elif end.type is AnswerKind.APPROVE:
            yield call.tool, full(call.args)


def full(found: dict[str, Any]) -> dict[str, Any]:
    """Return arguments in the order of the tools' records."""
    return {"order": found["order"], "amount": found["amount"]}


def is_unsayable(asked: Asked, ends: Sequence[Ended]) -> bool:
    """Return True if a call was refused whose format can only approve."""
    return any(
        call.hint is not None
        and call.hint.allow is not None
        and Verb.REJECT not in call.hint.allow
        and not (isinstance(end, Answer) and end.type in _RUNS)
        and not (isinstance(end, Verdict) and end.kind is VerdictKind.RUN)
        for call, end in zip(asked.calls, ends, strict=True)
    )


_RUNS = {AnswerKind.APPROVE, AnswerKind.EDIT}


def test_the_decisions_of_a_batch_are_in_the_order_of_its_requests() -> None:
    agent = made("batched")
    for place, order in enumerate(itertools.permutations(["pay", "mail", "wipe"])):
        agent.effects.clear()
        config: Any = {"configurable": {"thread_id": f"order {place}"}}
        calls = [{"name": one, "args": {"order": one, "amount": 2.0}} for one in order]
        agent.graph.invoke(agent.given(calls), config)
        [one] = open_of(agent, config)
        question = Question(one.id, one.value)
        asked = read(question)
        assert asked is not None
        run = {
            "mail": VerdictKind.RUN,
            "pay": VerdictKind.DENY,
            "wipe": VerdictKind.RUN,
        }
        ends = [verdict(call, run[call.tool]) for call in asked.calls]
        agent.graph.invoke(Command(resume={one.id: answer(question, ends)}), config)

        ran = [name for name, _ in agent.effects]
        assert sorted(ran) == ["mail", "wipe"]

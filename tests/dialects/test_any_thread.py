"""Threads of real agents are answered: none is stuck, and only decided calls run.

Each thread proposes random calls to an agent of another library. Its open questions are
answered through the dialects, in random order and groups.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, cast

import pytest
from langgraph.types import Command, Interrupt

from keyturn.gateway.dialects.asked import Asked, Ended, NoWord, Question
from keyturn.gateway.dialects.dialects import answer, read
from keyturn.gateway.protocol.digest import same
from keyturn.gateway.protocol.records import Tier, Verb
from keyturn.gateway.protocol.wire import (
    Answer,
    AnswerKind,
    ProposedCall,
    Verdict,
    VerdictKind,
)
from tests.dialects import sample_agents
from tests.dialects.sample_agents import KINDS, Agent, Call, Effect
from tests.levels import size

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

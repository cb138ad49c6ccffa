"""The world of the figures: a durable store, one policy, calls that wait, and turns."""

from __future__ import annotations

import json
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import SECRETS
from bench.stats import Measured, NotMeasured
from keyturn.gateway.approvals.decisions import (
    AccountKind,
    Approve,
    Decided,
    Gesture,
    Reviewer,
)
from keyturn.gateway.approvals.record import Approval, approval_of
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Person, RunRef
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.store.runs.threads import ThreadFacts
from keyturn.gateway.store.store import Store, open_store
from keyturn.sandbox.json_types import JsonObject
from tests.approvals.builders import click_on

TENANT, AGENT, CHANNEL = "default", "support", "C0APPROVALS"
RULES = """
version: 1
defaults: {tier: approve, expires_in: 1h, channel: C0APPROVALS, needs: [U0ANA]}
protect: {pending_per_agent: 10000, requests_per_10m: 100000, flood_per_10m: 100000}
tools:
  refund: {tier: approve}
  process_refund: {tier: approve}
"""
POLICY = load_policy(RULES, "bench.yml")
DAN = Person(team="T0SANDBOX", user="U0DAN", name="Dan")
ANA = Reviewer(team="T0", user="U0ANA", name="Ana", account=AccountKind.MEMBER)

ARGS_BYTES = 674
"""JSON of the arguments: an order, a person, a few numbers, and a reason in random
words, which compresses no better than prose.
"""
_WORDS = (
    "the envelope was lost on its way carrier confirmed customer asked twice for "
    "refund parcel damaged by rain shop agreed to pay back full price including "
    "shipping express order number delivered late neighbour signed"
)
_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "order_id": {"type": "string", "description": "The order."},
        "customer": {"type": "string"},
        "amount": {"type": "number"},
        "reason": {"type": "string"},
        "items": {"type": "array", "items": {"type": "string"}},
        "notify": {"type": "boolean"},
    },
    "required": ["order_id", "amount"],
}
_REQUEST = "sha256:" + "a" * 64
"""Digest of Slack's request, which every click has."""


@asynccontextmanager
async def durable_store() -> AsyncGenerator[tuple[Store, Path]]:
    """Open a store on a new durable server; yield it and its temporary folder."""
    with TemporaryDirectory(prefix="tk-bench-") as named:
        folder = Path(named)
        async with open_store(None, folder, secrets=SECRETS) as store:
            yield store, folder


async def in_turns(
    ways: Mapping[str, Callable[[str], Awaitable[float]]],
    rounds: int,
    samples: int = 1,
    *,
    unit: str = "ms",
    warms_up: bool = True,
) -> list[Measured]:
    """Measure subjects alternately.

    Args:
        ways: by the name of the subject. Each gets a name that is new in every call,
            for a thread or an order, and returns one sample.
        rounds: the number of rounds.
        samples: the samples of each subject in a round.
        unit: the unit of a sample.
        warms_up: take one more sample of each subject first, and drop it.
    """
    names, rows = [*ways], dict[str, list[tuple[float, ...]]]()
    if warms_up:
        for name, way in ways.items():
            await way(f"{name} warms up")
    for turn in range(rounds):
        taken: dict[str, list[float]] = {name: [] for name in names}
        for number in range(samples):
            # The first subject would always pay for cold caches.
            first = (turn + number) % len(names)
            for name in (*names[first:], *names[:first]):
                taken[name].append(await ways[name](f"{name} {turn}.{number}"))
        for name, row in taken.items():
            rows.setdefault(name, []).append(tuple(row))
    return [Measured(name, unit, tuple(rows[name])) for name in names]


def agents_of(store: Store) -> AgentService:
    """Return the service to which agents submit."""
    return AgentService(store, lambda: POLICY)


def arguments(number: int) -> JsonObject:
    """Return the arguments of one call, `ARGS_BYTES` of JSON.

    Each number has another order: calls with one effect are precedents of each other,
    and deciding one re-evaluates the others.
    """
    chance = random.Random(number)  # noqa: S311 - the same words in every run
    args: JsonObject = {
        "order_id": f"{78000 + number}",
        "customer": f"Maria{number} Lopez <maria{number}@example.com>",
        "amount": chance.randint(1, 100_000) / 100,
        "reason": "",
        "items": [f"SKU-{chance.randint(10_000, 99_999)}" for _ in range(4)],
        "notify": True,
    }
    missing = ARGS_BYTES - len(json.dumps(args, separators=(",", ":")))
    words = " ".join(chance.choice(_WORDS.split()) for _ in range(missing))
    return {**args, "reason": words[:missing]}


async def open_one(
    store: Store, number: int, *, thread: str = "", agent: str = AGENT
) -> str:
    """Open an approval in a separate thread, unless one is named; return its id."""
    keys, thread = store.keys_of_tenant(TENANT), thread or f"thread-{number}"
    facts = ThreadFacts(requester=DAN)
    await store.threads.change(keys, agent, thread, lambda _: facts, why="aside")
    call = ProposedCall(
        tool="process_refund", tool_call_id=f"call-{number}", args=arguments(number)
    )
    ref = TurnRef(agent=agent, thread=thread, message_id=f"message-{number}")
    turn = Turn(ref=ref, calls=(call,), schemas={"process_refund": _SCHEMA})
    [verdict] = await agents_of(store).submit(turn)
    if not verdict.item_id:
        raise NotMeasured(f"The call does not wait for people: {verdict.reason}")
    return approval_of(verdict.item_id)[0]


async def asked_in(store: Store, run: RunRef) -> list[str]:
    """Return the approvals of a run."""
    keys = store.keys_of_tenant(TENANT)
    return [one.id for one in await store.approvals.of_run(keys, run)]


async def shown(store: Store, approval: str) -> Approval:
    """Return an approval as its card shows it now."""
    loaded = await ReviewService(store, lambda: POLICY).read_as_of_now(approval)
    assert loaded is not None, approval
    return loaded.approval


async def approve(store: Store, approval: str) -> float:
    """Approve the one call of an approval like its button does; return the start."""
    click = click_on(await shown(store, approval)).with_(request_digest=_REQUEST)
    reviews = ReviewService(store, lambda: POLICY)
    pressed = ANA.with_(gesture=Gesture.BUTTON)
    began = time.perf_counter()
    outcome = await reviews.decide(click, Approve(), pressed)
    if not isinstance(outcome, Decided):
        raise NotMeasured(f"A call was not decided: {outcome!r}.")
    return began

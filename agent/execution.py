"""Execute a claimed call inside LangGraph: pauses, handoffs, grants, outages.

The life cycle of a claim is `keyturn.gateway.client.claiming`, which every adapter
shares.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Generic, TypeVar, cast

from langgraph.errors import GraphBubbleUp, ParentCommand, is_invalid_resume

from keyturn.agent import grants, interrupts
from keyturn.agent.grants import Grant, Recheck, contained, grant_scope
from keyturn.agent.turns import collect_edits
from keyturn.gateway.client import claiming
from keyturn.gateway.client.bridge import Shell
from keyturn.gateway.client.claiming import Effect, End, HeldCall, Ran, Unfinished
from keyturn.gateway.errors import (
    KeyRefused,
    StateUnknown,
    StoreUnavailable,
    ThreadUnavailable,
)
from keyturn.gateway.protocol import wire
from keyturn.gateway.protocol.digest import BusinessState
from keyturn.gateway.protocol.http_api import Gateway
from keyturn.gateway.protocol.records import EditRecord, Result
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import Answer, Claimed, ReconcileAnswer, Verdict

HANDED_OFF = Result(ok=True, summary="Handed off to the parent graph.")

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Work(Generic[R]):
    """How an executor runs a call, stores its result and reports a failure.

    ``run`` receives the authorized arguments. ``store`` converts the return value of
    ``run``, and the edits made inside it, into the stored result. ``failure`` receives
    an error text; advice to the model is added when the message is built.
    """

    run: Callable[[JsonObject], Awaitable[R]]
    store: Callable[[R, list[EditRecord]], Result]
    failure: Callable[[str], R]


async def execute(
    held: HeldCall, gateway: Gateway, shell: Shell, work: Work[R]
) -> End[R]:
    """Execute a call that people or the policy authorized, at most once.

    Raises:
        GraphBubbleUp: a call inside the tool pauses; the claim is released.
        KeyturnError: see `claiming.execute`.
    """
    inside: list[EditRecord] = []

    async def run(claimed: Claimed, args: JsonObject) -> R:
        grant = Grant(
            item_id=held.item_id,
            idempotency_key=claimed.idempotency_key,
            action_hash=claimed.action_hash,
            tool=held.verdict.tool,
            args_hash=wire.args_hash(args),
            receipt=claimed.receipt,
        )
        inside.clear()
        with collect_edits(held.ref.run_ref) as edits, grant_scope(grant), contained():
            try:
                return await work.run(args)
            finally:
                inside.extend(edits)

    effect = Effect(run, lambda it: work.store(it, inside), work.failure, _raised)
    end = await claiming.execute(held, gateway, shell, effect)
    return replace(end, inside=inside) if isinstance(end, Ran) else end


def _raised(error: BaseException) -> Result | Unfinished | None:
    if isinstance(error, ParentCommand):
        # Not a pause: the tool is done and hands off to the parent graph.
        return HANDED_OFF
    # An outage of a nested agent passes tool nodes like a pause. But this tool has
    # begun, and must not run again.
    is_pause = isinstance(error, GraphBubbleUp) and not isinstance(error, OUTAGES)
    # The tool pauses, or its own interrupt refused an answer: not a failure.
    return Unfinished.PAUSED if is_pause or is_invalid_resume(error) else None


@dataclass(frozen=True, slots=True)
class Interrupts:
    """Pauses the thread until the people who decide on a call have answered."""

    verdict: Verdict
    args: JsonObject

    async def decide_again(self) -> Answer:
        """Pause until reviewers have decided on the call again."""
        return interrupts.request_decision(self.verdict, self.args, is_again=True)

    async def reconcile(self) -> ReconcileAnswer:
        """Pause until a person has reconciled the call."""
        return interrupts.request_reconciliation(self.verdict)

    def has_ended(self) -> None:
        """Drop saved findings about the call."""
        interrupts.drop_findings(self.verdict)


def state_reader(
    shell: Shell, recheck: Recheck | None, tool: str
) -> Callable[[JsonObject], Awaitable[BusinessState]] | None:
    """Return the function of `HeldCall.state`; None for a tool without a recheck."""
    return recheck and partial(grants.read, shell, recheck, tool)


# Raise outages past other middleware, so that the thread waits and is tried again.
#
# LangChain's `ToolRetryMiddleware` turns any exception into a tool message after a few
# tries: an outage of a minute would lose an approved call. Neither middleware nor tool
# nodes catch `GraphBubbleUp`, which LangGraph raises to pause. An outage therefore gets
# that base class, too. LangGraph then lets the other calls of the step finish.

OUTAGES = (ThreadUnavailable, StoreUnavailable, StateUnknown, KeyRefused)
"""Errors that a thread waits out."""


@contextmanager
def passing() -> Generator[None]:
    """Give an outage in this block the base class that only LangGraph catches."""
    try:
        yield
    except OUTAGES as error:
        # The same object: outer callers inspect its text, facts and class.
        kind: Any = type(error)
        cast("Any", error).__class__ = _passing(kind)
        raise


@cache
def _passing(kind: type[Any]) -> type[Any]:
    if issubclass(kind, GraphBubbleUp):
        return kind

    def plain_class(_error: object) -> type[Any]:
        # Another process cannot import the generated class.
        return kind

    own: dict[str, Any] = {
        "__module__": kind.__module__,
        "__doc__": kind.__doc__,
        "plain_class": plain_class,
    }
    return type(kind.__name__, (kind, GraphBubbleUp), own)

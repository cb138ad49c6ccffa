"""Run threads for a program and wait for results; a run outlives the wait.

A wait can be bounded or cancelled at any time: only the wait ends then. The step runs
in a separate task, because a step that stops in the middle leaves its thread to be
repaired. It is cancelled only when the program ends, after a grace period.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, Protocol, cast

from langgraph.types import Interrupt

from keyturn.gateway.approvals.record import Origin
from keyturn.gateway.arguments import check_timeout
from keyturn.gateway.errors import GraphError, ThreadUnavailable
from keyturn.gateway.protocol.http_api import PendingCall, RunFacts
from keyturn.gateway.protocol.port import Gateway
from keyturn.gateway.protocol.records import NO_SLACK_ID, Person, RunRef
from keyturn.gateway.resume.advancer import Advancer, Threads
from keyturn.gateway.resume.langgraph_local import LangGraphLocal, pending_of
from keyturn.gateway.resume.questions import Answers, asked_items
from keyturn.gateway.resume.runner import PendingInterrupt, ThreadState
from keyturn.gateway.resume.strict_state import strict_serializer
from keyturn.gateway.resume.transient_retry import retry_transient
from keyturn.gateway.store.leases import while_held

BUSY_S = 1.0
"""Delay before the next attempt at a thread that another process runs."""
POLL_S = 25.0
"""Duration of one wait for an answer: shorter than the request limit of proxies."""
GRACE_S = 25.0
"""Time that running steps have when the program ends."""


class NoThread(ThreadUnavailable):
    """There is no such thread."""

    def __init__(self, run: RunRef, hint: str) -> None:
        super().__init__(f"There is no thread {run.thread!r} of {run.agent!r}{hint}.")


class Calls(Protocol):
    """Requesters of runs, and the calls that wait for reviewers."""

    async def remember(self, facts: RunFacts) -> None:
        """Save the requester of a run and the origin, where provided."""
        ...

    async def pending(self, run: RunRef) -> tuple[PendingCall, ...]:
        """Return the calls of a run that wait for reviewers, oldest first."""
        ...

    async def withdraw(
        self, run: RunRef, item_ids: Collection[str] | None = None
    ) -> tuple[str, ...]:
        """End waiting calls of a run; return the ids of the ended calls."""
        ...


class ProgramRuns:
    """Threads that a program runs itself.

    Args:
        gateway: the agents' gateway.
        threads: the gateway's records of the threads.
        calls: the waiting calls of the threads.
    """

    def __init__(self, gateway: Gateway, threads: Threads, calls: Calls) -> None:
        self._gateway = gateway
        self._threads = threads
        self._advancer = Advancer(threads)
        self.calls = calls

    @abstractmethod
    async def run(
        self, run: RunRef, runner: LangGraphLocal, given: object
    ) -> dict[str, Any]:
        """Give a thread its input, unless it has it, and wait for its end.

        The wait also ends at a question of another library.

        Raises:
            GraphError: the thread was given up.
            ThreadUnavailable: there is no thread and no input, or it was deleted.
        """

    @abstractmethod
    async def wait(self, run: RunRef, runner: LangGraphLocal) -> dict[str, Any]:
        """Wait for a thread's end, in any process; see `run`.

        Raises:
            GraphError: the thread was given up.
            ThreadUnavailable: there is no such thread.
        """

    @abstractmethod
    async def close(self, *, grace_s: float = GRACE_S) -> None:
        """Wait for running steps, then cancel the rest after ``grace_s``."""

    @abstractmethod
    async def _answers(
        self, run: RunRef, asked: Sequence[PendingInterrupt], wait_s: float
    ) -> Answers:
        """Return the answers to a thread's questions; wait for the first one."""

    async def remember(
        self, run: RunRef, requester: Person | None, origin: Origin | None
    ) -> None:
        """Save the requester and the origin of a run, where provided.

        Before the run: the requester must not decide its calls.
        """
        check_who_asked(requester, origin)
        if requester is not None or origin is not None:
            facts = RunFacts(
                run=run,
                requester=requester,
                channel=origin.channel if origin else "",
                thread_ts=origin.thread_ts if origin else "",
            )
            await retry_transient(lambda: self.calls.remember(facts))

    async def answers(
        self, run: RunRef, interrupts: Sequence[Interrupt], timeout_s: float | None
    ) -> dict[str, Any]:
        """Return the answers to a thread's questions; wait for the first one.

        Raises:
            GraphError: an answer does not fit its question.
            SettingsError: ``timeout_s`` is not a number of seconds.
        """
        check_timeout(timeout_s)
        asked = [pending_of(one) for one in interrupts]
        if not asked_items(asked):
            return {}
        clock = asyncio.get_running_loop().time
        ends = None if timeout_s is None else clock() + timeout_s
        while True:
            left_s = POLL_S if ends is None else max(0.0, ends - clock())
            found = await self._answers(run, asked, min(left_s, POLL_S))
            if found.unfit:
                raise GraphError(
                    f"The answer to {found.unfit[0]!r} does not fit the question that "
                    f"the thread {run.thread!r} asked; see the agent's log."
                )
            if found.ready or (ends is not None and clock() >= ends):
                return cast("dict[str, Any]", found.ready)

    async def delete(self, run: RunRef, runner: LangGraphLocal) -> None:
        """End the waiting calls of a thread, and delete its checkpoints.

        Raises:
            ThreadUnavailable: another process runs the thread; nothing was deleted.
        """

        async def work() -> None:
            # The cards first: a crash after the checkpoints were deleted would leave
            # cards that wait for a missing thread.
            await self._threads.ends(run)
            await runner.delete(run.thread)
            await self._forget(run)

        await while_held(self._threads.lease(run), work)

    async def _forget(self, run: RunRef) -> None:
        """Forget a deleted thread, under its lease."""

    async def _begin_or_go_on(
        self,
        run: RunRef,
        runner: LangGraphLocal,
        given: object,
        *,
        has_begun: bool = False,
    ) -> ThreadState:
        """Give a thread its input, or continue it; the caller has its lease.

        ``has_begun``: the thread existed before, so a missing thread was deleted.
        """
        key = "" if given is None else input_key(given)
        state = await runner.probe(run.thread)
        if given is None and not state.exists:
            if has_begun:
                return state
            raise NoThread(run, " to go on with; give it an input")
        # The same input again is a retry of the program's call, not a second message.
        if given is None or state.taken == key:
            await self._threads.takes_up(run)
            return await self._advancer.forward(run, runner, past_limits=True)
        # A copy, because LangGraph writes ids into the input's messages.
        fresh = copy.deepcopy(given)
        return await self._advancer.begin(
            run, runner, lambda: runner.give(run.thread, fresh, key=key), key=key
        )

    async def _values(
        self, run: RunRef, runner: LangGraphLocal, state: ThreadState
    ) -> dict[str, Any]:
        if not state.exists:
            raise NoThread(run, ", or it was deleted")
        return await retry_transient(lambda: runner.values(run.thread))


def rests_for_good(state: ThreadState) -> bool:
    """Return True if neither a decision nor a worker will advance this thread."""
    if state.is_finished or not state.exists:
        return True
    is_asking = bool(state.pending) and not state.is_cut_off
    return is_asking and not asked_items(state.pending)


def input_key(given: object) -> str:
    """Return the key of an input; the thread saves it to detect a repeated input."""
    # By value, so that the same input has the same key in the next process.
    kind, body = strict_serializer().dumps_typed(given)
    return f"run-{hashlib.sha256(kind.encode() + body).hexdigest()[:32]}"


def given_up(run: RunRef, reason: str) -> GraphError:
    """Return the error for a thread that is no longer retried."""
    return GraphError(
        f"The thread {run.thread!r} of {run.agent!r} was given up: {reason} Mend the "
        "cause and run it again without input."
    )


def check_who_asked(requester: object, origin: object) -> None:
    """Check the requester and the origin that a program provides.

    Raises:
        TypeError: one of them has another type.
        ValueError: the requester has no Slack user id.
    """
    for name, given, kind in (
        ("requester", requester, Person),
        ("origin", origin, Origin),
    ):
        if not (given is None or isinstance(given, kind)):
            raise TypeError(
                f"{name}={given!r} is no {kind.__name__}; give "
                f"keyturn.gateway.approvals.record.{kind.__name__}."
            )
    if isinstance(requester, Person) and not requester.has_slack_id:
        raise ValueError(f"requester={requester!r}: {NO_SLACK_ID}")

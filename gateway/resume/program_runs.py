"""Run threads for a program and wait for results; a run outlives the wait.

A wait can be bounded or given up at any time: only the wait ends then. The step that
runs is a task of its own, because a step that is stopped in the middle leaves its
thread to be repaired. It is stopped when the program ends, after a grace.
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
"""How soon to try again for a thread that another process runs at the moment."""
POLL_S = 25.0
"""How long one look waits for an answer: less than proxies let a request last."""
GRACE_S = 25.0
"""How long steps that run may take when the program ends."""


class NoThread(ThreadUnavailable):
    """There is no such thread."""

    def __init__(self, run: RunRef, hint: str) -> None:
        super().__init__(f"There is no thread {run.thread!r} of {run.agent!r}{hint}.")


class Calls(Protocol):
    """Who asked for runs, and the calls of runs that wait for people."""

    async def remember(self, facts: RunFacts) -> None:
        """Keep who asked for a run and where, as far as they are given."""
        ...

    async def pending(self, run: RunRef) -> tuple[PendingCall, ...]:
        """Return the calls of a run that wait for people, oldest first."""
        ...

    async def withdraw(
        self, run: RunRef, item_ids: Collection[str] | None = None
    ) -> tuple[str, ...]:
        """End calls of a run that wait; return the ids of those that were ended."""
        ...


class ProgramRuns:
    """The threads that a program runs itself.

    Args:
        gateway: what the agents are connected to.
        threads: what it keeps of the threads.
        calls: of the threads.
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
        """Give a thread its input, unless it has it, and wait until it rests for good.

        Raises:
            GraphError: when the thread was given up.
            ThreadUnavailable: when there is no thread and no input, or it was deleted.
        """

    @abstractmethod
    async def wait(self, run: RunRef, runner: LangGraphLocal) -> dict[str, Any]:
        """Wait until a thread rests for good, whichever process runs it.

        Raises:
            GraphError: when the thread was given up.
            ThreadUnavailable: when there is no such thread.
        """

    @abstractmethod
    async def close(self, *, grace_s: float = GRACE_S) -> None:
        """Let running steps rest, then stop them."""

    @abstractmethod
    async def _answers(
        self, run: RunRef, asked: Sequence[PendingInterrupt], wait_s: float
    ) -> Answers:
        """Return the answers to questions of a thread, waiting for the first one."""

    async def remember(
        self, run: RunRef, requester: Person | None, origin: Origin | None
    ) -> None:
        """Keep who asked and where, as far as they are given.

        Before the run: what it asks must not be decided by who asked for it.
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
        """Return the answers to questions of a thread, waiting for the first one.

        Raises:
            GraphError: when an answer does not fit its question.
            SettingsError: when ``timeout_s`` is no number of seconds.
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
        """End what waits in a thread, and forget its checkpoints.

        Raises:
            ThreadUnavailable: while somebody runs the thread; nothing was deleted.
        """

        async def work() -> None:
            # The cards first: killed after the checkpoints were deleted, they would
            # wait for a thread that is gone.
            await self._threads.ends(run)
            await runner.delete(run.thread)
            await self._forget(run)

        await while_held(self._threads.lease(run), work)

    async def _forget(self, run: RunRef) -> None:
        """Forget a thread that was deleted, under its lease."""

    async def _begin_or_go_on(
        self,
        run: RunRef,
        runner: LangGraphLocal,
        given: object,
        *,
        has_begun: bool = False,
    ) -> ThreadState:
        """Give a thread its input, or go on with it; the caller holds its lease.

        ``has_begun``: a thread that is not there was deleted, and was there before.
        """
        key = "" if given is None else input_key(given)
        state = await runner.probe(run.thread)
        if given is None and not state.exists:
            if has_begun:
                return state
            raise NoThread(run, " to go on with; give it an input")
        # The same input once more is a retry of the program's call, not a second
        # message.
        if given is None or state.taken == key:
            await self._threads.takes_up(run)
            return await self._advancer.forward(run, runner, past_limits=True)
        # A copy, because LangGraph writes ids into the messages it is given.
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
    """Return True if nothing of ours will bring this thread forward."""
    if state.is_finished or not state.exists:
        return True
    is_asking = bool(state.pending) and not state.is_cut_off
    return is_asking and not asked_items(state.pending)


def input_key(given: object) -> str:
    """Return the key of an input, by which a thread knows that it has it."""
    # By value, so that the same input has the same key in the next process.
    kind, body = strict_serializer().dumps_typed(given)
    return f"run-{hashlib.sha256(kind.encode() + body).hexdigest()[:32]}"


def given_up(run: RunRef, reason: str) -> GraphError:
    """Return the error about a thread that is not brought forward any more."""
    return GraphError(
        f"The thread {run.thread!r} of {run.agent!r} was given up: {reason} Mend the "
        "cause and run it again without input."
    )


def check_who_asked(requester: object, origin: object) -> None:
    """Check who a program says asked, and where.

    Raises:
        TypeError: when one of them is of another type.
        ValueError: when who asked has no id of a Slack user.
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

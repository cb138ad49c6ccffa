"""Run threads for a program and wait for results; a run outlives the wait.

A wait can be bounded or given up at any time: only the wait ends then. The step that
runs is a task of its own, because a step that is stopped in the middle leaves its
thread to be repaired. It is stopped when the program ends, after a grace.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

from langgraph.types import Interrupt

from twokey.gateway.approvals.record import Origin
from twokey.gateway.arguments import check_timeout
from twokey.gateway.errors import GraphError, StoreUnavailable, ThreadUnavailable
from twokey.gateway.failures import log_failure
from twokey.gateway.protocol.port import connected
from twokey.gateway.protocol.records import Person
from twokey.gateway.resume.advancer import Advancer
from twokey.gateway.resume.answers import answers_for
from twokey.gateway.resume.classification import ThreadHalted
from twokey.gateway.resume.diagnosis import diagnose
from twokey.gateway.resume.langgraph_local import LangGraphLocal
from twokey.gateway.resume.leases import under_lease
from twokey.gateway.resume.questions import asked_items
from twokey.gateway.resume.retries import Retries
from twokey.gateway.resume.run_events import ThreadRef
from twokey.gateway.resume.run_rules import (
    check_who_asked,
    given_up,
    input_key,
    rests_for_good,
)
from twokey.gateway.resume.runner import PendingInterrupt, ThreadState
from twokey.gateway.resume.runners import Runners
from twokey.gateway.resume.thread_states import pending_of
from twokey.gateway.resume.thread_watch import (
    LOOK_S,
    SOON_S,
    ThreadChanges,
    ThreadWatch,
    next_change,
)
from twokey.gateway.resume.transient_retry import (
    InputNotGiven,
    backoff_s,
    drain_tasks,
    retry_transient,
    wait_or_timeout,
)
from twokey.gateway.resume.worker import GRACE_S, ThreadChange
from twokey.gateway.service.agents import AgentService
from twokey.gateway.store.jobs import Job
from twokey.gateway.store.stalled import RunState
from twokey.gateway.store.store import Store
from twokey.gateway.store.threads import ThreadFacts

logger = logging.getLogger(__name__)

BUSY_S = 1.0
"""How soon to try again for a thread that another process runs at the moment."""


class ThreadRuns:
    """The threads that a program runs itself.

    Args:
        store: where leases and events are kept.
        gateway: what the agents are connected to.
        runners: keeps the runner of a thread until the thread has ended.
        watch: wakes who waits.
    """

    def __init__(
        self, store: Store, gateway: AgentService, runners: Runners, watch: ThreadWatch
    ) -> None:
        self._store = store
        self._gateway = gateway
        self._runners = runners
        self._watch = watch
        self._retries = Retries(store)
        self._steps = dict[asyncio.Task[ThreadState | None], ThreadRef]()
        self._closing = asyncio.Event()

    async def run(
        self, at: ThreadRef, runner: LangGraphLocal, given: object
    ) -> dict[str, Any]:
        """Give a thread its input, unless it has it, and wait until it rests for good.

        Raises:
            GraphError: when the thread was given up.
            ThreadUnavailable: when there is no thread and no input, or it was deleted.
        """
        # First of all, so that a wait that is over at once has begun the step as well.
        step = asyncio.create_task(self._step(at, runner, given))
        self._steps[step] = at
        step.add_done_callback(self._ended)
        async with self._watch.of(at.agent, at.thread) as changes:
            # Who gives up waiting must not stop the step in its middle.
            await asyncio.shield(step)
            return await self._rest(at, runner, changes)

    async def wait(self, at: ThreadRef, runner: LangGraphLocal) -> dict[str, Any]:
        """Wait until a thread rests for good, whichever process runs it.

        Raises:
            GraphError: when the thread was given up.
            ThreadUnavailable: when there is no such thread.
        """
        async with self._watch.of(at.agent, at.thread) as changes:
            return await self._rest(at, runner, changes)

    async def answers(
        self, at: ThreadRef, interrupts: Sequence[Interrupt], timeout_s: float | None
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
        # Otherwise the job of each decision would be offered again, for ever.
        self._runners.leave(at.agent, at.thread)
        async with self._watch.of(at.agent, at.thread) as changes:
            found = await self._ready(at, asked)
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s if timeout_s != 0 else None):
                    while not found and timeout_s != 0:  # 0 has asked once, above
                        await next_change(changes)
                        found = await self._ready(at, asked)
            return found

    async def _ready(
        self, at: ThreadRef, asked: Sequence[PendingInterrupt]
    ) -> dict[str, Any]:
        found = await answers_for(self._store, at.agent, at.thread, asked)
        if found.unfit:
            raise GraphError(
                f"The answer to {found.unfit[0]!r} does not fit the question that the "
                f"thread {at.thread!r} asked; see the agent's log."
            )
        return cast("dict[str, Any]", found.ready)

    async def remember(
        self, at: ThreadRef, requester: Person | None, origin: Origin | None
    ) -> None:
        """Keep who asked and where, as far as they are given."""
        if requester is None and origin is None:
            return
        check_who_asked(requester, origin)

        def asked(before: ThreadFacts) -> ThreadFacts:
            after = before if requester is None else before.asked_by(requester)
            return after if origin is None else after.with_(origin=origin)

        facts = (at.keys, at.tenant, at.agent, at.thread)
        await retry_transient(lambda: self._store.threads.change(*facts, asked))

    async def delete(self, at: ThreadRef, runner: LangGraphLocal) -> None:
        """End what waits in a thread, and forget its checkpoints.

        Raises:
            ThreadUnavailable: while somebody runs the thread; nothing was deleted.
        """

        async def work() -> None:
            # The cards first: killed after the checkpoints were deleted, they would
            # wait for a thread that is gone until recovery finds them.
            await self._gateway.supersede_run(at.run_ref)
            await runner.delete(at.thread)
            await self._store.threads.end_run(at.keys, at.tenant, at.agent, at.thread)
            self._runners.release(at.agent, at.thread)

        await under_lease(self._store, at, work)
        self._watch.notify(ThreadChange(at.agent, at.thread))

    async def close(self, *, grace_s: float = GRACE_S) -> None:
        """Let running steps rest, then stop them."""
        self._closing.set()
        await drain_tasks(self._steps, grace_s)
        await self._watch.close()

    async def _rest(
        self, at: ThreadRef, runner: LangGraphLocal, changes: ThreadChanges
    ) -> dict[str, Any]:
        # The first look waits for nothing: the thread may rest already.
        within_s: float = 0.0
        while True:
            change = await next_change(changes, within_s=within_s) if within_s else None
            _raise_ifgiven_up(change)
            try:
                state = await runner.probe(at.thread)
                if rests_for_good(state) and (state.exists or not self._begins(at)):
                    break
                await self._raise_if_parked(at)
            except Exception as error:
                if not diagnose(error).can_pass:
                    raise
                logger.warning("thread.unread agent=%s thread=%s", at.agent, at.thread)
                change = ThreadChange(at.agent, at.thread)
            within_s = LOOK_S if change is None else SOON_S
        if not state.exists:
            raise ThreadUnavailable(
                f"There is no thread {at.thread!r} of {at.agent!r}, or it was deleted."
            )
        return await retry_transient(lambda: runner.values(at.thread))

    def _begins(self, at: ThreadRef) -> bool:
        """Return whether a step that runs here may be about to write the thread."""
        return at.run in {of.run for one, of in self._steps.items() if not one.done()}

    async def _raise_if_parked(self, at: ThreadRef) -> None:
        """Raise what another process parked the run for."""
        parked = await self._retries.find_parked(at)
        if parked is not None:
            raise given_up(at.agent, at.thread, parked.reason)

    async def _step(
        self, at: ThreadRef, runner: LangGraphLocal, given: object
    ) -> ThreadState | None:
        """Take a step of a thread; one that waits for an outage is begun again.

        Once the thread has its input, the workers go on with it instead.
        """
        pauses, clock = backoff_s(), asyncio.get_running_loop().time
        # As long as a run is retried that failed after it had its input.
        late = clock() + self._store.retries.limit.total_seconds()
        while True:
            pause_s = BUSY_S
            try:
                with connected(self._gateway, at.run_ref):
                    return await under_lease(
                        self._store, at, lambda: self._advance(at, runner, given)
                    )
            except ThreadUnavailable:
                if self._closing.is_set() or not await _has_work(at, runner, given):
                    raise
            except (InputNotGiven, StoreUnavailable) as error:
                if self._closing.is_set() or clock() > late:
                    # `InputNotGiven` only carries its cause up to here.
                    raise error.__cause__ or error from None
                pause_s = next(pauses)
                logger.warning(
                    "run.waiting agent=%s thread=%s error=%s next_in_s=%.1f",
                    at.agent,
                    at.thread,
                    type(error.__cause__ or error).__name__,
                    pause_s,
                )
            await wait_or_timeout(self._closing, pause_s)

    async def _advance(
        self, at: ThreadRef, runner: LangGraphLocal, given: object
    ) -> ThreadState | None:
        self._runners.keep(at.agent, at.thread, runner)
        try:
            state = await self._begin_or_go_on(at, runner, given)
        except ThreadUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - raised again, unless it can pass
            await self._failed(at, runner, given, error)
            return None
        await self._retries.record_resumed(at, None, runner)
        if state.is_finished or not state.exists:
            self._runners.release(at.agent, at.thread)
        return state

    async def _failed(
        self, at: ThreadRef, runner: LangGraphLocal, given: object, error: Exception
    ) -> None:
        """Hand a thread over to the workers, which retry it; or raise the error.

        Raises:
            InputNotGiven: when the thread does not have its input yet.
        """
        can_pass = diagnose(error).can_pass
        try:
            state = await runner.probe(at.thread)
        except Exception as unread:
            if can_pass and diagnose(unread).can_pass:
                raise InputNotGiven from error
            raise error from unread
        # Without its input there is nothing that a worker could go on with.
        if not state.exists or (given is not None and state.taken != input_key(given)):
            if can_pass:
                raise InputNotGiven from error
            raise error
        left = Job.to_resume(at.tenant, at.agent, at.thread)
        run = await self._retries.failed(at, error, left=left, is_last=not can_pass)
        if run is None or run.state is RunState.PARKED:
            raise error

    async def _begin_or_go_on(
        self, at: ThreadRef, runner: LangGraphLocal, given: object
    ) -> ThreadState:
        advancer = Advancer(self._store, self._gateway)
        key = "" if given is None else input_key(given)
        state = await runner.probe(at.thread)
        if given is None and not state.exists:
            raise ThreadUnavailable(
                f"There is no thread {at.thread!r} of {at.agent!r} to go on with; "
                "give it an input."
            )
        # The same input once more is a retry of the program's call, not a second
        # message.
        if given is None or state.taken == key:
            await self._store.stalled.taken_up(at.keys, at.run)
            return await advancer.forward(at, runner, past_limits=True)
        # A copy, because LangGraph writes ids into the messages it is given.
        fresh = copy.deepcopy(given)
        return await advancer.begin(
            at,
            runner,
            lambda: runner.give(at.thread, fresh, key=key),
            key=key,
        )

    def _ended(self, step: asyncio.Task[ThreadState | None]) -> None:
        at = self._steps.pop(step)
        if step.cancelled():
            return
        error = step.exception()
        if error is not None:
            # Who gave the input may not wait any more, and others may wait as well.
            log_failure(
                logger, error, "run.failed agent=%s thread=%s", at.agent, at.thread
            )
            if not isinstance(error, ThreadUnavailable):
                self._watch.notify(ThreadChange(at.agent, at.thread, error))


async def _has_work(at: ThreadRef, runner: LangGraphLocal, given: object) -> bool:
    """Return True if a thread that another process runs is worth waiting for."""
    of = at.thread
    return given is not None or (await retry_transient(lambda: runner.probe(of))).exists


def _raise_ifgiven_up(change: ThreadChange | None) -> None:
    if change is None or change.error is None:
        return
    if isinstance(change.error, ThreadHalted):
        raise change.error
    reason = diagnose(change.error).reason
    raise given_up(change.agent, change.thread, reason) from change.error

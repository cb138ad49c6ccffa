"""Run threads of this process, while a gateway elsewhere keeps leases and answers.

Theory of operation. Each run has one task here, its drive: it takes the lease, brings
the thread forward until it waits or ends, gives the lease back, and waits with a long
poll for the next answer. So two processes with the same checkpoints may drive one
thread; who has the lease works, and the other one finds what was done. A wait of the
program can be bounded or given up at any time: the drive goes on.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast

from langgraph.types import Interrupt

from twokey.gateway.arguments import check_timeout
from twokey.gateway.client.http_threads import HttpThreads
from twokey.gateway.errors import (
    GraphError,
    KeyRefused,
    ThreadUnavailable,
    TwokeyError,
)
from twokey.gateway.failures import log_failure
from twokey.gateway.protocol.port import Gateway, connected
from twokey.gateway.protocol.records import RunRef
from twokey.gateway.remote.advancing import AwaitedAnswers, RemoteAdvancer
from twokey.gateway.remote.attempts import BUSY_S, Attempts, NoThread
from twokey.gateway.remote.leases import new_token, thread_lease
from twokey.gateway.resume.classification import ThreadHalted
from twokey.gateway.resume.diagnosis import diagnose
from twokey.gateway.resume.held_work import while_held
from twokey.gateway.resume.langgraph_local import LangGraphLocal
from twokey.gateway.resume.questions import asked_items
from twokey.gateway.resume.run_rules import given_up, input_key, rests_for_good
from twokey.gateway.resume.runner import ThreadState
from twokey.gateway.resume.thread_states import pending_of
from twokey.gateway.resume.transient_retry import (
    drain_tasks,
    retry_transient,
)
from twokey.gateway.retrying import RetrySettings

T = TypeVar("T")

logger = logging.getLogger(__name__)

POLL_S = 25.0
"""How long one question waits for an answer: less than proxies let a request last."""
GRACE_S = 25.0
"""How long steps that run may take when the program ends."""
GIVE_BACK_S = 2.0
"""How long a lease may take that is given back unused."""


_AS_IT_IS = (KeyRefused, ThreadHalted, ThreadUnavailable)
"""Errors that say by themselves what to do about a thread."""


class Drive:
    """The task that brings one thread forward, until a newer one replaces it."""

    def __init__(self) -> None:
        self.replaced = asyncio.Event()
        self.news = asyncio.Event()
        self.successor: Drive | None = None
        self.task: asyncio.Task[ThreadState]

    def replace(self, successor: Drive) -> None:
        """Leave the thread to another drive, after the step that runs now."""
        self.successor = successor
        self.replaced.set()


class RemoteThreadRuns:
    """The threads that a program runs beside a gateway in another process.

    Args:
        gateway: what the agents are connected to.
        threads: leases and answers.
        retries: how long a step that fails is tried again.
    """

    def __init__(
        self, gateway: Gateway, threads: HttpThreads, retries: RetrySettings
    ) -> None:
        self._gateway = gateway
        self._threads = threads
        self._advancer = RemoteAdvancer(threads)
        self._retries = retries
        self._drives: dict[RunRef, Drive] = {}
        self._closing = asyncio.Event()

    def _attempts(self, run: RunRef) -> Attempts:
        return Attempts(run, self._retries, url=self._threads.url)

    async def run(
        self, run: RunRef, runner: LangGraphLocal, given: object
    ) -> dict[str, Any]:
        """Give a thread its input, unless it has it, and wait until it rests for good.

        Raises:
            GraphError: when the thread was given up.
            ThreadUnavailable: when there is no thread and no input, or it was deleted.
            NotAllowed: when the gateway refuses the key.
        """
        before = self._drives.get(run)
        drive = self._begin(run, runner, given)
        if before is not None:
            before.replace(drive)
        # Who gives up waiting must not stop a step in its middle.
        return await self._values(run, runner, await asyncio.shield(drive.task))

    def wake(self, run: RunRef) -> bool:
        """Let a thread look for its answer now; False when nothing here runs it."""
        drive = self._drives.get(run)
        if drive is not None:
            drive.news.set()
        return drive is not None

    async def take_up(self, run: RunRef, runner: LangGraphLocal) -> None:
        """Bring a thread of these checkpoints forward, unless it rests for good."""
        state = await _probe(runner, run)
        if state.exists and not rests_for_good(state) and not self.wake(run):
            self._begin(run, runner, None)

    async def wait(self, run: RunRef, runner: LangGraphLocal) -> dict[str, Any]:
        """Wait until a thread rests for good, whichever process runs it.

        Raises:
            GraphError: when this process gave the thread up.
            ThreadUnavailable: when there is no such thread.
        """
        while (drive := self._drives.get(run)) is None:
            state = await _probe(runner, run)
            if rests_for_good(state):
                return await self._values(run, runner, state)
            await self._next_answer(run, state)
            # Somebody else resumes it: an answer is there before its effects are.
            await asyncio.sleep(BUSY_S)
        return await self._values(run, runner, await asyncio.shield(drive.task))

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
            wait_s = min(left_s, POLL_S)
            found = await retry_transient(
                partial(self._advancer.answers, run, asked, wait_s=wait_s)
            )
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
            await self._threads.supersede(run)
            await runner.delete(run.thread)

        await while_held(thread_lease(self._threads, run), work)

    async def close(self, *, grace_s: float = GRACE_S) -> None:
        """Let running steps rest, then stop them; threads that wait stop at once."""
        self._closing.set()
        await drain_tasks([one.task for one in self._drives.values()], grace_s)

    def _begin(self, run: RunRef, runner: LangGraphLocal, given: object) -> Drive:
        drive = Drive()
        drive.task = asyncio.create_task(self._drive(drive, run, runner, given))
        drive.task.add_done_callback(lambda _: self._ended(run, drive))
        self._drives[run] = drive
        return drive

    async def _values(
        self, run: RunRef, runner: LangGraphLocal, state: ThreadState
    ) -> dict[str, Any]:
        if not state.exists:
            raise NoThread(run, ", or it was deleted")
        return await retry_transient(lambda: runner.values(run.thread))

    async def _drive(
        self, drive: Drive, run: RunRef, runner: LangGraphLocal, given: object
    ) -> ThreadState:
        """Bring a thread forward until it rests for good, or another drive does."""
        attempts, has_waited = self._attempts(run), False
        awaited: AwaitedAnswers | None = None
        token = ""
        while True:
            if self._closing.is_set() or drive.successor is not None:
                await self._give_back(run, token, awaited)
                return await self._left(drive, run)
            try:
                state = await self._advance(
                    run,
                    runner,
                    given,
                    has_begun=has_waited,
                    awaited=awaited,
                    token=token,
                )
            except Exception as error:
                if not (
                    has_waited
                    or given is not None
                    or (await _probe(runner, run)).exists
                ):
                    # Nobody need wait for a lease to learn that there is nothing.
                    raise
                pause_s = attempts.pause_s(error)
                if pause_s is None and has_waited and not isinstance(error, _AS_IT_IS):
                    reason = diagnose(error).reason
                    raise given_up(run.agent, run.thread, reason) from error
                if pause_s is None:
                    raise
                await self._until_moved(drive, asyncio.sleep(pause_s))
                awaited, token = None, ""
                if given is not None and await _has_taken(runner, run, given):
                    # Given again after somebody gave another one, it would be a new
                    # message.
                    given = None
                continue
            attempts, has_waited = self._attempts(run), True
            # It has its input; a thread that is deleted now is not begun again.
            given = None
            if rests_for_good(state):
                return state
            token = new_token()
            awaited = await self._until_moved(
                drive, self._next_answer(run, state, token)
            )

    async def _left(self, drive: Drive, run: RunRef) -> ThreadState:
        """Return what a drive comes to that does not go on itself."""
        if drive.successor is not None and not self._closing.is_set():
            return await asyncio.shield(drive.successor.task)
        raise ThreadUnavailable(
            f"The program ended before the thread {run.thread!r} did; run it again to "
            "go on with it."
        )

    async def _advance(
        self,
        run: RunRef,
        runner: LangGraphLocal,
        given: object,
        *,
        has_begun: bool,
        awaited: AwaitedAnswers | None,
        token: str,
    ) -> ThreadState:
        async def work() -> ThreadState:
            key = "" if given is None else input_key(given)
            state = await runner.probe(run.thread)
            if given is None and not state.exists:
                if has_begun:
                    return state
                raise NoThread(run, " to go on with; give it an input")
            # The same input once more is a retry, not a second message.
            if given is None or state.taken == key:
                return await self._advancer.forward(
                    run, runner, past_limits=True, state=state, awaited=awaited
                )
            # A copy, because LangGraph writes ids into the messages it is given.
            fresh = copy.deepcopy(given)
            return await self._advancer.begin(
                run, runner, lambda: runner.give(run.thread, fresh, key=key)
            )

        offered = None if awaited is None else awaited.lease
        lease = thread_lease(self._threads, run, token=token, offered=offered)
        with connected(self._gateway, run):
            return await while_held(lease, work)

    async def _give_back(
        self, run: RunRef, token: str, awaited: AwaitedAnswers | None
    ) -> None:
        """Give back a lease that came, or may have come, and is not used."""
        is_taken = awaited is not None and awaited.lease is not None
        # A drive that was replaced may have left its wait when the lease was taken,
        # which would keep its successor waiting.
        if token and (is_taken or not self._closing.is_set()):
            with suppress(TwokeyError, TimeoutError):
                async with asyncio.timeout(GIVE_BACK_S):
                    await self._threads.lease(run, "free", token=token)

    async def _until_moved(
        self, drive: Drive, work: Coroutine[Any, Any, T]
    ) -> T | None:
        """Wait for work; end early with news, another drive, or the end of it all."""
        others = (drive.replaced.wait(), drive.news.wait(), self._closing.wait())
        waiting = asyncio.create_task(work)
        tasks: list[asyncio.Task[Any]] = [waiting, *map(asyncio.create_task, others)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            drive.news.clear()
        is_done = not waiting.cancelled() and waiting.exception() is None
        return waiting.result() if is_done else None

    async def _next_answer(
        self, run: RunRef, state: ThreadState, token: str = ""
    ) -> AwaitedAnswers | None:
        """Wait until a question of a thread may have an answer; no longer than a poll.

        What cannot be asked now is waited for as well: the next attempt says why.
        """
        if not asked_items(state.pending):
            return None
        try:
            return await self._advancer.awaited(run, state, wait_s=POLL_S, token=token)
        except TwokeyError as error:
            logger.warning(
                "thread.not_followed agent=%s thread=%s error=%s",
                run.agent,
                run.thread,
                type(error).__name__,
            )
            await asyncio.sleep(BUSY_S)
            return None

    def _ended(self, run: RunRef, drive: Drive) -> None:
        if self._drives.get(run) is drive:
            del self._drives[run]
        if drive.task.cancelled():
            return
        error = drive.task.exception()
        if error is not None and not self._closing.is_set():
            # Who gave the input may not wait any more.
            log_failure(
                logger, error, "run.failed agent=%s thread=%s", run.agent, run.thread
            )


async def _has_taken(runner: LangGraphLocal, run: RunRef, given: object) -> bool:
    key = input_key(given)
    return await retry_transient(lambda: runner.has_taken(run.thread, key))


async def _probe(runner: LangGraphLocal, run: RunRef) -> ThreadState:
    return await retry_transient(lambda: runner.probe(run.thread))

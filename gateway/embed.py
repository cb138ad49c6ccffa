"""Run agents behind approvals inside any asyncio program.

    async with Twokey(policy=Path("policy.yml")) as tk:
        final = await tk.run(graph, {"messages": [...]}, thread_id="order-78291")

The wait is durable. Whatever ends this program, the same call afterwards goes on where
the thread stands: what was decided meanwhile is carried out, what was executed is not
executed again. Cards are shown by a bot, in this program or another, on the same store.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver

from gateway.agent.port import connected
from gateway.approvals.record import Origin, Person
from gateway.config import PolicySource, Settings
from gateway.errors import GraphError, SettingsError, ThreadUnavailable
from gateway.policy.rules import Policy
from gateway.policy_file import PolicyFile, followed
from gateway.resume.advancing import Advancer
from gateway.resume.announcing import Place
from gateway.resume.answers import asked_items
from gateway.resume.checkpoints import open_checkpoints
from gateway.resume.classification import ThreadHalted, is_final
from gateway.resume.every_loop import EveryLoop
from gateway.resume.graphs import as_graph, attached
from gateway.resume.langgraph_local import LangGraphLocal, check_config
from gateway.resume.leases import under_lease
from gateway.resume.runner import ThreadState
from gateway.resume.runners import Runners
from gateway.resume.strict_state import strict_serializer
from gateway.resume.worker import Rested
from gateway.running import load_runners, load_triage, running
from gateway.service.reviews import ReviewService
from gateway.store.serving import open_store
from gateway.store.store import Store
from gateway.triage.port import Triage

POLL_S = 1.0
"""How often to look at a thread that another process may have brought forward."""


class Twokey:
    """A gateway in this process: store, checkpoints, workers and the clock.

    Args:
        settings: everything from ``twokey.yml``, its agents included; instead of all
            that follow, but for ``triage``.
        triage: asked about the calls that the policy puts to it; None is what the
            settings name.
        policy: a policy, or the path of its file, which is followed: a change of it
            counts without a restart, unless it is no policy.
        url: the store's address; None is an embedded server in ``data_dir``.
        data_dir: where the embedded server and the checkpoints live.
        checkpoints: a SQLite file or ``postgresql://`` URL instead of that.
        tenant: whose approvals these are.
        slots: how many threads are brought forward at the same time.
        insecure_dev: accept a store that would lose acknowledged decisions.

    Attributes:
        store: the open store.
        service: the gateway that agents of this process are connected to.
        reviews: what a chat front end may ask.
    """

    store: Store
    service: EveryLoop
    reviews: ReviewService

    def __init__(  # noqa: PLR0913 - what a program may say of its gateway, by name
        self,
        settings: Settings | None = None,
        *,
        triage: Triage | None = None,
        policy: Policy | Path | None = None,
        url: str | None = None,
        data_dir: Path = Path(".twokey"),
        checkpoints: str | None = None,
        tenant: str = "default",
        slots: int = 8,
        insecure_dev: bool = False,
    ) -> None:
        self._settings, self._triage = settings, triage
        self._policy = _policy(settings, policy)
        if settings is not None:
            data_dir, tenant, slots = (
                settings.data_dir,
                settings.tenant,
                settings.workers,
            )
            secret_url = settings.redis_url
            url = None if secret_url is None else secret_url.get_secret_value()
            checkpoints = settings.checkpoints.get_secret_value()
        self._url, self._data_dir = url, data_dir
        self._checkpoints = checkpoints or str(data_dir / "checkpoints.sqlite")
        self._tenant, self._slots = tenant, slots
        self._insecure_dev = insecure_dev
        self._runners = Runners()
        self._waiting: dict[tuple[str, str], set[asyncio.Queue[Rested]]] = {}
        self._saver: BaseCheckpointSaver[Any] | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Open everything and begin to work.

        Raises:
            StoreUnavailable: when there is no store.
            UnsafeStore: when the store would lose acknowledged decisions.
            SettingsError: when the checkpoints or the triage cannot be opened.
            GraphError: when an agent of the settings cannot be loaded.
        """
        async with AsyncExitStack() as stack:
            self.store = await stack.enter_async_context(
                open_store(self._url, self._data_dir, insecure_dev=self._insecure_dev)
            )
            self._saver = await stack.enter_async_context(
                open_checkpoints(self._checkpoints)
            )
            if self._settings is not None:
                self._runners.serve(await load_runners(self._settings, self._saver))
                self._triage = self._triage or await load_triage(self._settings)
            if isinstance(self._policy, PolicyFile):
                await stack.enter_async_context(
                    followed(self._policy, self.store, tenant=self._tenant)
                )
            self.service = await stack.enter_async_context(
                running(
                    self.store,
                    self._policy,
                    self._runners,
                    tenant=self._tenant,
                    triage=self._triage,
                    slots=self._slots,
                    at_rest=self._tell,
                )
            )
            self.reviews = ReviewService(self.store, self._policy, tenant=self._tenant)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let running threads rest, then close everything; approvals stay open."""
        await self._stack.aclose()

    def reload(self) -> None:
        """Judge the policy's file again within seconds, and log what came of it.

        A changed file needs no such call.
        """
        if isinstance(self._policy, PolicyFile):
            self._policy.reload()

    def connected(self) -> AbstractContextManager[None]:
        """Connect the agents that are run inside the block by other means.

        Their threads are not resumed by Twokey: whoever runs them does that.
        """
        return connected(self.service)

    async def run(  # noqa: PLR0913 - what a program may say of a run, by name
        self,
        graph: object,
        input: object = None,  # noqa: A002 - LangGraph's own word
        *,
        thread_id: str,
        agent: str = "agent",
        requester: Person | None = None,
        origin: Origin | None = None,
        timeout_s: float | None = None,
        config: RunnableConfig | None = None,
        context: object = None,
    ) -> dict[str, Any]:
        """Run a graph and wait, durably, until its thread is finished.

        Call it again with the same thread after a crash, a time-out or a
        cancellation: no input, or the same input, goes on where the thread stands and
        returns what it came to, whoever brought it there. The thread's last input is
        never given twice: to repeat the same words, give their message another
        ``id``. Another input begins a new turn and supersedes what waits.

        The thread is brought forward with this graph, config and context until it is
        finished, or until it is run again with others. They live in this process: one
        that started anew has to run the thread again to go on with it.

        Args:
            graph: a compiled graph, a `StateGraph`, or a function that returns one;
                the graph's own checkpointer is used when it has one, with whatever
                serializer that has (ours builds only types that the state declares).
            input: what the graph takes, such as ``{"messages": [...]}``.
            thread_id: names the thread; the same for ever.
            agent: the agent's name, as ``ApprovalMiddleware(agent)`` has it.
            requester: who asked; they cannot approve what comes of it.
            origin: where in Slack they asked.
            timeout_s: how long to wait altogether; None waits as long as it takes.
            config: a ``RunnableConfig`` for every step of the thread: callbacks, tags,
                metadata, ``recursion_limit``, ``configurable``.
            context: the context of a graph with a ``context_schema``; approved tools
                get it too, however long the wait was.

        Returns:
            The thread's final state. When it rests on a question that is not
            Twokey's, that stands under ``__interrupt__``.

        Raises:
            TimeoutError: when it takes longer; the thread goes on all the same.
            GraphError: when the graph or the config cannot be used, or the thread was
                given up.
            ThreadUnavailable: when there is no thread and no input, or it was deleted.
        """
        check_config(config or {}, thread_id)
        runner = await self._runner(graph, agent, config=config, context=context)
        keys = self.store.keys_of_tenant(self._tenant)
        at = Place(keys, self._tenant, agent, thread_id)
        await self._remember(at, requester, origin)
        async with asyncio.timeout(timeout_s), self._told(at) as told:
            state = await self._begin_or_go_on(at, runner, input)
            while not _rests_for_good(state):
                await _next(told)
                state = await runner.probe(thread_id)
            if not state.exists:
                raise ThreadUnavailable(f"The thread {thread_id!r} was deleted.")
            return await runner.values(thread_id)

    async def delete(
        self, graph: object, *, thread_id: str, agent: str = "agent"
    ) -> None:
        """Delete a thread, and end what waits in it, inside its tools too.

        The cards say that the conversation moved on, and a click that comes later is
        refused. What runs at the moment is not stopped. A thread that is not there is
        no error.

        Args:
            graph: as for `run`.
            thread_id: the thread.
            agent: the agent's name, as for `run`.

        Raises:
            GraphError: when the graph cannot be used.
            ThreadUnavailable: while somebody runs the thread; nothing was deleted.
        """
        runner = await self._runner(graph, agent)
        keys = self.store.keys_of_tenant(self._tenant)
        at = Place(keys, self._tenant, agent, thread_id)

        async def work() -> None:
            await self.service.home.supersede_run(at.home)
            await runner.delete(thread_id)
            self._runners.release(agent, thread_id)

        await under_lease(self.store, at, work)

    async def _remember(
        self, at: Place, requester: Person | None, origin: Origin | None
    ) -> None:
        given = {"requester": requester, "origin": origin}
        changes = {name: value for name, value in given.items() if value is not None}
        if not changes:
            return
        known = await self.store.threads.facts(at.keys, at.tenant, at.agent, at.thread)
        await self.store.threads.remember(
            at.keys, at.tenant, at.agent, at.thread, known.with_(**changes)
        )

    async def _begin_or_go_on(
        self, at: Place, runner: LangGraphLocal, given: object
    ) -> ThreadState:
        advancer = Advancer(self.store, self.service.home)
        key = "" if given is None else _key(given)

        async def work() -> ThreadState:
            self._runners.keep(at.agent, at.thread, runner)
            state = await advance()
            if state.is_finished or not state.exists:
                self._runners.release(at.agent, at.thread)
            return state

        async def advance() -> ThreadState:
            state = await runner.probe(at.thread)
            if given is None and not state.exists:
                raise ThreadUnavailable(
                    f"There is no thread {at.thread!r} of {at.agent!r} to go on with; "
                    "give it an input."
                )
            if given is None or state.taken == key:
                return await advancer.forward(at, runner, past_limits=True)
            # A copy, because LangGraph writes ids into the messages it is given.
            fresh = copy.deepcopy(given)
            return await advancer.begin(
                at, runner, lambda: runner.give(at.thread, fresh, key=key)
            )

        while True:
            try:
                with connected(self.service, at.home):
                    return await under_lease(self.store, at, work)
            except ThreadUnavailable:
                state = await runner.probe(at.thread)
                if not state.exists and given is None:
                    raise
            await asyncio.sleep(POLL_S)

    async def _runner(
        self,
        graph: object,
        agent: str,
        *,
        config: RunnableConfig | None = None,
        context: object = None,
    ) -> LangGraphLocal:
        if self._saver is None:
            raise SettingsError("Use Twokey as: async with Twokey(...) as tk: ...")
        compiled = await as_graph(graph, f"the graph of {agent!r}")
        has_own = isinstance(
            getattr(compiled, "checkpointer", None), BaseCheckpointSaver
        )
        return LangGraphLocal(
            compiled if has_own else attached(compiled, self._saver),
            config=config,
            context=context,
        )

    def _tell(self, rested: Rested) -> None:
        for queue in self._waiting.get((rested.agent, rested.thread), ()):
            queue.put_nowait(rested)

    @asynccontextmanager
    async def _told(self, at: Place) -> AsyncGenerator[asyncio.Queue[Rested]]:
        queue: asyncio.Queue[Rested] = asyncio.Queue()
        who = (at.agent, at.thread)
        self._waiting.setdefault(who, set()).add(queue)
        try:
            yield queue
        finally:
            self._waiting[who].discard(queue)
            if not self._waiting[who]:
                del self._waiting[who]


async def _next(told: asyncio.Queue[Rested]) -> None:
    """Wait until the thread may have come forward."""
    try:
        async with asyncio.timeout(POLL_S):
            rested = await told.get()
    except TimeoutError:
        return
    if isinstance(rested.error, ThreadHalted):
        raise rested.error
    if rested.error is not None:
        how = (
            "after one attempt" if is_final(rested.error) else "after several attempts"
        )
        raise GraphError(
            f"The thread {rested.thread!r} of {rested.agent!r} was given up {how} "
            f"({type(rested.error).__name__}); mend the cause and run it again "
            "without input."
        ) from rested.error


def _rests_for_good(state: ThreadState) -> bool:
    """Say whether nothing of ours will bring this thread forward."""
    if state.is_finished or not state.exists:
        return True
    return bool(state.pending) and not asked_items(state.pending)


def _key(given: object) -> str:
    kind, body = strict_serializer().dumps_typed(given)
    return f"run-{hashlib.sha256(kind.encode() + body).hexdigest()[:32]}"


def _policy(
    settings: Settings | None, policy: Policy | Path | None
) -> Callable[[], Policy]:
    if settings is not None and policy is None:
        return PolicyFile(settings.policy)
    if settings is not None or policy is None:
        raise SettingsError(
            "Twokey needs either settings or a policy: Twokey(settings), or "
            "Twokey(policy=Path('policy.yml'))."
        )
    if isinstance(policy, Policy):
        return lambda: policy
    return PolicyFile(PolicySource(path=policy))

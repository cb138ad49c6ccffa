"""Embedded mode (`Twokey`): run agents behind approvals in any asyncio program.

    async with Twokey(policy=Path("policy.yml")) as tk:
        final = await tk.run(graph, {"messages": [...]}, thread_id="order-78291")

The wait is durable. Whatever ends this program, the same call afterwards goes on where
the thread stands: what was decided meanwhile is carried out, what was executed is not
executed again. Cards are shown by a bot, in this program or another, on the same store.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, aclosing
from functools import partial
from pathlib import Path
from typing import Any, Self

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import Interrupt, StreamMode

from twokey.gateway.approvals.record import Origin
from twokey.gateway.config import Settings
from twokey.gateway.embed_arguments import check_arguments
from twokey.gateway.errors import SettingsError
from twokey.gateway.policy.rules import Policy
from twokey.gateway.policy_file import PolicyFile, followed, policy_of
from twokey.gateway.protocol.port import connected
from twokey.gateway.protocol.records import Person
from twokey.gateway.protocol.remote_runs import PendingCall
from twokey.gateway.remote.program import RemoteTwokey
from twokey.gateway.resume import langgraph_local
from twokey.gateway.resume.checkpoints import open_checkpoints
from twokey.gateway.resume.run_events import ThreadRef
from twokey.gateway.resume.run_rules import named_run, streamed, wait_at_most
from twokey.gateway.resume.runners import Runners
from twokey.gateway.resume.thread_runs import ThreadRuns
from twokey.gateway.resume.thread_watch import ThreadWatch
from twokey.gateway.retention import AUDIT_KEPT
from twokey.gateway.retrying import RetrySettings
from twokey.gateway.running import gateway_process, load_runners, load_triage, running
from twokey.gateway.service.agents import AgentService
from twokey.gateway.service.pending_calls import PendingCalls
from twokey.gateway.service.process_check import registered
from twokey.gateway.service.reviews import ReviewService
from twokey.gateway.store.open_store import open_store
from twokey.gateway.store.store import Store
from twokey.gateway.triage.asking import Triage, require_triage
from twokey.gateway.trust.keyring import Keyring, own_keyring
from twokey.gateway.webhooks.sending import sending_webhooks


class Twokey:
    """A gateway in this process: store, checkpoints, workers and the clock.

    Args:
        settings: all of ``twokey.yml``, instead of all that follows but ``triage``.
        triage: asked what the policy puts to it; None is what the settings name.
        policy: a policy, or the path of its file, which is followed when it changes.
        url: the store's address; None is an embedded server in ``data_dir``.
        secrets: all processes on one store have the same; none: those in ``data_dir``.
        shards, split_by_agent: see ``docs/machines.md``; never changed.
        encrypt_store: encrypt texts in the store (``docs/encryption.md``).
        data_dir: where the embedded server and the checkpoints live.
        checkpoints: a SQLite file or ``postgresql://`` URL instead of that.
        tenant: whose approvals these are.
        slots: how many threads are advanced at the same time.
        retries: how long a run that fails is retried; None is the default.
        audit_folder: of sealed parts of the audit log; None: all is in the store.
        ungated: agent to names of tools that may start ungated; `connected`: them all.
        insecure_dev: accept a store that would lose acknowledged decisions.
        keyring: signing keys; None: all roles sign here, with keys of ``data_dir``.

    Attributes:
        store: the open store.
        service: the gateway that agents of this process are connected to.
        reviews: what a chat front end may ask.
        registration: of this process among the others of the store.
    """

    store: Store
    service: AgentService
    reviews: ReviewService
    remote = RemoteTwokey
    """The gateway of another process: ``Twokey.remote("https://…", api_key=…)``."""

    def __init__(  # noqa: PLR0913 - what a program may say of its gateway, by name
        self,
        settings: Settings | None = None,
        *,
        triage: Triage | None = None,
        policy: Policy | Path | None = None,
        url: str | None = None,
        secrets: Sequence[bytes] = (),
        shards: int = 1,
        split_by_agent: bool = False,
        encrypt_store: bool = False,
        data_dir: Path = Path(".twokey"),
        checkpoints: str | None = None,
        tenant: str = "default",
        slots: int = 8,
        retries: RetrySettings | None = None,
        audit_folder: Path | None = None,
        ungated: Mapping[str, Collection[str]] | None = None,
        insecure_dev: bool = False,
        keyring: Keyring | None = None,
    ) -> None:
        check_arguments(locals())
        self._settings, self._stack = settings, AsyncExitStack()
        self._triage = triage and require_triage(triage, "what was given")
        self._policy = policy_of(settings, policy, is_split=split_by_agent)
        self._audit = settings.audit if settings else (AUDIT_KEPT, audit_folder)
        if settings is not None:
            data_dir, secrets = settings.data_dir, settings.secret_keys()
            url, slots, retries = settings.store_url, settings.workers, settings.retries
            ungated = {name: one.ungated for name, one in settings.agents.items()}
            shards, split_by_agent = settings.shards, settings.split_by_agent
            tenant, encrypt_store = settings.tenant, settings.encrypt_store
            checkpoints = settings.checkpoints.get_secret_value()
        keyring = keyring or own_keyring(settings, data_dir)
        self._open_store = partial(open_store, url, data_dir, keyring=keyring,
            secrets=secrets, shards=shards, tenant=tenant, encrypt=encrypt_store,
            split_by_agent=split_by_agent, insecure_dev=insecure_dev)  # fmt: skip
        self._checkpoints = checkpoints or str(data_dir / "checkpoints.sqlite")
        self._tenant, self._slots, self._retries = tenant, slots, retries
        self._runners, self._ungated = Runners(), ungated or {}
        self._saver: BaseCheckpointSaver[Any] | None = None

    async def __aenter__(self) -> Self:
        """Open everything and begin to work.

        Raises:
            StoreUnavailable: when there is no store.
            UnsafeStore: when the store would lose acknowledged decisions.
            SettingsError: when the checkpoints or the triage cannot be used.
            GraphError: when an agent of the settings cannot be loaded.
        """
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            self.store = await enter(self._open_store())
            self.store.retries = self._retries or self.store.retries
            self._saver = await enter(open_checkpoints(self._checkpoints))
            self._runners.saver = self._saver
            self.store.keep_audit(*self._audit)
            if self._settings is not None:
                self._runners.serve(await load_runners(self._settings, self._saver))
                self._triage = self._triage or await load_triage(self._settings)
                await enter(sending_webhooks(self._settings, self.store))
            serves = self._settings.agents if self._settings else ()
            process = await gateway_process(
                self._saver, self._checkpoints, tenant=self._tenant, serves=serves
            )
            self.registration = await enter(registered(self.store, process))
            if isinstance(self._policy, PolicyFile):
                await enter(followed(self._policy, self.store, tenant=self._tenant))
            watch = ThreadWatch(self.store, *self.store.parts_of(self._tenant))
            self.service = await enter(running(
                self.store, self._policy, self._runners, tenant=self._tenant,
                triage=self._triage, slots=self._slots, on_change=watch.notify,
            ))  # fmt: skip
            self.reviews = ReviewService(self.store, self._policy, tenant=self._tenant)
            self._calls = PendingCalls(self.store, self.service, tenant=self._tenant)
            self._threads = ThreadRuns(self.store, self.service, self._runners, watch)
            # Closed first: threads stop while store and checkpoints are open.
            stack.push_async_callback(self._threads.close)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_raised: object) -> None:
        """Let running threads stop, then close everything; approvals stay open."""
        await self._stack.aclose()

    def reload(self) -> None:
        """Read the policy file again and log the result; a change needs no call."""
        if isinstance(self._policy, PolicyFile):
            self._policy.reload()

    def connected(self) -> AbstractContextManager[None]:
        """Connect the agents that are run inside the block by other means.

        The process that runs their threads resumes them.
        """
        ungated = {tool for tools in self._ungated.values() for tool in tools}
        return connected(self.service, ungated=ungated)

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
        returns the result, whichever process ran it. The thread's last input is
        never given twice: to repeat the same words, give their message another
        ``id``. Another input begins a new turn and supersedes what waits.

        The thread is advanced with this graph, config and context until it is
        finished, or until it is run again with others. They live in this process: one
        that was restarted has to run the thread again to go on with it.

        Args:
            graph: a compiled graph, a `StateGraph`, or a function that returns one; its
                own checkpointer is used (ours builds only types of the state).
            input: what the graph takes, such as ``{"messages": [...]}``.
            thread_id: names the thread; the same for ever.
            agent: the agent's name, as ``ApprovalMiddleware(agent)`` has it.
            requester: who asked; they cannot approve what comes of it.
            origin: where in Slack they asked.
            timeout_s: how long to wait altogether; None waits as long as it takes. Only
                the wait ends then, or when the caller is cancelled: the thread goes on.
            config: of each step: callbacks, tags, ``configurable``, a recursion limit.
            context: of a graph with a ``context_schema``; approved tools get it too.

        Returns:
            The thread's final state; ``__interrupt__`` in it is a question of others.

        Raises:
            TimeoutError: when it takes longer; the thread goes on all the same.
            GraphError: when graph or config cannot be used, or the run was parked.
            ThreadUnavailable: when there is no thread and no input, or it was deleted.
        """
        langgraph_local.check_config(config or {}, thread_id)
        runner = await self._runner(graph, agent, config=config, context=context)
        at = self._thread_ref(agent, thread_id)
        await self._threads.remember(at, requester, origin)
        async with wait_at_most(timeout_s, thread_id):
            return await self._threads.run(at, runner, input)

    async def stream(  # noqa: PLR0913 - what `run` takes, and how to stream
        self,
        graph: object,
        input: object = None,  # noqa: A002 - LangGraph's own word
        *,
        thread_id: str,
        agent: str = "agent",
        stream_mode: StreamMode | Sequence[StreamMode] = "updates",
        subgraphs: bool = False,
        requester: Person | None = None,
        origin: Origin | None = None,
        config: RunnableConfig | None = None,
        context: object = None,
    ) -> AsyncGenerator[Any]:
        """Run a graph like `run`, and yield what its steps stream, across every wait.

        The chunks are those of LangGraph's ``astream`` with this ``stream_mode`` and
        ``subgraphs``. A held call shows as an ``__interrupt__`` of its step; `pending`
        describes it. The stream ends when the thread is finished; `wait` then returns
        its state. What another process advances is waited for and not streamed.
        Leaving the stream early ends nothing: the thread goes on.
        """
        langgraph_local.check_config(config or {}, thread_id)
        runner = await self._runner(graph, agent, config=config, context=context)
        at = self._thread_ref(agent, thread_id)
        await self._threads.remember(at, requester, origin)
        chunks = streamed(
            runner,
            lambda: self._threads.run(at, runner, input),
            stream_mode,
            subgraphs=subgraphs,
        )
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk

    async def wait(
        self,
        graph: object,
        *,
        thread_id: str,
        agent: str = "agent",
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Wait until a thread is finished, without running anything; see `run`.

        For a web application that comes back to a run; after a restart, `run` it again.

        Raises:
            TimeoutError: when it takes longer than ``timeout_s``.
            GraphError: when the graph cannot be used, or its thread was given up.
            ThreadUnavailable: when there is no such thread.
        """
        runner = await self._runner(graph, agent)
        async with wait_at_most(timeout_s, thread_id):
            return await self._threads.wait(self._thread_ref(agent, thread_id), runner)

    async def pending(
        self, *, thread_id: str, agent: str = "agent"
    ) -> tuple[PendingCall, ...]:
        """Return the calls of a thread, and inside its tools, that wait for people."""
        return await self._calls.of(self._thread_ref(agent, thread_id).run_ref)

    async def withdraw(
        self,
        *,
        thread_id: str,
        agent: str = "agent",
        item_ids: Collection[str] | None = None,
    ) -> tuple[str, ...]:
        """End calls that wait, because the program no longer wants them.

        Their cards say so, and the agent is told that they did not run.

        Args:
            thread_id: the thread.
            agent: the agent's name, as for `run`.
            item_ids: which (`PendingCall.item_id`); None means all that wait.

        Returns:
            The ids of those that were ended now.
        """
        run_ref = self._thread_ref(agent, thread_id).run_ref
        return await self._calls.withdraw(run_ref, item_ids)

    async def answers(
        self,
        interrupts: Sequence[Interrupt],
        *,
        thread_id: str,
        agent: str = "agent",
        timeout_s: float | None = 0.0,
    ) -> dict[str, Any]:
        """Return the answers to a graph's open questions, for ``Command(resume=...)``.

        For graphs that a program runs itself, inside `connected`.

        Args:
            interrupts: of the graph's result, or of the thread's state.
            thread_id: the thread.
            agent: the agent's name.
            timeout_s: how long to wait for the first answer; None is for ever.

        Returns:
            Interrupt id to answer; empty when nobody decided in time.

        Raises:
            GraphError: when the agent has another name, or an answer does not fit.
        """
        at = self._thread_ref(agent, thread_id)
        return await self._threads.answers(at, interrupts, timeout_s)

    async def delete(
        self, graph: object, *, thread_id: str, agent: str = "agent"
    ) -> None:
        """Delete a thread, and end what waits in it, inside its tools too.

        The cards say that the conversation moved on. What runs now is not stopped. A
        thread that is not there is no error.

        Args:
            graph: as for `run`.
            thread_id: the thread.
            agent: the agent's name, as for `run`.

        Raises:
            GraphError: when the graph cannot be used.
            ThreadUnavailable: while somebody runs it; nothing was deleted.
        """
        runner = await self._runner(graph, agent)
        await self._threads.delete(self._thread_ref(agent, thread_id), runner)

    async def _runner(
        self,
        graph: object,
        agent: str,
        *,
        config: RunnableConfig | None = None,
        context: object = None,
    ) -> langgraph_local.LangGraphLocal:
        saver = self._require_open()
        self.registration.add_agent(agent)
        return await langgraph_local.local_runner(
            graph,
            f"graph of {agent}",
            saver,
            agent=agent,
            config=config,
            context=context,
            ungated=self._ungated.get(agent, ()),
        )

    def _thread_ref(self, agent: str, thread: str) -> ThreadRef:
        self._require_open()
        run = named_run(agent, thread)
        return ThreadRef.of(self.store, self._tenant, run)

    def _require_open(self) -> BaseCheckpointSaver[Any]:
        if self._saver is None:
            raise SettingsError("Use Twokey as: async with Twokey(...) as tk: ...")
        return self._saver

"""Embedded mode (`Keyturn`): run agents behind approvals in any asyncio program.

    async with Keyturn(policy=Path("policy.yml")) as tk:
        final = await tk.run(graph, {"messages": [...]}, thread_id="order-78291")

The wait is durable. After any end of this program, the same call continues from the
thread's saved state: decisions from the meantime are carried out, and executed calls
are not executed again. A bot shows cards, in this program or another, on the same
store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from langgraph.checkpoint.base import BaseCheckpointSaver
from pydantic import ValidationError
from typing_extensions import override

from keyturn.gateway.approvals.events import Event
from keyturn.gateway.arguments import (
    check_agent_names,
    check_ungated,
    is_a,
    require_secret,
)
from keyturn.gateway.clock import now_s
from keyturn.gateway.config import Settings, SettingsFile
from keyturn.gateway.dialects.asked import Question
from keyturn.gateway.errors import (
    GraphError,
    SettingsError,
    StoreUnavailable,
    ThreadUnavailable,
)
from keyturn.gateway.failures import any_failure
from keyturn.gateway.policy.evaluate import never_asks
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.policy_file import PolicyFile, followed, policy_of
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.resume.checkpoints import identity_of, open_checkpoints
from keyturn.gateway.resume.diagnosis import diagnose, is_limit
from keyturn.gateway.resume.graphs import (
    IsFree,
    attached,
    check_name,
    load_graph,
    made_by,
    named,
)
from keyturn.gateway.resume.langgraph_local import Runner, Runners
from keyturn.gateway.resume.ledger import ledger_of
from keyturn.gateway.resume.program import Program
from keyturn.gateway.resume.program_runs import (
    Drive,
    GivenUp,
    ProgramRuns,
    ThreadChanges,
    input_key,
    next_change,
)
from keyturn.gateway.resume.recovery import TICK_S, RecoveryLoop
from keyturn.gateway.resume.retries import Retries
from keyturn.gateway.resume.store_threads import StoreThreads
from keyturn.gateway.resume.threads import Answers, ThreadChange, ThreadState
from keyturn.gateway.resume.transient_retry import (
    AUDIT_S,
    FORGET_S,
    MEND_S,
    SWEEP_S,
    InputNotGiven,
    repeat,
    retry_transient,
)
from keyturn.gateway.resume.worker import Worker, ignore
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.service.people.freezing import FreezeService
from keyturn.gateway.service.report.audit_writing import AuditWriter, end_audit
from keyturn.gateway.service.report.event_feed import EventFeed
from keyturn.gateway.service.report.process_check import process_name, registered
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.service.run.sweep import Sweeper
from keyturn.gateway.setting_forms import RetrySettings
from keyturn.gateway.store.connection.connection import Ledger
from keyturn.gateway.store.connection.usable import until_usable
from keyturn.gateway.store.runs.jobs import Job, RunState
from keyturn.gateway.store.runs.processes import ProcessInfo
from keyturn.gateway.store.store import Store, open_store
from keyturn.gateway.triage.asking import Triage, require_triage
from keyturn.gateway.trust.key_folder import Keyring, Role
from keyturn.gateway.validation_errors import sentence

if TYPE_CHECKING:
    from keyturn.gateway.remote.program import RemoteKeyturn

logger = logging.getLogger(__name__)


async def load_runners(
    settings: Settings, saver: BaseCheckpointSaver[Any], policy: Policy | None
) -> dict[str, Runner]:
    """Load the graph of every agent in the settings.

    Args:
        settings: name the graphs.
        saver: keeps the threads.
        policy: in force now; None if nothing runs.

    Raises:
        GraphError: one sentence about the first unusable agent.
    """
    runners: dict[str, Runner] = {}
    for name, agent in settings.agents.items():
        # An import may take half a minute, so log its begin.
        logger.info("agent.importing agent=%s graph=%s", name, agent.graph)
        own_gate = own_gate_of(name, policy) if agent.own_gate else None
        graph = await load_graph(agent.graph, settings.folder, agent.ungated, own_gate)
        check_name(graph, name)
        runners[name] = Runner(
            attached(graph, saver), agent=name, ungated=agent.ungated, hands_over=True
        )
    return runners


def check_own_gates(
    settings: Settings, runners: Mapping[str, Runner], policy: Policy
) -> None:
    """Check that loaded agents with their own gate fit another policy.

    One tool that does not fit refuses the whole policy: the graph would run its calls
    by itself, so they cannot be refused one by one.

    Raises:
        GraphError: the policy puts a tool to people, and its agent does not ask.
    """
    for name, agent in settings.agents.items():
        if agent.own_gate:
            runners[name].check_gates(agent.graph, own_gate_of(name, policy))


def own_gate_of(agent: str, policy: Policy | None) -> IsFree:
    """Return which tools of an agent with its own gate the policy puts to nobody."""
    return lambda tool: policy is None or never_asks(policy, agent=agent, tool=tool)


async def load_triage(settings: Settings) -> Triage | None:
    """Load the triage of the settings; None without one.

    The name may be an object with a coroutine ``assess``, or a class or function
    without arguments that returns one, synchronous or not.

    Raises:
        SettingsError: one sentence with the missing part or the failure.
    """
    ref = settings.triage
    if ref is None:
        return None
    try:
        found = named(ref, settings.policy.path.parent.resolve(), what="triage")
        if isinstance(found, type) or not hasattr(found, "assess"):
            found = await made_by(found, ref, what="triage")
    except GraphError as error:
        raise SettingsError(f"'triage': {error}") from error
    return require_triage(found, repr(ref))


async def gateway_process(
    saver: BaseCheckpointSaver[Any], place: str, *, tenant: str, serves: Collection[str]
) -> ProcessInfo:
    """Return a gateway's description of itself for other processes.

    Args:
        saver: keeps the threads.
        place: path or URL that the saver was opened with.
        tenant: owner of the agents.
        serves: agents of which every thread is advanced.
    """
    where, names = process_name(), tuple(serves)
    process = ProcessInfo(role="gateway", where=where, tenant=tenant, serves=names)
    return process.with_(**await identity_of(saver, place))


@asynccontextmanager
async def running(
    store: Store,
    policy: Callable[[], Policy],
    runners: Runners,
    *,
    tenant: str = "default",
    triage: Triage | None = None,
    slots: int = 8,
    on_change: Callable[[ThreadChange], None] = ignore,
) -> AsyncGenerator[AgentService]:
    """Run workers and sweeps while the block runs; then stop with grace.

    Yields:
        The gateway of this process's agents.
    """
    gateway = AgentService(store, policy, tenant=tenant, triage=triage)
    retried = Retries(store, tenant=tenant)
    worker = Worker(
        store,
        gateway,
        runners,
        retried,
        policy,
        tenant=tenant,
        slots=slots,
        on_change=on_change,
    )
    recovery = RecoveryLoop(store, runners, tenant=tenant)
    # Before the first job: a store restored from an older copy must not run a call
    # again that has already run.
    await recovery.begin()
    keys = store.keys_of_tenant(tenant)
    writers = [AuditWriter(store, keys)] if store.keeps_tree else []
    freezes = FreezeService(store, tenant=tenant)
    await until_usable(partial(_compare_freezes, writers, freezes), store.conn.url)
    sweeper, stop = Sweeper(store, tenant=tenant), asyncio.Event()
    steps: list[tuple[Callable[[], Awaitable[object]], float]] = [
        (recovery.tick, TICK_S),
        (freezes.mend, MEND_S),
        (sweeper.sweep, SWEEP_S),
        (retried.forget_old, FORGET_S),
        *((writer.tick, AUDIT_S) for writer in writers),
    ]
    if store.conn.ledger is not None:
        steps.append((partial(forget_attempts, store, store.conn.ledger), FORGET_S))
    tasks = [
        asyncio.create_task(worker.run(stop)),
        *(asyncio.create_task(repeat(step, stop, every_s=s)) for step, s in steps),
    ]
    try:
        yield gateway
    finally:
        stop.set()
        await asyncio.gather(*tasks)
        await end_audit(writers)


async def _compare_freezes(
    writers: Iterable[AuditWriter], freezes: FreezeService
) -> None:
    # Include the entries that the previous process left in the stream.
    for writer in writers:
        await writer.tick()
    await freezes.mend()


async def forget_attempts(store: Store, ledger: Ledger) -> None:
    """Delete ledger rows that no record can use any more."""
    # The earlier of two clocks: a store whose clock is far ahead, or a foreign store,
    # would make the gateway forget spent attempts.
    await ledger.forget(min(await store.conn.now_ms(""), round(now_s() * 1000)))


class _Remote:
    # A tenth of the time of `from keyturn import Keyturn` would go into aiohttp, which
    # only remote programs and webhooks use.
    def __get__(self, instance: object, owner: object) -> type[RemoteKeyturn]:
        from keyturn.gateway.remote.program import RemoteKeyturn  # noqa: PLC0415

        return RemoteKeyturn


class Keyturn(Program):
    """A gateway in this process: store, checkpoints, workers and the periodic sweep.

    Args:
        settings: all of ``keyturn.yml``, instead of ``policy`` to ``own_gate``.
        triage: assesses calls that the policy selects; None: as in the settings.
        policy: a policy, or the path of its file, which is reloaded when it changes.
        url: the store's address; None is an embedded server in ``data_dir``.
        secrets: the same in all processes on one store; none: those in ``data_dir``.
        encrypt_store: encrypt texts in the store (``docs/encryption.md``).
        data_dir: folder of the embedded server and the checkpoints.
        checkpoints: another SQLite file or a ``postgresql://`` URL.
        tenant: owner of the approvals.
        slots: number of threads that are advanced at the same time.
        retries: retry limits for failed runs; None is the default.
        audit_folder: of the audit log, which leaves the store; None: it stays as well.
        ungated: agent to names of tools that may start ungated; `connected` uses all.
        own_gate: names of the agents whose own middleware asks people.
        insecure_dev: accept a store that would lose acknowledged decisions.
        keyring: signing keys; None: all roles sign here, with keys of ``data_dir``.

    Attributes:
        store: the open store.
        service: the gateway of this process's agents.
        reviews: the service for a chat front end.
        registration: of this process among the others of the store.
    """

    store: Store
    service: AgentService
    reviews: ReviewService
    remote = _Remote()
    """A gateway in another process: ``Keyturn.remote("https://…", api_key=…)``."""

    def __init__(  # noqa: PLR0913 - one keyword for each option
        self,
        settings: Settings | None = None,
        *,
        triage: Triage | None = None,
        policy: Policy | Path | None = None,
        url: str | None = None,
        secrets: Sequence[bytes] = (),
        encrypt_store: bool = False,
        data_dir: Path = Path(".keyturn"),
        checkpoints: str | None = None,
        tenant: str = "default",
        slots: int = 8,
        retries: RetrySettings | None = None,
        audit_folder: Path | None = None,
        ungated: Mapping[str, Collection[str]] | None = None,
        own_gate: Collection[str] = (),
        insecure_dev: bool = False,
        keyring: Keyring | None = None,
    ) -> None:
        self._triage = triage and require_triage(triage, "what was given")
        self._policy = policy_of(settings, policy)
        check_ungated(ungated)
        are_secrets = is_a(secrets, Sequence) and all(
            one and is_a(one, bytes) for one in secrets
        )
        needed = "give a list of bytes that are not empty, as token_bytes(32)"
        require_secret(are_secrets, "secrets", secrets, needed)
        given = {
            "tenant": tenant,
            "redis_url": url,
            "encrypt_store": encrypt_store,
            "workers": slots,
            "retries": retries or RetrySettings(),
            "data_dir": data_dir,
            "checkpoints": checkpoints,
            "audit_folder": audit_folder,
        }
        self._settings = settings or settings_of(given)
        self._has_settings, self._secrets = settings is not None, secrets
        self._ungated = ungated or {
            name: one.ungated for name, one in self._settings.agents.items()
        }
        check_agent_names("own_gate", own_gate)
        self._own_gate = own_gate or {
            name for name, one in self._settings.agents.items() if one.own_gate
        }
        self._keyring = keyring or Keyring.of(self._settings, *Role)
        self._insecure_dev, self._stack = insecure_dev, AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Open everything and begin to work.

        Raises:
            StoreUnavailable: there is no store.
            UnsafeStore: the store would lose acknowledged decisions.
            SettingsError: the checkpoints or the triage cannot be used.
            GraphError: an agent of the settings cannot be loaded.
        """
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            settings, tenant = self._settings, self._settings.tenant
            place = settings.checkpoint_place
            self.store = await enter(
                open_store(
                    settings.store_url,
                    settings.data_dir,
                    secrets=self._secrets or settings.secret_keys(),
                    tenant=tenant,
                    insecure_dev=self._insecure_dev,
                    keyring=self._keyring,
                    encrypt=settings.encrypt_store,
                )
            )
            self.store.retries = settings.retries
            self._saver = await enter(open_checkpoints(place))
            await enter(ledger_of(self.store, place))
            self.store.keep_audit(*settings.audit)
            agents = await load_runners(settings, self._saver, self._policy())
            triage = self._triage or await load_triage(settings)
            if self._has_settings:
                from keyturn.gateway.webhooks import sending_webhooks  # noqa: PLC0415

                # Without them, the readers of another gateway's targets stay.
                await enter(sending_webhooks(settings, self.store))
            self._runners = Runners(agents, self._saver)
            process = await gateway_process(
                self._saver, place, tenant=tenant, serves=agents
            )
            self.registration = await enter(registered(self.store, process))
            if isinstance(self._policy, PolicyFile):
                self._policy.check = partial(check_own_gates, settings, agents)
                await enter(followed(self._policy, self.store, tenant=tenant))
            self.service = await enter(running(
                self.store, self._policy, self._runners, tenant=tenant,
                triage=triage, slots=settings.workers, on_change=self._notify,
            ))  # fmt: skip
            self.reviews = ReviewService(self.store, self._policy, tenant=tenant)
            self._runs = ThreadRuns(
                self.store, self.service, self._runners, tenant=tenant
            )
            # Closed first: threads stop while store and checkpoints are open.
            stack.push_async_callback(self._runs.close)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_raised: object) -> None:
        """Wait for running threads, then close everything; approvals stay open."""
        await self._stack.aclose()

    def _notify(self, change: ThreadChange) -> None:
        if self._runs is not None:
            self._runs.notify(change)

    @override
    def _own_gate_of(self, agent: str) -> IsFree:
        return own_gate_of(agent, self._policy())

    @override
    def _serves(self, agent: str) -> None:
        self.registration.add_agent(agent)


class ThreadRuns(ProgramRuns):
    """Threads of a program in the process that has the store.

    Args:
        store: leases and events.
        gateway: the agents' gateway.
        runners: keeps the runner of a thread until the thread has ended.
        tenant: owner of these threads.
    """

    # Once a thread has its input, the workers try its step again.
    retried = (InputNotGiven, StoreUnavailable, ThreadUnavailable)

    def __init__(
        self, store: Store, gateway: AgentService, runners: Runners, *, tenant: str
    ) -> None:
        threads = StoreThreads(store, gateway, tenant=tenant)
        super().__init__(gateway, threads, store.retries)
        self._store = store
        self._tenant = tenant
        self._runners = runners
        self._feed = EventFeed(store, tenant=tenant)
        self._stalled = Retries(store, tenant=tenant)

    @override
    @asynccontextmanager
    async def _changes(self, run: RunRef) -> AsyncGenerator[ThreadChanges]:
        """See `ProgramRuns._changes`; also of changes by other processes."""

        def hear(event: Event) -> bool:
            if event.run_ref == run:
                queue.put_nowait(ThreadChange(run.agent, run.thread))
            return False  # the feed keeps no event

        async with AsyncExitStack() as following, super()._changes(run) as queue:
            follow = self._feed.following
            await retry_transient(lambda: following.enter_async_context(follow(hear)))
            yield queue

    @override
    async def _parked(self, run: RunRef) -> str | None:
        found = await self._stalled.find_parked(run)
        return None if found is None else found.reason

    @override
    async def _answers(
        self, run: RunRef, asked: Sequence[Question], wait_s: float
    ) -> Answers:
        # Otherwise the job of each decision would be offered again for ever.
        self._runners.leave(run.agent, run.thread)
        async with self._changes(run) as changes:
            found = await self.threads.answers(run, asked)
            if wait_s and not found.ready:
                await next_change(changes, within_s=wait_s)
                self._raise_if_closed(run)
                found = await self.threads.answers(run, asked)
            return found

    @override
    async def delete(self, run: RunRef, runner: Runner) -> None:
        """See `ProgramRuns.delete`."""
        await super().delete(run, runner)
        self.notify(ThreadChange(run.agent, run.thread))

    @override
    async def _forget(self, run: RunRef) -> None:
        keys = self._store.keys_of_tenant(self._tenant)
        await self._store.threads.end_run(keys, run.agent, run.thread)
        self._runners.release(run.agent, run.thread)

    @override
    async def close(self) -> None:
        """See `ProgramRuns.close`."""
        await super().close()
        await self._feed.aclose()

    @override
    async def _advance(self, drive: Drive) -> ThreadState | None:
        run = drive.run
        self._runners.keep(run.agent, run.thread, drive.runner)
        try:
            state = await super()._advance(drive)
        except ThreadUnavailable:
            raise
        except any_failure() as error:  # raised again, unless it can pass
            await self._failed(drive, error)
            return None
        await self._stalled.record_resumed(run, None, drive.runner)
        if state is not None and (state.is_finished or not state.exists):
            self._runners.release(run.agent, run.thread)
        return state

    async def _failed(self, drive: Drive, error: BaseException) -> None:
        """Hand a thread over to the workers for retries, or raise the error.

        Raises:
            InputNotGiven: the thread does not have its input yet.
        """
        can_pass, given = diagnose(error).can_pass, drive.given
        try:
            state = await drive.runner.probe(drive.run.thread)
        except Exception as unread:
            if can_pass and diagnose(unread).can_pass:
                raise InputNotGiven from error
            raise error from unread
        # Without its input a worker cannot continue the thread.
        if not state.exists or (given is not None and state.taken != input_key(given)):
            if can_pass:
                raise InputNotGiven from error
            raise error
        run = drive.run
        left = Job.to_resume(self._tenant, run.agent, run.thread)
        kept = await self._stalled.failed(run, error, left=left, is_last=not can_pass)
        if kept is not None and kept.state is RunState.PARKED and is_limit(error):
            # The same error as when a worker reaches the limit after a decision.
            raise GivenUp(drive.run, kept.reason) from error
        if kept is None or kept.state is RunState.PARKED:
            raise error


_ARGUMENTS = {"redis_url": "url", "workers": "slots"}
"""Settings to the arguments of `Keyturn` with another name."""


def settings_of(given: Mapping[str, object]) -> Settings:
    """Return the settings of a gateway that is configured by arguments.

    Raises:
        SettingsError: names the first unusable argument and the next step.
    """
    try:
        found = SettingsFile.model_validate(given, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        setting = str(first["loc"][0])
        raise SettingsError(
            f"{_ARGUMENTS.get(setting, setting)}= cannot be used: "
            f"{sentence(first, SettingsFile)}"
        ) from error
    return Settings.model_construct(**vars(found))

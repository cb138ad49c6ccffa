"""Embedded mode (`Keyturn`): run agents behind approvals in any asyncio program.

    async with Keyturn(policy=Path("policy.yml")) as tk:
        final = await tk.run(graph, {"messages": [...]}, thread_id="order-78291")

The wait is durable. After any end of this program, the same call continues from the
thread's saved state: decisions from the meantime are carried out, and executed calls
are not executed again. A bot shows cards, in this program or another, on the same
store.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import override

from keyturn.gateway.approvals.events import Event
from keyturn.gateway.arguments import check_ungated, require, require_secret
from keyturn.gateway.config import MAX_WORKERS, Settings
from keyturn.gateway.errors import StoreUnavailable, ThreadUnavailable
from keyturn.gateway.failures import any_failure
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.policy_file import PolicyFile, followed, policy_of
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.remote.program import RemoteKeyturn
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.diagnosis import diagnose, is_limit
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
from keyturn.gateway.resume.retries import Retries
from keyturn.gateway.resume.store_threads import StoreThreads, ThreadRef
from keyturn.gateway.resume.thread_state import (
    Answers,
    PendingInterrupt,
    ThreadChange,
    ThreadState,
)
from keyturn.gateway.resume.transient_retry import InputNotGiven, retry_transient
from keyturn.gateway.running import gateway_process, load_runners, load_triage, running
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.service.report.event_feed import EventFeed
from keyturn.gateway.service.report.process_check import registered
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.setting_forms import AUDIT_KEPT, RetrySettings, TenantName
from keyturn.gateway.store.open_store import open_store
from keyturn.gateway.store.runs.jobs import Job
from keyturn.gateway.store.runs.stalled import RunState
from keyturn.gateway.store.store import Store
from keyturn.gateway.triage.asking import Triage, require_triage
from keyturn.gateway.trust.key_folder import Keyring, own_keyring
from keyturn.gateway.webhooks import sending_webhooks


class Keyturn(Program):
    """A gateway in this process: store, checkpoints, workers and the periodic sweep.

    Args:
        settings: all of ``keyturn.yml``, instead of ``policy`` to ``ungated``.
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
    remote = RemoteKeyturn
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
        insecure_dev: bool = False,
        keyring: Keyring | None = None,
    ) -> None:
        check_arguments(locals())
        self._settings, self._stack = settings, AsyncExitStack()
        self._triage = triage and require_triage(triage, "what was given")
        self._policy = policy_of(settings, policy)
        self._audit = settings.audit if settings else (AUDIT_KEPT, audit_folder)
        if settings is not None:
            data_dir, secrets = settings.data_dir, settings.secret_keys()
            url, slots, retries = settings.store_url, settings.workers, settings.retries
            ungated = {name: one.ungated for name, one in settings.agents.items()}
            tenant, encrypt_store = settings.tenant, settings.encrypt_store
            checkpoints = settings.checkpoint_place
        keyring = keyring or own_keyring(settings, data_dir)
        self._open_store = partial(open_store, url, data_dir, keyring=keyring,
            secrets=secrets, tenant=tenant, encrypt=encrypt_store,
            insecure_dev=insecure_dev)  # fmt: skip
        self._checkpoints = checkpoints or str(data_dir / "checkpoints.sqlite")
        self._tenant, self._slots, self._retries = tenant, slots, retries
        self._ungated, self._folder = ungated or {}, data_dir

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
            self.store = await enter(self._open_store())
            self.store.retries = self._retries or self.store.retries
            self._saver = await enter(open_checkpoints(self._checkpoints))
            await enter(ledger_of(self.store, self._checkpoints, self._folder))
            self.store.keep_audit(*self._audit)
            agents: dict[str, Runner] = {}
            if self._settings is not None:
                agents = await load_runners(self._settings, self._saver)
                self._triage = self._triage or await load_triage(self._settings)
                await enter(sending_webhooks(self._settings, self.store))
            self._runners = Runners(agents, self._saver)
            process = await gateway_process(self._saver, self._checkpoints,
                tenant=self._tenant, serves=agents)  # fmt: skip
            self.registration = await enter(registered(self.store, process))
            if isinstance(self._policy, PolicyFile):
                await enter(followed(self._policy, self.store, tenant=self._tenant))
            self.service = await enter(running(
                self.store, self._policy, self._runners, tenant=self._tenant,
                triage=self._triage, slots=self._slots, on_change=self._notify,
            ))  # fmt: skip
            self.reviews = ReviewService(self.store, self._policy, tenant=self._tenant)
            self._runs = ThreadRuns(
                self.store, self.service, self._runners, tenant=self._tenant
            )
            # Closed first: threads stop while store and checkpoints are open.
            stack.push_async_callback(self._runs.close)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_raised: object) -> None:
        """Wait for running threads, then close everything; approvals stay open."""
        await self._stack.aclose()

    def reload(self) -> None:
        """Read the policy file again and log the result; a change needs no call."""
        if isinstance(self._policy, PolicyFile):
            self._policy.reload()

    def _notify(self, change: ThreadChange) -> None:
        if self._runs is not None:
            self._runs.notify(change)

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
        self,
        store: Store,
        gateway: AgentService,
        runners: Runners,
        *,
        tenant: str,
    ) -> None:
        threads = StoreThreads(store, gateway, tenant=tenant)
        super().__init__(gateway, threads, store.retries)
        self._store = store
        self._tenant = tenant
        self._runners = runners
        self._feed = EventFeed(store, tenant=tenant)
        self._stalled = Retries(store)

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
        found = await self._stalled.find_parked(self._at(run))
        return None if found is None else found.reason

    @override
    async def _answers(
        self, run: RunRef, asked: Sequence[PendingInterrupt], wait_s: float
    ) -> Answers:
        # Otherwise the job of each decision would be offered again for ever.
        self._runners.leave(run.agent, run.thread)
        async with self._changes(run) as changes:
            found = await self.threads.answers(run, asked)
            if wait_s and not found.ready and not found.unfit:
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
        keys = self._at(run).keys
        await self._store.threads.end_run(keys, run.agent, run.thread)
        self._runners.release(run.agent, run.thread)

    @override
    async def close(self) -> None:
        """See `ProgramRuns.close`."""
        await super().close()
        await self._feed.close()

    def _at(self, run: RunRef) -> ThreadRef:
        return ThreadRef.of(self._store, self._tenant, run)

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
        await self._stalled.record_resumed(self._at(run), None, drive.runner)
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
        at = self._at(drive.run)
        left = Job.to_resume(at.tenant, at.agent, at.thread)
        kept = await self._stalled.failed(at, error, left=left, is_last=not can_pass)
        if kept is not None and kept.state is RunState.PARKED and is_limit(error):
            # The same error as when a worker reaches the limit after a decision.
            raise GivenUp(drive.run, kept.reason) from error
        if kept is None or kept.state is RunState.PARKED:
            raise error


class _Arguments(BaseModel):
    """The arguments of `Keyturn`; a description is a usable value, in words."""

    model_config = ConfigDict(strict=True, arbitrary_types_allowed=True)

    settings: Settings | None = Field(
        description="give what Settings.load returns, or policy=Path('…')"
    )
    policy: Policy | Path | None = Field(
        description="give the path of the file, Path('policy.yml')"
    )
    url: str | None = Field(description="give an address as text")
    secrets: Sequence[Annotated[bytes, Field(min_length=1)]] = Field(
        description="give a list of bytes that are not empty, as token_bytes(32)"
    )
    encrypt_store: bool = Field(description="give True or False")
    insecure_dev: bool = Field(description="give True or False")
    data_dir: Path = Field(description="give the path of a folder, Path('.keyturn')")
    checkpoints: str | None = Field(description="give an address as text")
    tenant: TenantName = Field(
        description=f"give {get_args(TenantName)[1].description}"
    )
    slots: int = Field(
        ge=1, le=MAX_WORKERS, description=f"give a whole number from 1 to {MAX_WORKERS}"
    )
    retries: RetrySettings | None = Field(description="give RetrySettings(limit='1h')")
    audit_folder: Path | None = Field(
        description="give the path of a folder, Path('audit')"
    )
    keyring: Keyring | None = Field(description="give a Keyring, or leave it out")


_SECRET = frozenset({"url", "checkpoints", "secrets"})
"""Arguments that may contain a password."""


def check_arguments(given: Mapping[str, object]) -> None:
    """Check the arguments of `Keyturn(...)` by their names.

    Raises:
        SettingsError: names the first unusable argument and the next step.
    """
    check_ungated(given["ungated"])
    fields = _Arguments.model_fields
    try:
        _Arguments.model_validate({name: given[name] for name in fields})
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        refuse = require_secret if name in _SECRET else require
        refuse(
            is_usable=False,
            name=name,
            given=given[name],
            needed=str(fields[name].description),
        )

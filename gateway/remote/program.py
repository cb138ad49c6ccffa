"""Remote mode (`Keyturn.remote`): run agents with a gateway in another process.

    async with Keyturn.remote("https://gateway.example.com", api_key=key) as tk:
        final = await tk.run(graph, {"messages": [...]}, thread_id="order-78291")

The program has a URL and an API key: no store, no Slack, and no means to approve a
call. Its graphs keep their threads with their own checkpointer, and the program
advances them itself, as `Keyturn` does in a process with the store.

Theory of operation. Each run has one task here, its drive. The drive takes the lease,
advances the thread until it waits or ends, releases the lease, and waits with a long
poll for the next answer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from functools import partial
from typing import Self

from pydantic import ValidationError
from typing_extensions import override

from keyturn.gateway.arguments import check_agent_names, check_ungated
from keyturn.gateway.client.http_gateway import HttpGateway, address_of
from keyturn.gateway.dialects.asked import Question
from keyturn.gateway.errors import (
    GraphError,
    KeyRefused,
    KeyturnError,
    NotAllowed,
    NotVerified,
    SettingsError,
)
from keyturn.gateway.protocol import http_api, run_context
from keyturn.gateway.protocol.http_api import Gateway, HandingGateway
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.resume import program_runs
from keyturn.gateway.resume.program import Program
from keyturn.gateway.resume.program_runs import BUSY_S, ProgramRuns, ThreadChanges
from keyturn.gateway.resume.threads import (
    Answers,
    ThreadChange,
    Threads,
    ThreadState,
    questions_of,
)
from keyturn.gateway.resume.transient_retry import retry_transient
from keyturn.gateway.secret_variables import secret
from keyturn.gateway.setting_forms import RetrySettings
from keyturn.gateway.store.runs.leases import held
from keyturn.gateway.store.scripts.fences import Lease
from keyturn.gateway.trust.webhook_signatures import (
    DECIDED,
    WebhookBody,
    parse_webhook_secret,
    verify_webhook,
)

logger = logging.getLogger(__name__)

SECRET_VARIABLE = "KEYTURN_WEBHOOK_SECRET"  # noqa: S105 - its name


class WebhookVerifier:
    """Accepts webhooks signed with one of the secrets, within five minutes.

    Args:
        secrets: ``whsec_…`` each; None: those in ``KEYTURN_WEBHOOK_SECRET``, separated
            by commas.
        clock_s: Unix seconds.

    Raises:
        SettingsError: one of them is not a secret; it is not shown.
    """

    def __init__(
        self,
        secrets: Sequence[str] | None,
        *,
        clock_s: Callable[[], float] = time.time,  # noqa: TID251 - the sender's clock is another machine's
    ) -> None:
        if secrets is None:
            secrets = secret(os.environ, SECRET_VARIABLE).split(",")
        try:
            self._keys = [
                parse_webhook_secret(one.strip()) for one in secrets if one.strip()
            ]
        except NotVerified as error:
            raise SettingsError(
                "A secret of webhooks is not what `keyturn webhooks secret` prints "
                f"(whsec_…); see webhook_secrets= and {SECRET_VARIABLE}."
            ) from error
        self._clock_s = clock_s

    def verify(self, headers: Mapping[str, str], body: bytes) -> WebhookBody:
        """Verify a message and return its content.

        Raises:
            NotVerified: it is not from the gateway, or is too old.
            SettingsError: this program has no secret.
        """
        if not self._keys:
            raise SettingsError(
                "This program has no secret to verify webhooks with: pass "
                f"webhook_secrets=, or set {SECRET_VARIABLE}, to what "
                "`keyturn webhooks secret` prints."
            )
        verify_webhook(headers, body, keys=self._keys, now_s=self._clock_s())
        try:
            return WebhookBody.model_validate_json(body)
        except ValidationError as error:
            raise NotVerified("malformed", "it says nothing that is known") from error


class RemoteThreads(Threads):
    """The threads of this process, through a gateway's API; see `Threads`.

    A gateway gets no notice of the begin and end of runs in another process: its
    middleware supersedes waiting calls, and `rests` ends the others.

    Args:
        gateway: the agents' gateway.
    """

    polls = True

    def __init__(self, gateway: HttpGateway) -> None:
        super().__init__()
        self._gateway = gateway
        self._connection = gateway.connection

    @property
    @override
    def gateway(self) -> HandingGateway:
        """See `Threads.gateway`."""
        return self._gateway

    @property
    def url(self) -> str:
        """Return the address of the gateway."""
        return self._connection.url

    @override
    @asynccontextmanager
    async def lease(self, run: RunRef) -> AsyncGenerator[Lease]:
        """Acquire the right to run a thread; it may end inside the block at any time.

        The lease fences requests to the gateway inside the block, and writes to the
        checkpoints.

        Raises:
            ThreadUnavailable: another process runs this thread.
            StoreUnavailable: the gateway does not answer.
        """
        async with held(partial(self.lease_step, run)) as lease:
            with run_context.under_lease(
                lambda: http_api.LeaseRef(run, lease.token, lease.fence).text
            ):
                yield lease

    async def lease_step(
        self, run: RunRef, verb: http_api.LeaseVerb, token: str, above: int = 0
    ) -> http_api.LeaseReply:
        """Take, keep, renumber or release the right to run a thread."""
        question = http_api.LeaseQuestion(run=run, verb=verb, token=token, above=above)
        return await self._connection.ask(http_api.LEASE, question)

    @override
    async def found(
        self,
        run: RunRef,
        questions: Sequence[http_api.OpenQuestion],
        *,
        wait_s: float = 0.0,
    ) -> Mapping[http_api.OpenQuestion, tuple[JsonObject, int]]:
        """Return the answers to questions; wait for the first one.

        The wait may end early without any: ask again.
        """
        if not questions:
            return {}
        question = http_api.AnswersQuestion(
            run=run, questions=tuple(questions), wait_s=wait_s
        )
        try:
            answered = await self._gateway.answers(question)
        except KeyRefused:
            raise
        except NotAllowed as error:
            # For instance if the agent's name in its middleware differs from the
            # program's.
            raise GraphError(str(error)) from error
        return {one.question: (one.answer, one.times) for one in answered}

    @override
    async def ends(self, run: RunRef) -> None:
        """See `Threads.ends`."""
        await self._connection.ask(
            http_api.SUPERSEDE_RUN, http_api.RunQuestion(run=run)
        )

    @override
    async def settle(
        self, run: RunRef, asked: Collection[str], *, is_finished: bool
    ) -> None:
        """Report a resting thread's questions; its other waiting calls are ended."""
        question = http_api.SettleQuestion(
            run=run, asked=frozenset(asked), is_finished=is_finished
        )
        await self._connection.ask(http_api.SETTLE, question)

    async def pending(self, run: RunRef) -> tuple[http_api.PendingCall, ...]:
        """Return the calls of a run that wait for reviewers, oldest first."""
        return await self._connection.ask(
            http_api.PENDING, http_api.RunQuestion(run=run)
        )

    async def withdraw(
        self, run: RunRef, item_ids: Collection[str] | None = None
    ) -> tuple[str, ...]:
        """End waiting calls of a run; return the ids of the ended calls."""
        return await self._gateway.withdraw(run, item_ids)

    async def remember(self, facts: http_api.RunFacts) -> None:
        """Report a thread's origin and its requester, who cannot approve its calls."""
        await self._gateway.remember(facts)


class RemoteThreadRuns(ProgramRuns):
    """Threads that a program runs with a gateway in another process.

    No worker of the gateway has the graphs, so this process resumes the threads.
    """

    resumes_threads = True

    def __init__(
        self, gateway: Gateway, threads: RemoteThreads, retries: RetrySettings
    ) -> None:
        super().__init__(gateway, threads, retries, threads.url)
        self._asks = threads

    @override
    async def _answers(
        self, run: RunRef, asked: Sequence[Question], wait_s: float
    ) -> Answers:
        look = partial(self._asks.found, run, questions_of(asked), wait_s=wait_s)
        # The gateway's answers may not fit the agent's own schema.
        return Answers.to(asked, await retry_transient(look))

    @override
    async def _next_change(
        self, run: RunRef, state: ThreadState, changes: ThreadChanges, within_s: float
    ) -> ThreadChange | None:
        """See `ProgramRuns._next_change`; other processes are followed by polls."""
        if run in self._drives:
            return await super()._next_change(run, state, changes, within_s)
        await self._next_answer(run, state)
        # Another process resumes it: an answer exists before its effects do.
        await asyncio.sleep(BUSY_S)
        return None

    @override
    async def _next_answer(self, run: RunRef, state: ThreadState) -> None:
        """Wait until a thread may have an answer; at most one poll.

        An error also only pauses: the next attempt reports it.
        """
        asked = (*questions_of(state.pending), *state.handed)
        if not asked:
            return
        try:
            await self._asks.found(run, asked, wait_s=program_runs.POLL_S)
        except KeyturnError as error:
            logger.warning(
                "thread.not_followed agent=%s thread=%s error=%s",
                run.agent,
                run.thread,
                type(error).__name__,
            )
            await asyncio.sleep(BUSY_S)


class RemoteKeyturn(Program):
    """A gateway in another process, for a program that runs its own threads.

    Args:
        url: of the gateway, ``https://…``; default: ``KEYTURN_GATEWAY``.
        api_key: default: ``KEYTURN_API_KEY``.
        receipt_keys: public keys of the gateway, as `keyturn keys list` prints them;
            with any, a claim needs a receipt signed by one of them.
        retries: time limits for failing runs; None is the default.
        ungated: agent to names of tools that may start ungated; `connected` uses all.
        own_gate: names of the agents whose own middleware asks people.
        webhook_secrets: see `handle_webhook`; default: ``KEYTURN_WEBHOOK_SECRET``.

    Attributes:
        gateway: the agents' gateway; may be passed to their middleware.

    Raises:
        SettingsError: the URL or the key is missing or cannot be used.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        receipt_keys: Iterable[str] = (),
        retries: RetrySettings | None = None,
        ungated: Mapping[str, Collection[str]] | None = None,
        own_gate: Collection[str] = (),
        webhook_secrets: Sequence[str] | None = None,
    ) -> None:
        check_ungated(ungated)
        check_agent_names("own_gate", own_gate)
        self._webhooks = WebhookVerifier(webhook_secrets)
        address = address_of(url, api_key)
        self.gateway = HttpGateway(*address, receipt_keys=receipt_keys)
        self._asks = RemoteThreads(self.gateway)
        self._retries = retries or RetrySettings()
        self._ungated = ungated or {}
        self._own_gate = own_gate

    async def __aenter__(self) -> Self:
        """Begin to work; the gateway need not be available yet."""
        self._runs = RemoteThreadRuns(self.gateway, self._asks, self._retries)
        return self

    async def __aexit__(self, *_raised: object) -> None:
        """Wait for running steps; approvals stay open, and threads keep their state."""
        runs, self._runs = self._open(), None
        await runs.close()
        await self.gateway.aclose()

    async def handle_webhook(
        self, headers: Mapping[str, str], body: bytes, *, graph: object = None
    ) -> WebhookBody:
        """Verify a webhook of the gateway, and continue the thread that it names.

        A thread that runs here continues at once instead of with its next poll. If it
        does not run here and ``graph`` is given, it is taken up in the background. A
        repeated message only lets the thread look for its answer again. A lost message
        is harmless, because running threads poll anyway.

        Args:
            headers: of the request.
            body: of the request, as it was received.
            graph: the graph of the thread's agent.

        Raises:
            NotVerified: the gateway did not send this now; answer 401 or 403.
            SettingsError: there is no secret for the verification.
            GraphError: the graph cannot be used.
        """
        received = self._webhooks.verify(headers, body)
        news = received.data
        if received.type == DECIDED and news.agent and news.thread:
            run = RunRef(agent=news.agent, thread=news.thread)
            runs = self._open()
            if not runs.wake(run) and graph is not None:
                await runs.take_up(run, await self._runner(graph, news.agent))
        return received


class Keyturn:
    """Replaces ``keyturn.Keyturn`` in a process that cannot open a store."""

    remote = RemoteKeyturn

    def __init__(self, *_given: object, **_named: object) -> None:
        raise SettingsError(
            "A gateway in this process needs a store: pip install 'keyturn[server]'. "
            "Keyturn.remote(url, api_key=...) needs none."
        )

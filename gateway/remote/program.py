"""Remote mode (`Keyturn.remote`): run agents beside a gateway in another process.

    async with Keyturn.remote("https://gateway.example.com", api_key=key) as tk:
        final = await tk.run(graph, {"messages": [...]}, thread_id="order-78291")

The program has a URL and an API key: no store, no Slack, and nothing that could approve
a call. Its graphs keep their threads with their own checkpointer, and it brings them
forward itself, as `Keyturn` does where it has the store.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Self

from pydantic import ValidationError
from typing_extensions import override

from keyturn.gateway.arguments import (
    check_ungated,
    is_a,
    is_texts,
    require,
    require_secret,
)
from keyturn.gateway.client.http_gateway import gateway_at
from keyturn.gateway.errors import NotVerified, SettingsError
from keyturn.gateway.protocol.port import Gateway
from keyturn.gateway.protocol.records import Record, RunRef
from keyturn.gateway.protocol.webhooks import DECIDED, MOST_BYTES, WebhookBody
from keyturn.gateway.remote.thread_runs import RemoteThreadRuns, RemoteThreads
from keyturn.gateway.resume.program import Program
from keyturn.gateway.retrying import RetrySettings
from keyturn.gateway.trust.webhook_signatures import (
    TOLERANCE_S,
    parse_webhook_secret,
    verify_webhook,
)

SECRET_VARIABLE = "KEYTURN_WEBHOOK_SECRET"  # noqa: S105 - its name

_MOST_KNOWN = 10_000


class WebhookNews(Record):
    """What a webhook said.

    Attributes:
        type: ``approval.decided``, or another kind, such as ``webhook.test``.
        agent: whose thread it is; "" where it is about none.
        thread: which one.
        approval: which approval was decided.
        is_new: False for a message that came before: its sender did not know that it
            had arrived, or somebody sends it again.
    """

    type: str
    agent: str = ""
    thread: str = ""
    approval: str = ""
    is_new: bool = True

    @property
    def is_decision(self) -> bool:
        """Return whether a thread of an agent has a decision."""
        return self.type == DECIDED and bool(self.agent and self.thread)


class WebhookVerifier:
    """Accepts webhooks that were signed with one of the secrets, within five minutes.

    Args:
        secrets: ``whsec_…`` each; None: those of ``KEYTURN_WEBHOOK_SECRET``, with
            commas between them.
        clock_s: Unix seconds.

    Raises:
        SettingsError: when one of them is no secret; it is not shown.
    """

    def __init__(
        self,
        secrets: Sequence[str] | None,
        *,
        clock_s: Callable[[], float] = time.time,  # noqa: TID251 - the sender's clock is another machine's
    ) -> None:
        if secrets is None:
            secrets = os.environ.get(SECRET_VARIABLE, "").split(",")
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
        self._known: OrderedDict[str, float] = OrderedDict()

    def verify(self, headers: Mapping[str, str], body: bytes) -> WebhookNews:
        """Return what a message says.

        Raises:
            NotVerified: when it is not one of the gateway's, or is too old.
            SettingsError: when this program has no secret.
        """
        if not self._keys:
            raise SettingsError(
                "This program has no secret to verify webhooks with: pass "
                f"webhook_secrets=, or set {SECRET_VARIABLE}, to what "
                "`keyturn webhooks secret` prints."
            )
        if len(body) > MOST_BYTES:
            raise NotVerified("malformed", "it is longer than any message")
        now_s = self._clock_s()
        message = verify_webhook(headers, body, keys=self._keys, now_s=now_s)
        try:
            read = WebhookBody.model_validate_json(body)
        except ValidationError as error:
            raise NotVerified("malformed", "it says nothing that is known") from error
        return WebhookNews(
            type=read.type,
            agent=read.data.agent,
            thread=read.data.thread,
            approval=read.data.approval,
            is_new=self._is_new(message.id, now_s),
        )

    def _is_new(self, id_: str, now_s: float) -> bool:
        if id_ in self._known:
            return False
        # Twice: a message may be from five minutes in the future.
        while self._known:
            oldest, at_s = next(iter(self._known.items()))
            is_old = now_s - at_s > 2 * TOLERANCE_S + 1
            if not is_old and len(self._known) < _MOST_KNOWN:
                break
            del self._known[oldest]
        self._known[id_] = now_s
        return True


class RemoteKeyturn(Program[RemoteThreadRuns]):
    """The gateway of another process, for a program that runs its own threads.

    Args:
        url: of the gateway, ``https://…``; by default that of ``KEYTURN_GATEWAY``.
        api_key: by default that of ``KEYTURN_API_KEY``.
        receipt_keys: public keys of the gateway, as `keyturn keys list` prints them;
            with any, a claim counts only with a receipt that one of them signed.
        retries: how long a run that fails is retried; None is the default.
        ungated: agent to names of tools that may start ungated; `connected`: them all.
        webhook_secrets: see `handle_webhook`; by default those of
            ``KEYTURN_WEBHOOK_SECRET``.

    Attributes:
        gateway: what agents are connected to; may be given to their middleware.

    Raises:
        SettingsError: when the URL or the key is missing or cannot be used.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        receipt_keys: Iterable[str] = (),
        retries: RetrySettings | None = None,
        ungated: Mapping[str, Collection[str]] | None = None,
        webhook_secrets: Sequence[str] | None = None,
    ) -> None:
        check_ungated(ungated)
        needed = "give RetrySettings(limit='1h')"
        is_usable = retries is None or is_a(retries, RetrySettings)
        require(is_usable, "retries", retries, needed)
        require_secret(
            webhook_secrets is None or is_texts(webhook_secrets),
            "webhook_secrets",
            webhook_secrets,
            "give a list of texts, as `keyturn webhooks secret` prints them (whsec_…)",
        )
        self._webhooks = WebhookVerifier(webhook_secrets)
        self.gateway = gateway_at(url, api_key, receipt_keys)
        self._asks = RemoteThreads(self.gateway.connection)
        self._retries = retries or RetrySettings()
        self._ungated = ungated or {}

    async def __aenter__(self) -> Self:
        """Begin to work; that the gateway is away now does no harm."""
        self._runs = RemoteThreadRuns(self.gateway, self._asks, self._retries)
        return self

    async def __aexit__(self, *_raised: object) -> None:
        """Let running steps stop; approvals stay open, and threads where they are."""
        runs, self._runs = self._open(), None
        await runs.close()
        await self.gateway.aclose()

    async def handle_webhook(
        self,
        headers: Mapping[str, str],
        body: bytes,
        *,
        graph: object = None,
    ) -> WebhookNews:
        """Verify a webhook of the gateway, and let the thread that it names go on.

        What runs here goes on at once instead of with its next question to the
        gateway. Where nothing here runs the thread and ``graph`` is given, it is taken
        up in the background. A message that comes twice does nothing the second time;
        one that is lost does no harm, since threads that run here ask by themselves.

        Args:
            headers: of the request.
            body: of the request, as it was received.
            graph: of the thread's agent.

        Raises:
            NotVerified: when the gateway did not send this now; answer 401 or 403.
            SettingsError: when there is no secret to verify it with.
            GraphError: when the graph cannot be used.
        """
        news = self._webhooks.verify(headers, body)
        if not (news.is_new and news.is_decision):
            return news
        run = RunRef(agent=news.agent, thread=news.thread)
        runs = self._open()
        if not runs.wake(run) and graph is not None:
            await runs.take_up(run, await self._runner(graph, news.agent))
        return news

    @property
    @override
    def _gateway(self) -> Gateway:
        return self.gateway

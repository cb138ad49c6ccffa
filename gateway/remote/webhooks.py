"""Verify webhooks that the gateway sends to this program."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from pydantic import ValidationError

from twokey.gateway.errors import NotVerified, SettingsError
from twokey.gateway.protocol.records import Record
from twokey.gateway.protocol.webhooks import DECIDED, MOST_BYTES, WebhookBody
from twokey.gateway.trust.webhook_signatures import (
    TOLERANCE_S,
    parse_webhook_secret,
    verify_webhook,
)

SECRET_VARIABLE = "TWOKEY_WEBHOOK_SECRET"  # noqa: S105 - its name

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
        secrets: ``whsec_…`` each; None: those of ``TWOKEY_WEBHOOK_SECRET``, with
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
                "A secret of webhooks is not what `twokey webhooks secret` prints "
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
                "`twokey webhooks secret` prints."
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

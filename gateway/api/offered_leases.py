"""Give a program the lease on its thread along with the answer that it waits for.

A program that was given an answer takes the lease next. Where it offers a token for
that with its question, the gateway takes the lease in its name, which spares a request
between a decision and the tool. What got lost on the way is no loss: the program then
asks for the lease with the same token.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from twokey.gateway.api.operations import Tenant
from twokey.gateway.api.refusals import Refusal
from twokey.gateway.clock import now_s
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.protocol.http_api import ANSWERS, Scope
from twokey.gateway.protocol.http_problems import MALFORMED
from twokey.gateway.protocol.remote_runs import AnswersQuestion
from twokey.gateway.protocol.thread_api import (
    TAKE_LEASE_HEADER,
    TAKEN_LEASE_HEADER,
    TakenLease,
)
from twokey.gateway.trust.api_keys import ApiKey

NO_ANSWERS: Final = ANSWERS.answer.dump_json(())

_TOKEN = re.compile(r"[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True)
class Offer:
    """A token under which the lease on a thread may be taken.

    Attributes:
        asked: the question that it came with.
        token: names the holder.
        since_s: when the question had come, by `now_s`.
    """

    asked: AnswersQuestion
    token: str
    since_s: float


def offer_of(request: web.BaseRequest, key: ApiKey, question: object) -> Offer | None:
    """Return what a question offers; None: nothing, or its key may hold no lease.

    Raises:
        Refusal: when that is no token.
    """
    token = request.headers.get(TAKE_LEASE_HEADER)
    if token is None or not isinstance(question, AnswersQuestion):
        return None
    if _TOKEN.fullmatch(token) is None:
        raise Refusal(MALFORMED, f"The header {TAKE_LEASE_HEADER} is no token.")
    if Scope.EXECUTE not in key.scopes:
        return None
    return Offer(question, token, now_s())


async def taken(
    offer: Offer,
    tenant: Tenant,
    request: web.BaseRequest,
    *,
    presented: Callable[[web.BaseRequest], Awaitable[ApiKey | None]],
) -> dict[str, str]:
    """Take the lease, unless somebody has it; return the header that says so.

    The answer is given in any case.
    """
    try:
        # The key may have ended while the question waited.
        if await presented(request) is None:
            return {}
        return await _taken(offer, tenant, request)
    except StoreUnavailable:
        return {}


async def _taken(
    offer: Offer, tenant: Tenant, request: web.BaseRequest
) -> dict[str, str]:
    if request.transport is None:
        # Who asked has gone, and would not give it back.
        return {}
    # Before it is taken: by this, the holder knows when it ends at the soonest.
    waited_s = now_s() - offer.since_s
    reply = await tenant.threads.take_offered(offer.asked.run, offer.token)
    if reply.state != "held":
        return {}
    # Who has the lease goes on with the thread, and claims these calls.
    tenant.port.ahead.begin(one.item_id for one in offer.asked.questions)
    found = TakenLease(
        fence=reply.fence, name=reply.name, lease_s=reply.lease_s, waited_s=waited_s
    )
    return {TAKEN_LEASE_HEADER: found.model_dump_json()}

"""Which events of the outbox are news for a program, and the messages that say so."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from twokey.gateway.approvals.events import Event, EventName, state_after
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.webhooks import DECIDED, News
from twokey.gateway.store.webhooks import Delivery
from twokey.gateway.webhook_settings import WebhookTarget

_NEWS = frozenset(
    {
        ItemState.AUTHORIZED,
        ItemState.REJECTED,
        ItemState.ANSWERED,
        ItemState.EXPIRED,
        ItemState.WITHDRAWN,
        ItemState.LAPSED,
    }
)
"""States that give a waiting thread an answer. The others are of what the program does
itself: it runs calls, and moves on."""


def is_news(event: Event) -> bool:
    """Return whether a thread may go on because of an event."""
    if event.name in {EventName.RECORD_QUARANTINED, EventName.ITEM_RECONCILED}:
        return bool(event.approval)
    # Nobody waits for a call that opened authorized.
    if event.is_auto_approved or not event.item:
        return False
    return state_after(event.name, event.reason) in _NEWS


def messages(
    events: Iterable[Event], target: WebhookTarget, *, tenant: str, shard: str, to: str
) -> list[Delivery]:
    """Return what a target is to be told: one message for each approval.

    A message is named after its first event, so these events give the same messages
    again when a process died before it said that it had read them.

    Args:
        events: in their order.
        target: who is told.
        tenant: whose threads they are told of.
        shard: where the events are from.
        to: the target's name.
    """
    found: dict[tuple[str, str, str], Delivery] = {}
    for event in events:
        run = event.run_ref
        if event.tenant != tenant or not is_news(event) or not target.is_of(run.agent):
            continue
        news = News(agent=run.agent, thread=run.thread, approval=event.approval)
        found.setdefault(
            (news.agent, news.thread, news.approval),
            Delivery(
                id=_id(tenant, shard, to, event),
                kind=DECIDED,
                news=news,
                at_ms=event.at_ms,
            ),
        )
    return list(found.values())


def _id(tenant: str, shard: str, to: str, event: Event) -> str:
    named = json.dumps([tenant, shard, to, event.seq, event.approval, event.item])
    return "msg_" + hashlib.sha256(named.encode()).hexdigest()[:32]

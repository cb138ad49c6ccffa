"""Post one message per outage of a run in its thread, and update it in place.

The store keeps its channel and ts, so another bot updates the same message. It is
posted with a text that stays true, and updated with the run's state after it is
registered: a copy that could not be registered (a lost response, a crash) is never
updated again.
"""

from __future__ import annotations

import logging

from twokey.bot.cards.run_state import run_announced, run_state
from twokey.bot.delivery.card_publisher import CardPublisher
from twokey.bot.delivery.queue_entry import Call, QueueEntry
from twokey.bot.limits import POST, UPDATE
from twokey.bot.web import NEVER_UPDATED, SlackRefused
from twokey.gateway.approvals.events import TROUBLED_RUN, Event, EventName

logger = logging.getLogger(__name__)

_ONLY_AFTER_FAILURE = frozenset(
    {EventName.RUN_RESUMED, EventName.RUN_RETRIED, EventName.RUN_DROPPED}
)
"""Events that need no message unless the failure of the run was posted."""


def is_about_outage(event: Event) -> bool:
    """Return whether an event belongs into the message of its outage."""
    return event.name in TROUBLED_RUN and bool(event.data.get("outage"))


def call_for(entry: QueueEntry, event: Event) -> Call | None:
    """Return the call that shows an event: an update if the message is known."""
    channel = event.data.get("channel", "")
    if not channel:
        return None
    return Call(UPDATE, "") if entry.place else Call(POST, channel)


async def show(
    card_publisher: CardPublisher, entry: QueueEntry, given: Call | None
) -> tuple[bool, bool]:
    """Post or update the message of an outage for an entry's first event.

    Returns:
        Whether the given call was made, and whether the event can be acknowledged.

    Raises:
        RateLimitDelay: nothing was sent.
        SlackError: a silent one may have posted it.
    """
    event, outage = entry.events[0], entry.events[0].data["outage"]
    # A state that a later event replaces needs no message: the message shows only the
    # newest one.
    newer = (one for one in entry.events[1:] if is_about_outage(one))
    if any(one.data["outage"] == outage for one in newer):
        return False, True
    place = await card_publisher.find_place(outage)
    entry.place = (place.channel, place.ts) if place else None
    needed = call_for(entry, event)
    # That a run continues is news only where its failure was posted.
    if needed is None or (place is None and event.name in _ONLY_AFTER_FAILURE):
        return False, True
    if needed != given:
        return False, False  # the scheduler takes a token for the right call
    if place is None:
        thread_ts = event.data.get("thread_ts") or None
        first = run_announced(event)
        channel, ts = await card_publisher.post(
            needed.channel, first, thread_ts=thread_ts
        )
        entry.place = (channel, ts)
        # Posted in two steps: first a text that stays true, then its update. If the
        # response to the post is lost, an unregistered copy stays in Slack, and it must
        # not say "waits" for ever.
        await card_publisher.register(outage, channel, ts)
        return True, False
    message = run_state(event, key=card_publisher.seal_key, team=card_publisher.team)
    entry.place = None
    try:
        await card_publisher.update(place.channel, place.ts, message)
    except SlackRefused as error:
        if error.error not in NEVER_UPDATED:
            raise
        logger.warning("run.message_gone outage=%s why=%s", outage, error.error)
        await card_publisher.cards.forget_place(card_publisher.keys, outage)
        return True, event.name in _ONLY_AFTER_FAILURE
    return True, True

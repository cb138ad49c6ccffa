"""Look up what a click is about, and believe nothing of it that is not proven."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import LiteralString

from bot.blocks import label, template
from bot.cards.outcome import explained
from bot.desk import Calm, Desk, Said
from bot.gestures import Clicked
from bot.ids import BadSeal, Sealed, unseal, verify
from gateway.approvals.decisions import (
    Approve,
    Changed,
    Click,
    Decision,
    Outcome,
    Reviewer,
    Settled,
    Unknown,
)
from gateway.approvals.quorum import objection
from gateway.approvals.record import Approval, Item, Verb
from gateway.store.keys import Keys

logger = logging.getLogger(__name__)

_OTHER_COPY: LiteralString = (
    "This is not the newest copy of the card, so nothing was recorded. Please use the "
    "newest card of this approval."
)
_NOT_OURS: LiteralString = (
    "This button does not belong to this card, so nothing was recorded. Please use "
    "the newest card of this approval."
)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a reviewer looks at: proven to be ours, and the version that stands.

    ``index`` is None when it is about the batch as a whole.
    """

    approval: Approval
    index: int | None
    now_ms: int
    keys: Keys

    @property
    def item(self) -> Item:
        """Return the item it is about; the first one of a batch as a whole."""
        return self.approval.items[self.index or 0]

    def click(self, request_digest: str) -> Click:
        """Return what the gateway is told about it."""
        return Click(
            approval=self.approval.id,
            index=self.index or 0,
            version=self.approval.version,
            action_hash=self.item.action_hash,
            request_digest=request_digest,
        )


async def seen_on_card(desk: Desk, clicked: Clicked, purpose: str) -> Seen:
    """Return what a button of a card is about.

    The value must be sealed for this approval as it stands, this workspace and this
    button, and the card must be the one usable copy. A copy that nobody registered
    (the answer to its posting was lost) becomes that copy when there is none.

    Raises:
        Calm: says why this is no click to act on.
    """
    seen = await seen_by_value(desk, clicked, purpose)
    action = clicked.action
    cards = desk.service.store.cards
    place = await cards.place(seen.keys, seen.approval.id)
    if place is None:
        place = await cards.posted(
            seen.keys, seen.approval.id, channel=action.channel, ts=action.message_ts
        )
    if (place.channel, place.ts) != (action.channel, action.message_ts):
        logger.warning("click.refused why=other_copy approval=%s", seen.approval.id)
        raise Calm(template(_OTHER_COPY))
    return seen


async def seen_by_value(desk: Desk, clicked: Clicked, purpose: str) -> Seen:
    """Return what a button is about, wherever it stands; raises `Calm`."""
    if clicked.action.team != desk.team:
        logger.warning("click.refused why=other_team")
        raise Calm(template(_NOT_OURS))
    try:
        sealed = unseal(clicked.action.value)
    except BadSeal:
        logger.warning("click.refused why=no_seal")
        raise Calm(template(_NOT_OURS)) from None
    return await opened(desk, sealed, purpose)


async def opened(desk: Desk, sealed: Sealed, purpose: str) -> Seen:
    """Return what a seal stands for, if we made it for the record as it stands.

    Raises:
        Calm: says what became of it, or that it is not ours.
    """
    loaded = await desk.service.read(sealed.approval)
    keys = desk.service.store.keys_of_approval(sealed.approval)
    if loaded is None or keys is None:
        raise Calm(explained(Unknown(), now_ms=0))
    approval, now_ms = loaded.approval, loaded.now_ms
    if sealed.version != approval.version:
        raise Calm(await _what_became(desk, approval, sealed, now_ms))
    if not verify(
        sealed, approval, key=desk.config.seal_key, team=desk.team, purpose=purpose
    ):
        logger.warning("click.refused why=bad_seal approval=%s", approval.id)
        raise Calm(template(_NOT_OURS))
    return Seen(approval=approval, index=sealed.index, now_ms=now_ms, keys=keys)


async def decide(
    desk: Desk, seen: Seen, decision: Decision, who: tuple[str, str], digest: str
) -> Outcome:
    """Let the gateway decide.

    Args:
        desk: what the listener works with.
        seen: what the reviewer looked at.
        decision: what they said.
        who: user id and home team of the reviewer.
        digest: of the signed request.
    """
    reviewer = await desk.reviewer_of(*who, seen.item)
    outcome = await desk.service.decide(seen.click(digest), decision, reviewer)
    log_outcome(seen, outcome, decision.kind, reviewer)
    return outcome


async def permitted(
    desk: Desk, seen: Seen, verb: Verb, who: tuple[str, str]
) -> Reviewer:
    """Return the reviewer when opening a modal for this verb makes sense for them.

    The gateway asks all of this again when they decide; here it spares them a form.

    Raises:
        Calm: says why not.
    """
    item = seen.item
    if not item.is_pending or seen.now_ms >= seen.approval.expires_at_ms:
        sealed = Sealed(seen.approval.id, seen.approval.version, item.index, b"")
        raise Calm(await _what_became(desk, seen.approval, sealed, seen.now_ms))
    reviewer = await desk.reviewer_of(*who, item)
    principals = (*seen.approval.principals, *item.principals)
    reason = objection(reviewer, item.demand, principals)
    if reason is not None:
        logger.info("click.refused why=forbidden approval=%s", seen.approval.id)
        raise Calm(label(reason))
    if verb not in item.allow:
        raise Calm(template("The policy does not allow this for this tool."))
    return reviewer


def answered(outcome: Outcome, *, now_ms: int) -> Said | None:
    """Return what to tell the person; None when the card itself shows it."""
    if isinstance(outcome, Settled):
        return None
    return explained(outcome, now_ms=now_ms)


def log_outcome(seen: Seen, outcome: Outcome, kind: str, reviewer: Reviewer) -> None:
    """Write one line about what came of a decision, ids only."""
    logger.info(
        "click.decided decision=%s outcome=%s approval=%s index=%s user=%s",
        kind,
        outcome.kind,
        seen.approval.id,
        seen.index,
        reviewer.user,
    )


async def _what_became(
    desk: Desk, approval: Approval, sealed: Sealed, now_ms: int
) -> Said:
    """Ask the gateway what became of an item; a click without a hash never counts."""
    if sealed.index is None or sealed.index >= len(approval.items):
        changed = Changed(seen_version=sealed.version, version=approval.version)
        return explained(changed, now_ms=now_ms)
    click = Click(
        approval=approval.id,
        index=sealed.index,
        version=sealed.version,
        action_hash="",
    )
    nobody = Reviewer(team=desk.team, user="")
    outcome = await desk.service.decide(click, Approve(), nobody)
    return explained(outcome, now_ms=now_ms)

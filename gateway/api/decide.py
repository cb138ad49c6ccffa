"""Decisions of people over HTTP, processed like a click in Slack."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from keyturn.gateway.api.refusals import Refusal
from keyturn.gateway.approvals import decisions
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.protocol import http_problems
from keyturn.gateway.protocol.http_api import DecideQuestion, DecideReply
from keyturn.gateway.protocol.work import aside
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.service.run.approval_readings import missing_of, view_of

_IN_SLACK = (
    "API keys cannot decide: people do, in Slack. Over HTTP they need a personal token "
    "('api.people' in the settings)."
)


class Reviewers(Protocol):
    """Finds reviewers; see `keyturn.gateway.api.person_tokens`."""

    async def reviewer(self, token: str) -> decisions.Reviewer:
        """Return the reviewer of a token; raises `Refusal`."""
        ...

    def known(self, user: str) -> decisions.Reviewer:
        """Return a reviewer by their id, as their last token described them."""
        ...


@dataclass(frozen=True)
class Decisions:
    """The services behind decisions over HTTP.

    Attributes:
        tokens: verifies people's tokens.
        reviews: records decisions, as for a click.
    """

    tokens: Reviewers
    reviews: ReviewService

    async def reviewer(self, token: str) -> decisions.Reviewer:
        """Return the reviewer of a token.

        Raises:
            Refusal: when the token belongs to no reviewer.
        """
        if not token or token.startswith("tk_"):
            raise people_decide()
        return await self.tokens.reviewer(token)

    async def decide(
        self,
        approval_id: str,
        asked: DecideQuestion,
        by: decisions.Reviewer,
        token: str,
    ) -> DecideReply:
        """Decide or vote on one call; the audit log gets a hash of the token.

        Raises:
            Refusal: when nothing was decided, with the reason.
            StoreUnavailable: when it is unknown whether the decision was written.
        """
        loaded = await self.reviews.read(approval_id)
        if loaded is None or loaded.approval.id != approval_id:
            raise _refusal(decisions.Unknown())
        item = _item(loaded.approval, asked.call)
        click = decisions.Click(
            approval=approval_id,
            index=item.index,
            version=asked.expected_version,
            action_hash=asked.action_hash,
            request_digest=f"sha256:{hashlib.sha256(token.encode()).hexdigest()}",
        )
        try:
            outcome = await self.reviews.decide(
                click, _decision(asked), by, voters=self._voters
            )
        except SettingsError as error:
            raise Refusal(http_problems.PEOPLE_DECIDE, str(error)) from error
        return await aside(partial(_reply, outcome), [item.action])

    async def _voters(self, item: Item) -> Sequence[decisions.Reviewer]:
        return [self.tokens.known(vote.by.user) for vote in item.votes]


def people_decide() -> Refusal:
    """Return the refusal for requests without a person's token."""
    return Refusal(http_problems.PEOPLE_DECIDE, _IN_SLACK)


def _decision(asked: DecideQuestion) -> decisions.Decision:
    """Return the decision in a request.

    Raises:
        Refusal: when its parts contradict each other.
    """
    is_edit, is_response = asked.decision == "edit", asked.decision == "respond"
    has_words = bool(asked.message or asked.answers)
    if (asked.modified_args is not None) is not is_edit or has_words > is_response:
        raise Refusal(
            http_problems.MALFORMED,
            "'modified_args' is for an edit, 'message' and 'answers' for a response.",
        )
    match asked.decision:
        case "approve":
            return decisions.Approve(reason=asked.reason)
        case "edit":
            return decisions.Edit(args=asked.modified_args or {}, reason=asked.reason)
        case "reject":
            return decisions.Reject(reason=asked.reason)
        case "respond":
            return decisions.Respond(message=asked.message, answers=asked.answers)


def _item(approval: Approval, call: str) -> Item:
    # The one item of a standing approval is not a call. People give them in Slack.
    items = () if approval.is_standing else approval.items
    if not call and len(items) > 1:
        raise Refusal(
            http_problems.INVALID,
            "This approval has several calls; name one in 'call'.",
        )
    for item in items:
        if call in {"", item.id}:
            return item
    raise Refusal(http_problems.NOT_FOUND, "There is no such call in this approval.")


def _reply(outcome: decisions.Outcome) -> DecideReply:
    match outcome:
        case decisions.Decided():
            return DecideReply(outcome="decided", approval=view_of(outcome.approval))
        case decisions.Voted():
            return DecideReply(
                outcome="voted",
                have=outcome.have,
                need=outcome.need,
                missing=missing_of(outcome.approval.items[outcome.index]),
                approval=view_of(outcome.approval),
            )
        case decisions.TooSoon():
            return DecideReply(outcome="again", approval=view_of(outcome.approval))
        case _:
            raise _refusal(outcome)


def _refusal(outcome: decisions.Outcome) -> Refusal:  # noqa: PLR0911 - one for each outcome
    match outcome:
        case decisions.Repeated():
            return Refusal(
                http_problems.STALE,
                "A call with the same effect was approved since you read this one; "
                "read it again, and decide again if it should run as well.",
            )
        case decisions.Stale():
            return Refusal(
                http_problems.SETTLED,
                f"This call does not wait any more: it is {outcome.item.state}.",
            )
        case decisions.Changed():
            return Refusal(
                http_problems.STALE,
                f"You read version {outcome.seen_version}, or another action, and this "
                f"is version {outcome.version}; read it again and decide about that.",
            )
        case decisions.Expired():
            return Refusal(
                http_problems.EXPIRED, "The time to decide is over; nothing ran."
            )
        case decisions.Forbidden():
            return Refusal(http_problems.NOT_ALLOWED, outcome.reason)
        case decisions.Invalid():
            parts = [
                f"{at or 'The whole'}: {why}" for at, why in outcome.errors.items()
            ]
            return Refusal(http_problems.INVALID, " ".join(parts))
        case decisions.Unknown():
            return Refusal(http_problems.NOT_FOUND, "There is no such approval.")
        case _:
            raise AssertionError(f"{outcome.kind} is an answer")

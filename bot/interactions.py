"""Interactions (clicks, submitted modals) with the digest of their signed request."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from functools import partial

from twokey.bot.payload import BlockAction, ViewSubmission
from twokey.gateway.approvals.decisions import Gesture


@dataclass(frozen=True, slots=True)
class Clicked:
    """A click on a button, and the digest of the signed request it came in.

    ``token`` names this delivery of it: the same when the click is tried again.
    """

    action: BlockAction
    digest: str
    token: str = field(default_factory=partial(secrets.token_hex, 8), compare=False)

    @property
    def who(self) -> tuple[str, str]:
        """Return user id and home team of the person who clicked."""
        return self.action.user, self.action.user_team

    @property
    def gesture(self) -> Gesture:
        """Return where the button was, for the audit log."""
        if self.action.is_home:
            return Gesture.APP_HOME
        return Gesture.MODAL if self.action.view_id else Gesture.BUTTON


@dataclass(frozen=True, slots=True)
class Submitted:
    """A submitted modal, and the digest of the signed request it came in."""

    view: ViewSubmission
    digest: str

    @property
    def who(self) -> tuple[str, str]:
        """Return user id and home team of the person who submitted."""
        return self.view.user, self.view.user_team

    @property
    def gesture(self) -> Gesture:
        """Return what a submitted form is called in the audit log."""
        return Gesture.MODAL

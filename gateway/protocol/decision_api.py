"""How a person decides over HTTP: never by an API key, only by their own token."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from twokey.gateway.protocol.approval_views import ApprovalView
from twokey.gateway.protocol.records import Record
from twokey.gateway.protocol.strict_json import JsonObject


class DecideQuestion(Record):
    """What a person says of one call, and what they saw of it.

    Attributes:
        call: id of the call; may be left out where the approval has only one.
        expected_version: of the approval, as it was read.
        action_hash: of the call, as it was read: what was shown is what is decided.
        decision: approve, edit, reject or respond.
        reason: why; the agent reads it.
        modified_args: for edit: the arguments with which the call runs instead.
        message: for respond: what the agent reads as the tool's answer.
        answers: for respond to a call that asks questions: one each, in order.
    """

    call: str = ""
    expected_version: int = Field(ge=1)
    action_hash: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    decision: Literal["approve", "edit", "reject", "respond"]
    reason: str = Field(default="", max_length=3000)
    modified_args: JsonObject | None = None
    message: str = Field(default="", max_length=3000)
    answers: tuple[str, ...] = Field(default=(), max_length=100)


class DecideReply(Record):
    """What became of a decision.

    ``decided``: it ended the call's wait. ``voted``: it counts, and ``need`` people in
    all have to say so, of whom there are ``have``. ``again``: an approval that came
    very soon counts for nothing; the same once more counts.
    """

    outcome: Literal["decided", "voted", "again"]
    have: int = 0
    need: int = 0
    approval: ApprovalView

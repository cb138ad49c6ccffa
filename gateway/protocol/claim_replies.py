"""Shape what a gateway answers to a claim, and what it asks before it gives one."""

from __future__ import annotations

from typing import Literal

from twokey.gateway.protocol.business_state import BusinessState
from twokey.gateway.protocol.records import EditRecord, Person, Record
from twokey.gateway.protocol.states import ItemState

FindingWord = Literal["executed", "rerun", "skip"]


class ReconcileAnswer(Record):
    """What an execution in doubt is resumed with, for `RECONCILE_INTERRUPT`."""

    type: FindingWord
    item_id: str
    action_hash: str
    message: str = ""
    by: Person | None = None


class Claimed(Record):
    """Run exactly ``action`` (a canonical document) now, once.

    The claim holds for ``lease_s`` seconds and is kept by heartbeats with ``fence``.
    ``idempotency_key`` is the same for every attempt at this authorization.
    ``asks_on_failure`` says that people settle what becomes of a failure. ``settled``
    is what people said of an earlier attempt, when they had the call run again.
    ``requested`` is the document of the request where ``action`` has a newer state.
    """

    kind: Literal["new"] = "new"
    fence: int
    action: str
    action_hash: str
    idempotency_key: str
    lease_s: float
    edit: EditRecord | None = None
    asks_on_failure: bool = False
    settled: ReconcileAnswer | None = None
    requested: str = ""


class CheckState(Record):
    """Read the business state for the arguments of ``action``, then claim again.

    Nothing was claimed. The members are those of `Claimed`.
    """

    kind: Literal["check_state"] = "check_state"
    action: str
    action_hash: str
    edit: EditRecord | None = None
    requested: str = ""


class StateNow(Record):
    """The business state right before the action with this hash would run."""

    action_hash: str
    state: BusinessState


class Busy(Record):
    """A live owner executes it right now; ask again after ``retry_after_s``."""

    kind: Literal["busy"] = "busy"
    retry_after_s: float = 0.2


class InDoubt(Record):
    """An owner died between effect and record; a person has to say what happened.

    ``edit`` says what a person changed before: those arguments ran, if any did.
    """

    kind: Literal["in_doubt"] = "in_doubt"
    edit: EditRecord | None = None


class Refused(Record):
    """It must not run; ``reason`` is a sentence for the model."""

    kind: Literal["refused"] = "refused"
    reason: str
    state: ItemState | None = None


class Reopened(Record):
    """It went back to people, for this reason; ask about it again."""

    kind: Literal["reopened"] = "reopened"
    reason: str

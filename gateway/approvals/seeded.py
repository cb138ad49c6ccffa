"""Seeded defects: records of test cards that show a call with a deliberate mistake."""

from __future__ import annotations

from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.protocol.records import Record

APPROVED, NOTICED, EXPIRED = "approved", "noticed", "expired"
"""How one ends."""


class SeededCard(Record):
    """A card that shows a call with a mistake.

    Attributes:
        shown: what the card is made of; it is in no list of approvals.
        defect: what is wrong with it.
    """

    shown: Approval
    defect: str


class Seeded(Record):
    """What is known of a tenant's seeded defects.

    Attributes:
        due_ms: when the next one is shown; 0 when that is not drawn yet.
        card: the one that is shown; None for none.
        channel: where its card stands, once it is posted.
        ts: of the card.
        answer: ``approved``, ``noticed`` or ``expired``; empty while it waits.
    """

    due_ms: int = 0
    card: SeededCard | None = None
    channel: str = ""
    ts: str = ""
    answer: str = ""

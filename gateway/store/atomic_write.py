"""A change of an approval together with the inputs it was computed from.

Writes use optimistic concurrency: see `keyturn.gateway.store.writing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.events import Event
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.store.precedents import Known
from keyturn.gateway.store.record_seals import Stored
from keyturn.gateway.store.windows import Use


@dataclass(frozen=True)
class Loaded:
    """An approval at ``now_ms`` of the store's clock.

    Attributes:
        approval: the record.
        now_ms: Unix time in milliseconds.
        stored: the stored form; None if the record was not read from the store.
    """

    approval: Approval
    now_ms: int
    stored: Stored | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class EvaluationInputs:
    """An item's window uses, and the inputs of its evaluation.

    Attributes:
        uses: the item's uses of windows.
        totals: the sum of each window.
        known: precedents; None if the evaluation does not depend on them.
    """

    uses: Sequence[Use]
    totals: Mapping[str, int]
    known: Known | None = None


@dataclass(frozen=True)
class Write:
    """A change, and related data that is written in the same step.

    Attributes:
        change: the next version.
        inputs: evaluation inputs by item index. The change is computed again if a
            window has a higher sum, or if the precedents differ.
        unfrozen: names that must not be frozen.
        rejection: from `rejection_effects`; empty if no call is rejected.
        is_fenced: True if it requires the lease of the current context.
        standing: a standing approval that must be unchanged since it was read.
    """

    change: Change
    inputs: Mapping[int, EvaluationInputs] = field(
        default_factory=dict[int, EvaluationInputs]
    )
    unfrozen: Sequence[str] = ()
    rejection: Mapping[str, object] = field(default_factory=dict[str, object])
    is_fenced: bool = False
    standing: Approval | None = None

    @property
    def approval(self) -> Approval:
        """Return the next version."""
        return self.change.approval


@dataclass(frozen=True)
class WriteMany:
    """Changes of several approvals of one tenant, written all or none.

    None of them is written under a thread's lease.

    Attributes:
        writes: one for each changed approval; at least one.
        events: events about all changes together.
    """

    writes: Sequence[Write]
    events: Sequence[Event] = ()

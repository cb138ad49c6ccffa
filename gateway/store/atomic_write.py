"""A change of an approval, and what it was computed from, as both are written.

It is written with optimistic concurrency: see `keyturn.gateway.store.writing`.
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
    """An approval as it stood at ``now_ms`` of the store's clock.

    Attributes:
        approval: the record.
        now_ms: Unix time in milliseconds.
        stored: as it is stored; None where somebody made a reading of what they keep.
    """

    approval: Approval
    now_ms: int
    stored: Stored | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class EvaluationInputs:
    """What an item uses of which windows, and what it was evaluated by.

    Attributes:
        uses: of the item.
        totals: what each window came to.
        known: precedents; None when the evaluation does not depend on them.
    """

    uses: Sequence[Use]
    totals: Mapping[str, int]
    known: Known | None = None


@dataclass(frozen=True)
class Write:
    """A change, and what the store keeps beside the record in the same step.

    Attributes:
        change: the next version.
        inputs: what items use of windows from now on, by index. It is computed again
            when a window holds more than was evaluated by, or for other precedents.
        unfrozen: names of which none may be frozen.
        rejection: from `rejection_effects`; empty when nothing is rejected.
        is_fenced: the holder of a thread's lease writes it: refuse it of a former one.
        standing: a standing approval that has to be in the state that was read.
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
    """Changes of several approvals of one tenant, which are written together or not.

    They are of one tenant, and nobody writes them as the holder of a thread's lease.

    Attributes:
        writes: one for each approval that changes; at least one.
        events: about all of it.
    """

    writes: Sequence[Write]
    events: Sequence[Event] = ()

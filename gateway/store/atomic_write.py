"""A change of an approval, and what it was computed from, as both are written.

It is written with optimistic concurrency: see `twokey.gateway.store.writing`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from twokey.gateway.approvals.changes import Change
from twokey.gateway.approvals.events import Event
from twokey.gateway.approvals.record import Approval
from twokey.gateway.store.keys import KeptText
from twokey.gateway.store.precedents import Known
from twokey.gateway.store.record_seals import Stored
from twokey.gateway.store.windows import Use


@dataclass(frozen=True)
class Loaded:
    """An approval as it stood at ``now_ms`` of the store's clock.

    Attributes:
        approval: the record.
        now_ms: Unix time in milliseconds.
        remembered: None when it was read for this. Otherwise nobody did, and the store
            compares what moves, and not only the ``rev``, with what is remembered, and
            these of its large fields. A master that took over may have another change
            under the number of one that it lacks.
        read_s: when it came here, by a clock of this process that never goes back.
        stored: as it is stored; None where somebody made a reading of what they keep.
    """

    approval: Approval
    now_ms: int
    remembered: Mapping[str, bytes] | None = field(
        default=None, repr=False, compare=False
    )
    read_s: float = field(default_factory=time.monotonic, repr=False, compare=False)
    stored: Stored | None = field(default=None, repr=False, compare=False)

    @property
    def age_s(self) -> float:
        """Return for how many seconds it has been here."""
        return time.monotonic() - self.read_s


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
class Assumed:
    """What a change was computed from that nobody read for it: it has to be so.

    Attributes:
        totals: what each window comes to, by item, window and use of it.
        place: channel and ts of the approval's own card; "" when it does not matter.
        display: digest of what that card shows; "" when it is not known.
        stands_in_for_nobody: user id of somebody whom no queue is delegated to; "" when
            it does not matter.
        unseen: key that nothing stands under yet; "" when it does not matter.
    """

    totals: Mapping[tuple[int, str, str], int] = field(
        default_factory=dict[tuple[int, str, str], int]
    )
    place: str = ""
    display: str = ""
    stands_in_for_nobody: str = ""
    unseen: str = ""


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
        assumed: what has to be as it was assumed to be.
        kept: texts to keep beside the record, in its shard.
    """

    change: Change
    inputs: Mapping[int, EvaluationInputs] = field(
        default_factory=dict[int, EvaluationInputs]
    )
    unfrozen: Sequence[str] = ()
    rejection: Mapping[str, object] = field(default_factory=dict[str, object])
    is_fenced: bool = False
    standing: Approval | None = None
    assumed: Assumed = Assumed()
    kept: Sequence[KeptText] = ()

    @property
    def approval(self) -> Approval:
        """Return the next version."""
        return self.change.approval


@dataclass(frozen=True)
class WriteMany:
    """Changes of several approvals of one shard, which are written together or not.

    They are of one tenant, and nobody writes them as the holder of a thread's lease.

    Attributes:
        writes: one for each approval that changes; at least one.
        events: about all of it.
    """

    writes: Sequence[Write]
    events: Sequence[Event] = ()

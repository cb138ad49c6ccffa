"""Reserve and count use of rolling windows atomically, for rate and sum limits.

A use counts from the evaluation of its call, while the call may still run, and for the
window's length after it ran. A refused call releases its use in the same step, except
in windows that count requests: there it stays for the window's length after the
request. If a process dies in between, the reservation is too high for two minutes, and
never too low.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from keyturn.gateway.policy.windows import MAX_MICRO
from keyturn.gateway.store.connection.connection import Reply, number, text
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.scripts.script import Script
from keyturn.gateway.store.sealing.sealing import Repository

RESERVE = Script("reserve")
TOTALS = Script("totals", writes=False)

# Twice the time limit of triage (30 s), the longest part of an evaluation.
HOLD_MS = 60_000
"""Time limit for evaluating a turn; its reservation ends after that."""


@dataclass(frozen=True)
class Use:
    """One call's use of one window for one resource.

    Attributes:
        name: the window's name in the policy.
        window: key of the window for this resource.
        use: the call and its amount in millionths, in stored form.
        within_ms: how long it counts after the call ran.
    """

    name: str
    window: str
    use: str
    within_ms: int

    @property
    def micro(self) -> int:
        """Return its amount in millionths."""
        return int(self.use.rpartition(" ")[2])


def use_of(window: str, *, name: str, call: str, micro: int, within_ms: int) -> Use:
    """Return a use of a window.

    Args:
        window: from `Keys.window`.
        name: the window's name in the policy.
        call: identifies the call; without blanks.
        micro: amount in millionths, 0 to `MAX_MICRO`.
        within_ms: the window's length.
    """
    if not 0 <= micro <= MAX_MICRO:
        raise ValueError(f"{micro!r} millionths do not fit into a window")
    return Use(name=name, window=window, use=f"{call} {micro}", within_ms=within_ms)


ItemUses = tuple[str, int, Sequence[Use]]
"""An item's possible uses, which replace its reserved ones.

They follow the key of the head of the item's approval, and the index of the item, whose
reserved uses are not counted twice.
"""


def held_in(keys: Keys, windows: Sequence[str]) -> ItemUses:
    """Return uses without amounts, to read the current sums of windows by key."""
    uses = [
        use_of(window, name="", call="nobody", micro=0, within_ms=1)
        for window in windows
    ]
    return keys.head("none"), 0, uses


def as_rows(uses: Sequence[Use]) -> str:
    """Return uses as scripts read them: an array of {window, use, within_ms}."""
    if not uses:
        return "[]"
    return json.dumps([[use.window, use.use, use.within_ms] for use in uses])


class WindowStore(Repository):
    """The windows of all tenants."""

    async def reserve(
        self, keys: Keys, turn_key: str, uses: Sequence[Sequence[Use]]
    ) -> list[dict[str, int]] | None:
        """Reserve the uses of all calls of one turn in one step, once.

        A repeated request gets the first answer.

        Args:
            keys: keys of the tenant.
            turn_key: identifies the turn in repeated submissions.
            uses: uses of each call, in the order of the calls.

        Returns:
            For each call the sums of its windows by name, including the call and the
            earlier calls of the turn. None if the turn already has its verdicts.
        """
        flat = [use for call in uses for use in call]
        reply = await RESERVE(
            self._conn,
            turn=keys.turn(turn_key),
            reservation=keys.reservation(turn_key, as_rows(flat)),
            windows=[use.window for use in flat],
            uses=[use.use for use in flat],
            hold_ms=HOLD_MS,
        )
        # Another process has opened the turn: its verdicts are the answer.
        if text(reply[0]) == "opened":
            return None
        totals = iter(_numbers(reply[1]))
        return [{use.name: next(totals) for use in call} for call in uses]

    async def totals(
        self, head: str, index: int, uses: Sequence[Use]
    ) -> dict[str, int]:
        """Return the sums of windows by name if one item used these.

        See `ItemUses` for the arguments.
        """
        [found] = await self.totals_of_each([(head, index, uses)])
        return dict(zip((use.name for use in uses), found, strict=True))

    async def totals_of_each(self, items: Sequence[ItemUses]) -> list[list[int]]:
        """Return the sums of windows for each item, as if only that item used them.

        All items belong to one tenant, and the sums are one consistent snapshot.

        Returns:
            For each item the sum with each of its uses, in their order.
        """
        rows = [(head, index, use) for head, index, uses in items for use in uses]
        if not rows:
            return [[] for _ in items]
        reply = await TOTALS(
            self._conn,
            places=[key for head, _, use in rows for key in (head, use.window)],
            uses=[[index, use.use] for _, index, use in rows],
        )
        totals = iter(_numbers(reply[1]))
        return [[next(totals) for _ in uses] for _, _, uses in items]


def _numbers(reply: Reply) -> list[int]:
    return [number(total) for total in cast("list[Reply]", reply)]

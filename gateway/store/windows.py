"""Reserve and count use of rolling windows atomically, for rate and sum limits.

A use counts from the moment its call is evaluated, while the call may still run, and
for the window's length after it ran. A call that is refused in any way gives its use
back in the same step, unless the window counts requests: then it stays for the window's
length after it was asked. A process that dies in between leaves too much reserved for
two minutes, and never too little.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from keyturn.gateway.policy.windows import MAX_MICRO
from keyturn.gateway.store.connection import Connection, Reply, number, text
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.script import Script

RESERVE = Script("reserve")
TOTALS = Script("totals", writes=False)

# Twice the longest that triage may take (30 s), which is what evaluating waits for.
HOLD_MS = 60_000
"""How long a turn may be evaluated; its reservation is given back after that."""


@dataclass(frozen=True)
class Use:
    """One call's share of one window for one resource.

    Attributes:
        name: the window's name in the policy.
        window: key of the window for this resource.
        use: the call and its amount in millionths, as the window keeps it.
        within_ms: how long it counts after the call ran.
    """

    name: str
    window: str
    use: str
    within_ms: int

    @property
    def micro(self) -> int:
        """Return its share in millionths."""
        return int(self.use.rpartition(" ")[2])


def use_of(window: str, *, name: str, call: str, micro: int, within_ms: int) -> Use:
    """Return a use of a window's key.

    Args:
        window: from `Keys.window`.
        name: the window's name in the policy.
        call: the same for the same call, without blanks.
        micro: 0 to `MAX_MICRO`.
        within_ms: the window's length.
    """
    if not 0 <= micro <= MAX_MICRO:
        raise ValueError(f"{micro!r} millionths do not fit into a window")
    return Use(name=name, window=window, use=f"{call} {micro}", within_ms=within_ms)


@dataclass(frozen=True)
class ItemUses:
    """What one item would use, instead of what it has reserved.

    Attributes:
        head: key of what changes of the item's approval.
        index: of the item; what it has reserved itself is not counted twice.
        uses: what it would use.
    """

    head: str
    index: int
    uses: Sequence[Use]


def held_in(keys: Keys, windows: Sequence[str]) -> ItemUses:
    """Return uses of no item by which windows come to what they hold, by their keys."""
    uses = [
        use_of(window, name="", call="nobody", micro=0, within_ms=1)
        for window in windows
    ]
    return ItemUses(keys.head("none"), 0, uses)


def as_rows(uses: Sequence[Use]) -> str:
    """Return uses as scripts read them: an array of {window, use, within_ms}."""
    if not uses:
        return "[]"
    return json.dumps([[use.window, use.use, use.within_ms] for use in uses])


class WindowStore:
    """The windows of all tenants."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    async def reserve(
        self, keys: Keys, turn_key: str, uses: Sequence[Sequence[Use]]
    ) -> list[dict[str, int]] | None:
        """Reserve the uses of all calls of one turn in one step, once.

        The same uses of the same turn again get their first answer.

        Args:
            keys: of the tenant.
            turn_key: the same for every submit of this turn.
            uses: of each call, in the order of the calls.

        Returns:
            For each call the totals of its windows by name, its own share included; a
            later call sees the earlier ones. None when the turn has its verdicts.
        """
        flat = [use for call in uses for use in call]
        reply = await RESERVE(
            self._conn,
            turn=keys.turn(turn_key),
            reservation=keys.reservation(turn_key, as_rows(flat)),
            windows=[use.window for use in flat],
            uses=json.dumps([use.use for use in flat]),
            hold_ms=HOLD_MS,
        )
        # Another process opened the turn meanwhile: its verdicts are the answer.
        if text(reply[0]) == "opened":
            return None
        totals = iter(_numbers(reply[1]))
        return [{use.name: next(totals) for use in call} for call in uses]

    async def totals(
        self, head: str, index: int, uses: Sequence[Use]
    ) -> dict[str, int]:
        """Return what windows would come to if one item used these, by name.

        See `ItemUses` for the arguments.
        """
        [found] = await self.totals_of_each([ItemUses(head, index, uses)])
        return dict(zip((use.name for use in uses), found, strict=True))

    async def totals_of_each(self, items: Sequence[ItemUses]) -> list[list[int]]:
        """Return what windows would come to if one of the items used these.

        All are of one tenant, and what is returned is as of one moment.

        Returns:
            For each item the total with each of its uses, in their order.
        """
        rows = [(one.head, one.index, use) for one in items for use in one.uses]
        if not rows:
            return [[] for _ in items]
        reply = await TOTALS(
            self._conn,
            places=[key for head, _, use in rows for key in (head, use.window)],
            uses=json.dumps([[index, use.use] for _, index, use in rows]),
        )
        totals = iter(_numbers(reply[1]))
        return [[next(totals) for _ in one.uses] for one in items]

    async def held(self, keys: Keys, window: str) -> int:
        """Return what a window holds now, by its key, in millionths."""
        [[held]] = await self.totals_of_each([held_in(keys, [window])])
        return held


def _numbers(reply: Reply) -> list[int]:
    return [number(total) for total in cast("list[Reply]", reply)]

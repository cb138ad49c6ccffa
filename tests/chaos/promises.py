"""Compare the effects with the records and messages; pure, so that it is tested.

Each check gets the same account of a run and returns one line for each broken promise.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from keyturn.gateway.approvals.events import BY_POLICY, Event, EventName
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.protocol.records import ItemState

DECIDED = {
    EventName.ITEM_AUTHORIZED: {ItemState.EXECUTED, ItemState.IN_DOUBT},
    EventName.ITEM_REJECTED: {ItemState.REJECTED},
}
"""Decisions, and the states in which a decided item may be at the end.

No tool here fails by itself, so a failed one is a lost one.
"""
_RAN = {ItemState.EXECUTED, ItemState.IN_DOUBT}
_CLAIM = re.compile(r"\b(refund|email|ping|count) (o\d+\.\d+)\b")


@dataclass(frozen=True)
class Account:
    """The facts of a run after its end.

    Attributes:
        approvals: every record.
        events: the audit log.
        effects: effects of the tools: tool, order, and idempotency key.
        forks: checkpoints that continue the same one.
        heard: threads whose first message a bot acknowledged.
        excused: number of private requests to the person to ask again.
        decided: clicks that decided according to a bot: approval, index; the index
            is None when the click was about the whole card.
        told: thread to the agent's last messages in Slack, one text a message.
    """

    approvals: Sequence[Approval] = ()
    events: Sequence[Event] = ()
    effects: Sequence[tuple[str, str, str]] = ()
    forks: Sequence[object] = ()
    heard: frozenset[str] = frozenset()
    excused: int = 0
    decided: Sequence[tuple[str, int | None]] = ()
    told: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])

    @property
    def items(self) -> list[Item]:
        """Return every item."""
        return [item for one in self.approvals for item in one.items]

    @property
    def threads(self) -> set[str]:
        """Return the threads that began: those with any event."""
        return {e.thread for e in self.events if e.thread}


def broken(account: Account) -> list[str]:
    """Return every promise that was broken."""
    checks = (doubled, unmatched, lost, unkept, forked, told_twice, unheard, untrue)
    return [line for check in checks for line in check(account)]


def doubled(account: Account) -> list[str]:
    """Return the calls with more than one effect.

    An idempotent one may be repeated, but under one key.
    """
    keys: dict[tuple[str, str], list[str]] = {}
    for name, order, key in account.effects:
        keys.setdefault((name, order), []).append(key)
    return [
        f"doubled: {name} {order} took effect {len(found)} times, keys {found}"
        for (name, order), found in keys.items()
        if len(set(found) if name == "email" else found) > 1
    ]


def unmatched(account: Account) -> list[str]:
    """Return items that ran by the record and not in the world, or the other way.

    A turn whose step was lost is asked for again, as another one: only one of the two
    items of an order runs, and `doubled` finds more than one effect.
    """
    orders = {(name, order) for name, order, _ in account.effects}
    ran = {(one.tool, one.args["order"]) for one in account.items if one.state in _RAN}
    wrong: list[str] = []
    for item in account.items:
        call = (item.tool, item.args["order"])
        has_run = call in orders
        has_decision = (item.decision or item.finding) is not None
        if item.state is ItemState.EXECUTED and not has_run and not has_decision:
            wrong.append(f"lost: {item.id} was executed and had no effect")
        if has_run and call not in ran:
            wrong.append(f"unauthorized: {item.id} is {item.state} and took effect")
    return wrong


def lost(account: Account) -> list[str]:
    """Return items whose last decision in the audit log differs from their record."""
    last = {
        e.item: e.name
        for e in account.events
        if e.name in DECIDED and e.actor != BY_POLICY
    }
    return [
        f"lost: {item.id} has {last[item.id].value} and is {item.state}"
        for item in account.items
        if item.id in last and item.state not in DECIDED[last[item.id]]
    ]


def unkept(account: Account) -> list[str]:
    """Return clicks that a bot called decisions and the audit log does not have."""
    names = {*DECIDED, EventName.ITEM_VOTED}
    kept = {e.item for e in account.events if e.name in names}
    cards = {item.rpartition(".")[0] for item in kept}
    return [
        f"lost: a decision about {approval}, item {index}, was shown and not kept"
        for approval, index in account.decided
        if (
            approval not in cards
            if index is None
            else f"{approval}.{index}" not in kept
        )
    ]


def forked(account: Account) -> list[str]:
    """Return the checkpoints that two others continue."""
    return [f"forked: {row}" for row in account.forks]


def told_twice(account: Account) -> list[str]:
    """Return the threads whose end was announced more than once."""
    ended = (e for e in account.events if e.name is EventName.RUN_FINISHED)
    ends = Counter(e.thread for e in ended)
    return [f"told {n} times: the end of {t}" for t, n in ends.items() if n > 1]


def unheard(account: Account) -> list[str]:
    """Return acknowledged messages that started no run and got no apology."""
    begun = {thread.rpartition(":")[2] for thread in account.threads}
    missing = sorted(account.heard - begun)
    if len(missing) <= account.excused:
        return []
    return [f"unheard: the message {ts} was acknowledged" for ts in missing]


def untrue(account: Account) -> list[str]:
    """Return words that call something done which had no effect, unless people did."""
    orders = {(name, order) for name, order, _ in account.effects}
    orders |= {
        (item.tool, str(item.args["order"]))
        for item in account.items
        if (item.decision or item.finding) is not None
    }
    return [
        f"untrue: {thread} was told {name} {order}, and it had no effect"
        for thread, texts in account.told.items()
        for text in texts
        for name, order in _CLAIM.findall(text)
        if (name, order) not in orders
    ]

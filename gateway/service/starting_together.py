"""Evaluate the calls of a card that start at once from one reading of the store.

The calls that one gesture approved start together, often in another process than the
one that decided them. Each asks the policy of now, which depends on what the store
knows; read for one after the other, that is a hundred round trips for fifty calls.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from twokey.gateway.approvals.record import Approval, Item, approval_of
from twokey.gateway.policy.rules import Policy
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.service.call_evaluation import (
    CurrentEvaluation,
    ReadCall,
    WaitingCall,
    read_calls,
)
from twokey.gateway.service.decided_by import decided_just_now
from twokey.gateway.store.atomic_write import Loaded
from twokey.gateway.store.store import Store


@dataclass(frozen=True)
class _Read:
    """What was read for a call, beside another one of the same reading of its card."""

    policy: Policy
    read_s: float
    call: ReadCall


class StartingTogether:
    """What was read for the calls that are about to start.

    Args:
        store: where everything is kept.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._starting = dict[str, list[int]]()
        self._read = dict[str, _Read]()
        # Event loops of several threads share one service.
        self._lock = threading.Lock()

    @contextmanager
    def starts(self, item_id: str) -> Generator[None]:
        """Read for this call, too, where another one of its card is evaluated."""
        try:
            approval_id, index = approval_of(item_id)
        except ValueError:
            yield  # it is no call of ours, and is refused
            return
        with self._lock:
            self._starting.setdefault(approval_id, []).append(index)
        try:
            yield
        finally:
            with self._lock:
                self._read.pop(item_id, None)
                self._starting[approval_id].remove(index)
                if not self._starting[approval_id]:
                    del self._starting[approval_id]

    async def evaluated(
        self, policy: Policy, loaded: Loaded, item: Item
    ) -> CurrentEvaluation:
        """Return what the policy says of a call that is to start now."""
        just_now = decided_just_now(self._store, policy, loaded, item)
        if just_now is not None:
            return just_now
        found = self._read.get(item.id)
        if found is None or not _is_for(found, policy, loaded):
            found = await self._read_all(policy, loaded, item)
        return found.call.evaluated()

    async def _read_all(self, policy: Policy, loaded: Loaded, item: Item) -> _Read:
        """Read what the calls depend on that wait to start; return that of one."""
        approval = loaded.approval
        items = [item, *self._others(approval, item)]
        calls = [WaitingCall(approval, one, one.args) for one in items]
        found = [
            _Read(policy, loaded.read_s, read)
            for read in await read_calls(self._store, policy, calls)
        ]
        with self._lock:
            waiting = self._starting.get(approval.id, ())
            for one, of in zip(items[1:], found[1:], strict=True):
                # Only of who still waits: nobody would take away the others'.
                if one.index in waiting:
                    self._read[one.id] = of
        return found[0]

    def _others(self, approval: Approval, item: Item) -> list[Item]:
        with self._lock:
            indexes = {*self._starting.get(approval.id, ())} - {item.index}
        return [
            one
            for one in approval.items
            if one.index in indexes and one.state is ItemState.AUTHORIZED
        ]


def _is_for(found: _Read, policy: Policy, loaded: Loaded) -> bool:
    """Return whether a call was read for this policy and this reading of its card.

    What is written in between may have been decided by; in another reading, the call
    itself may be another one.
    """
    return found.policy is policy and found.read_s == loaded.read_s

"""Store the recent state of webhook receivers, for operators."""

from __future__ import annotations

from typing import NamedTuple

from keyturn.gateway.store.connection.connection import Argument, fields
from keyturn.gateway.store.keys import KEEP_MS
from keyturn.gateway.store.store import Store


class ReceiverState(NamedTuple):
    """A receiver's recent state: times in milliseconds of the store, None for never.

    Attributes:
        ok_ms: time of the last delivery.
        failing_ms: start of the current series of failures.
        error: reason of the failure.
    """

    ok_ms: int | None
    failing_ms: int | None
    error: str


async def note_attempt(store: Store, tenant: str, target: str, error: str) -> None:
    """Record the result of a delivery; ``error`` is "" after a success.

    Raises:
        StoreUnavailable: when the result is unknown.
    """
    keys = store.keys_of_tenant(tenant)
    key, now_ms = keys.webhook(target), await store.conn.now_ms(keys.outbox)
    changes: list[list[Argument]] = [
        ["HSET", key, "ok", now_ms],
        ["HDEL", key, "failing", "error"],
    ]
    if error:
        changes = [["HSETNX", key, "failing", now_ms], ["HSET", key, "error", error]]
    await store.conn.keep(*changes, ["PEXPIRE", key, KEEP_MS])


async def receiver_state(store: Store, tenant: str, target: str) -> ReceiverState:
    """Return a receiver's recent state.

    Raises:
        StoreUnavailable: when the store does not answer.
    """
    key = store.keys_of_tenant(tenant).webhook(target)
    found = fields(await store.conn.command("HGETALL", key))
    error = found.get("error", b"").decode("utf-8", "replace")
    return ReceiverState(_moment(found, "ok"), _moment(found, "failing"), error)


def _moment(found: dict[str, bytes], name: str) -> int | None:
    return int(found[name]) if name in found else None

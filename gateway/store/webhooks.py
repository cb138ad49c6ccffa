"""Keep how each program that receives webhooks did lately, for operators."""

from __future__ import annotations

from typing import NamedTuple

from keyturn.gateway.store.connection import Argument, fields, text
from keyturn.gateway.store.keys import KEEP_MS
from keyturn.gateway.store.store import Store

_TIME = 14
"""Digits of a time in milliseconds, at most; of one until the year 5000."""


class ReceiverState(NamedTuple):
    """How a receiver did lately: milliseconds of the store, None for never.

    Attributes:
        ok_ms: when a message arrived last.
        failing_ms: since when none arrives.
        error: why.
    """

    ok_ms: int | None
    failing_ms: int | None
    error: str


async def note_attempt(store: Store, tenant: str, target: str, error: str) -> None:
    """Note the end of an attempt to send a message; ``error`` is "" if it arrived.

    Raises:
        StoreUnavailable: when it is not known to be kept.
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
    """Return how a receiver did lately.

    Raises:
        StoreUnavailable: when the store does not answer.
    """
    key = store.keys_of_tenant(tenant).webhook(target)
    found = fields(await store.conn.command("HGETALL", key))
    error = found.get("error", b"").decode("utf-8", "replace")
    return ReceiverState(_moment(found, "ok"), _moment(found, "failing"), error)


def _moment(found: dict[str, bytes], name: str) -> int | None:
    # Anybody may have written there: a number of many digits is no time.
    value = found.get(name, b"")
    return int(text(value)) if value.isdigit() and len(value) <= _TIME else None

"""Store the recent state of webhook receivers, for operators."""

from __future__ import annotations

from keyturn.gateway.protocol.records import Record
from keyturn.gateway.store.connection.connection import text
from keyturn.gateway.store.keys import KEEP_MS
from keyturn.gateway.store.store import Store


class ReceiverState(Record):
    """A receiver's recent state: times in milliseconds of the store, None for never.

    Attributes:
        ok_ms: time of the last delivery.
        failing_ms: start of the current series of failures.
        error: reason of the failure.
    """

    ok_ms: int | None = None
    failing_ms: int | None = None
    error: str = ""


async def note_attempt(store: Store, tenant: str, target: str, error: str) -> None:
    """Record the result of a delivery; ``error`` is "" after a success.

    The caller has the lease of the target, so it is the only writer.

    Raises:
        StoreUnavailable: when the result is unknown.
    """
    keys = store.keys_of_tenant(tenant)
    key, now_ms = keys.webhook(target), await store.conn.now_ms(keys.outbox)
    after = ReceiverState(ok_ms=now_ms)
    if error:
        before = await receiver_state(store, tenant, target)
        since_ms = before.failing_ms or now_ms
        after = before.with_(failing_ms=since_ms, error=error)
    await store.conn.keep(["SET", key, after.model_dump_json(), "PX", KEEP_MS])


async def receiver_state(store: Store, tenant: str, target: str) -> ReceiverState:
    """Return a receiver's recent state.

    Raises:
        StoreUnavailable: when the store does not answer.
    """
    key = store.keys_of_tenant(tenant).webhook(target)
    body = text(await store.conn.command("GET", key))
    return ReceiverState.model_validate_json(body) if body else ReceiverState()

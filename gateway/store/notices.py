"""Keep notices: how the calls on them ended, and who reported them."""

from __future__ import annotations

import json
from collections.abc import Mapping

from twokey.gateway.approvals.events import Event
from twokey.gateway.approvals.notice import CallState, Notice, Remark, row_id
from twokey.gateway.errors import UnreadableRecord
from twokey.gateway.store import codec, scripts
from twokey.gateway.store.attention import FAILED_MS
from twokey.gateway.store.connection import Connection, fields, number, text
from twokey.gateway.store.keys import RETENTION, Keys, shard_of_notice

_KEEP_MS = int(RETENTION.total_seconds() * 1000)
_REMARK = "by:"


class NoticeStore:
    """Notices of all tenants; `ApprovalStore.open_turn` writes them first."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    async def load(self, keys: Keys, notice: str) -> Notice | None:
        """Return a notice as it stands; None for an unknown id.

        Raises:
            NewerRecord: a newer version wrote it.
            UnreadableRecord: it is not what we wrote.
        """
        if shard_of_notice(notice) != keys.shard:
            return None
        found = fields(await self._conn.command("HGETALL", keys.notice(notice)))
        if "frozen" not in found:
            return None
        codec.check_format(notice, found)
        try:
            kept = _notice(found)
        except (ValueError, KeyError, TypeError) as error:
            raise UnreadableRecord(notice) from error
        if kept.id != notice:
            raise UnreadableRecord(notice)
        return kept

    async def end(
        self,
        keys: Keys,
        notice: str,
        index: int,
        state: CallState,
        summary: str,
        event: Event,
    ) -> bool:
        """Write how a call ended; False when that is known or there is no notice."""
        body = json.dumps([state.value, summary])
        failed = row_id(notice, index) if state is CallState.FAILED else ""
        return await self._note(keys, notice, str(index), body, event, failed=failed)

    async def report(
        self, keys: Keys, notice: str, remark: Remark, event: Event
    ) -> bool:
        """Write who reports a notice; False when they did, or there is no notice."""
        field = f"{_REMARK}{remark.by.team}/{remark.by.user}"
        body = remark.model_dump_json()
        return await self._note(keys, notice, field, body, event, once=True)

    async def _note(
        self,
        keys: Keys,
        notice: str,
        field: str,
        body: str,
        event: Event,
        *,
        once: bool = False,
        failed: str = "",
    ) -> bool:
        reply = await scripts.NOTE(
            self._conn,
            notice=keys.notice(notice),
            outbox=keys.outbox,
            audit=keys.audit,
            failures=keys.failures(event.tenant, event.agent),
            field=field,
            body=body,
            once=once,
            keep_ms=_KEEP_MS,
            events=json.dumps([event.model_dump_json()]),
            failed=failed,
            failed_ms=FAILED_MS,
        )
        return text(reply[0]) == "done"


def _notice(found: Mapping[str, bytes]) -> Notice:
    kept = Notice.model_validate_json(found["frozen"])
    calls = tuple(call.with_(**_end(found, str(call.index))) for call in kept.calls)
    return kept.with_(
        rev=number(found["rev"]),
        created_at_ms=number(found["created"]),
        calls=calls,
        remarks=_remarks(found),
    )


def _end(found: Mapping[str, bytes], field: str) -> dict[str, object]:
    if field not in found:
        return {}
    state, summary = json.loads(found[field])
    return {
        "state": CallState(state),
        "summary": str(summary),
        "changed_at_ms": number(found[f"{field}:at"]),
    }


def _remarks(found: Mapping[str, bytes]) -> tuple[Remark, ...]:
    remarks = [
        Remark.model_validate_json(body).with_(at_ms=number(found[f"{field}:at"]))
        for field, body in found.items()
        if field.startswith(_REMARK) and not field.endswith(":at")
    ]
    return tuple(sorted(remarks, key=lambda one: (one.at_ms, one.by.user)))

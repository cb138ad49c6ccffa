"""Precedents are read despite entries of a broken writer."""

from __future__ import annotations

from keyturn.gateway.approvals.precedents import Precedent
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store.connection.connection import Connection
from keyturn.gateway.store.keys import keys_of_tenant
from keyturn.gateway.store.limits.precedents import read, row_of_auto_run

CONN = Connection("redis://127.0.0.1:1")


def test_what_is_no_text_is_left_out() -> None:
    assert read(CONN, "key", {"ap_1.0": b"5 6 done \xff"}).precedents == ()


def test_a_call_of_tier_auto_is_written_as_any_other_precedent() -> None:
    whole = Precedent(
        call="auto_1", state=ItemState.AUTHORIZED, agent="ana \u00e9", args_hash="ff"
    )

    row = row_of_auto_run(
        keys_of_tenant("default"), "effect", "auto_1", "ana \u00e9", "ff"
    )

    assert row[1:4] == (
        "auto_1",
        "done",
        whole.model_dump_json(
            exclude={"call", "since_ms", "at_ms"}, exclude_defaults=True
        ),
    )

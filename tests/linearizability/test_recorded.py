"""What real processes do to the same approvals on a real server has an order."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from keyturn.gateway.store.store import Store
from tests.levels import size
from tests.linearizability.approval_model import ApprovalModel
from tests.linearizability.checker import violations
from tests.linearizability.recording import record, with_time

OPERATIONS = size(deep=100_000, short=2000)


@pytest.mark.timeout(300)
async def test_what_four_processes_do_at_once_could_have_been_done_one_by_one(
    store: Store, valkey_url: str, tmp_path: Path
) -> None:
    history = await record(valkey_url, tmp_path, operations=OPERATIONS)

    told = [str(one) for one in violations(with_time(history), ApprovalModel())]

    assert not told, "\n".join(told[:3])
    names = Counter(one.name for one in history)
    assert sum(names.values()) > OPERATIONS / 2
    assert (
        min(names[each] for each in ("decide", "claim", "finish", "hand_over", "read"))
        > 0
    )

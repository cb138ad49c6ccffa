"""Another agent's call is answered exactly like a call that does not exist."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keyturn.gateway.approvals.decisions import Edit
from keyturn.gateway.protocol.edits import edit_hash
from tests.api.api_stack import ApiStack
from tests.service.harness import ANA

REF = {"agent": "support", "thread": "t1", "message_id": "m1"}
RUN = {"agent": "support", "thread": "t1"}
OTHERS, UNKNOWN, HASH = "$item", f"ap_default_{'0' * 32}.0", "$edit"
CLAIM = {"ref": REF, "tool": "process_refund", "tool_call_id": "c0", "owner": "o"}
QUESTION = {"kind": "keyturn.approval", "action_hash": f"sha256:{'0' * 64}"}
ASKED: dict[str, dict[str, Any]] = {
    "edits-known": {"ref": REF, "edits": {HASH: OTHERS}},
    "late-reports": {"ref": REF, "item_ids": [OTHERS]},
    "heartbeat": {"item_id": OTHERS, "fence": 1},
    "finish": {"item_id": OTHERS, "fence": 1, "result": {"ok": True}},
    "release": {"item_id": OTHERS, "fence": 1},
    "claim": {"item_id": OTHERS, **CLAIM},
    "withdraw": {"run": RUN, "item_ids": [OTHERS]},
    "answers": {"run": RUN, "questions": [{"item_id": OTHERS, **QUESTION}]},
}


def about(body: dict[str, Any], item: str, edit: str) -> Any:
    """Return a body with an item and an edit in their places."""
    return json.loads(json.dumps(body).replace(OTHERS, item).replace(HASH, edit))


@pytest.mark.parametrize("path", ASKED)
async def test_an_answer_does_not_tell_another_agents_call_from_none(
    stack: ApiStack, path: str
) -> None:
    harness = stack.harness
    _, (verdict,) = await harness.submit(("process_refund", {"amount": 5}), agent="b")
    click = await harness.click(verdict)
    await harness.reviews.decide(click, Edit(args={"amount": 4}), ANA)
    record = (await harness.item(verdict.item_id)).edit
    assert record is not None
    async with stack.client() as client:
        theirs, none = [
            await client.post(
                f"/v1/{path}", json=about(ASKED[path], item, edit_hash(record))
            )
            for item in (verdict.item_id, UNKNOWN)
        ]

    told = [
        reply.text.replace(item, "it")
        for reply, item in ((theirs, verdict.item_id), (none, UNKNOWN))
    ]
    assert (theirs.status_code, told[0]) == (none.status_code, told[1])
    assert theirs.status_code in {200, 404}, theirs.text

"""Large arguments of one agent delay no other: they are processed in threads."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from keyturn.gateway.approvals.decisions import Decided, Edit
from keyturn.gateway.approvals.record import approval_of
from keyturn.gateway.protocol.wire import Verdict
from tests.api.api_stack import ApiStack
from tests.loop_watch import watched
from tests.service.harness import ANA

ARGUMENTS: dict[str, dict[str, Any]] = {
    "numbers": {"a": [1.5e-7] * 6000},
    "names": {f"k{n}": n for n in range(4000)},
    "nested": {"a": [[{"b": [1.5] * 4}] * 3] * 500},
}


@pytest.mark.parametrize(
    ("tool", "kind"),
    [*(("process_refund", kind) for kind in ARGUMENTS), ("look_up", "nested")],
)
async def test_no_step_of_a_call_walks_them_on_the_event_loop(
    stack: ApiStack, monkeypatch: pytest.MonkeyPatch, kind: str, tool: str
) -> None:
    args = ARGUMENTS[kind]
    ref = {"agent": "support", "thread": "t1", "message_id": "m1"}
    call = {"tool": tool, "args": args, "tool_call_id": "c1"}
    headers = {"Authorization": f"Bearer {stack.key()}"}
    found = watched(monkeypatch)
    async with httpx.AsyncClient(base_url=stack.url, headers=headers) as client:
        turn = {"ref": ref, "calls": [call]}
        (verdict,) = (await client.post("/v1/submit", json=turn)).json()
        if verdict["kind"] == "run":
            assert not found, "\n".join(found)
            return
        path = f"/v1/approvals/{approval_of(verdict['item_id'])[0]}"
        assert (await client.get(path)).status_code == 200
        assert (await client.get("/v1/approvals")).status_code == 200
        click = await stack.harness.click(Verdict.model_validate(verdict))
        edit = Edit(args={**args, "added": 1})
        reviews = stack.harness.reviews
        assert isinstance(await reviews.decide(click, edit, ANA), Decided)

    assert not found, "\n".join(found)

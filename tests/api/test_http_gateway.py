"""An agent in another process asks, waits, runs and reports over HTTP."""

from __future__ import annotations

import httpx
import pytest

from keyturn.gateway.client.http_gateway import HttpGateway
from keyturn.gateway.errors import NotAllowed, SettingsError
from keyturn.gateway.protocol.http_api import OPERATIONS, Scope
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef, VerdictKind
from tests.api.api_stack import ApiStack
from tests.service.harness import claim_of

REF = TurnRef(agent="support", thread="t1", message_id="m1")


def turn(ref: TurnRef = REF, tool: str = "process_refund") -> Turn:
    call = ProposedCall(tool=tool, args={"amount": 899}, tool_call_id="c1")
    return Turn(ref=ref, calls=(call,))


NEVER = "tk_" + "0" * 16 + "_" + "0" * 64


@pytest.mark.parametrize("key", ["x", NEVER, NEVER.upper(), f"{NEVER}0"])
async def test_nothing_is_answered_without_a_key(stack: ApiStack, key: str) -> None:
    async with httpx.AsyncClient(base_url=stack.url) as client:
        for operation in OPERATIONS:
            reply = await client.post(
                operation.path, headers={"Authorization": f"Bearer {key}"}
            )
            assert reply.status_code == 401
            assert reply.headers["Content-Type"].startswith("application/problem+json")
            assert "keyturn api-keys create" in reply.json()["detail"]


async def test_a_key_speaks_for_its_agents_alone(stack: ApiStack) -> None:
    other = stack.key(agents=["billing"])
    async with stack.gateway() as mine, stack.gateway(other) as theirs:
        (verdict,) = await mine.submit(turn())
        claim = claim_of(REF, verdict)
        inside = TurnRef(
            agent="billing", thread="t2", message_id="m", nested_in=REF.run_ref
        )
        for ask in (
            theirs.submit(turn()),
            theirs.claim(claim),
            theirs.outcomes(REF),
            theirs.supersede(REF),
            theirs.supersede(inside),
            theirs.history(REF.run_ref),
            theirs.note("support"),
        ):
            with pytest.raises(NotAllowed, match="does not speak for"):
                await ask


async def test_a_key_uses_its_tools_alone(stack: ApiStack) -> None:
    key = stack.key(tools=["look_up_order"])
    async with stack.gateway(key) as gateway:
        with pytest.raises(NotAllowed, match="may not use the tool"):
            await gateway.submit(turn())
        (verdict,) = await gateway.submit(turn(tool="look_up_order"))

    assert verdict.kind is VerdictKind.RUN


@pytest.mark.parametrize("scope", list(Scope))
async def test_a_key_does_what_its_scopes_say(stack: ApiStack, scope: Scope) -> None:
    key = stack.key(scopes=[scope])
    async with httpx.AsyncClient(base_url=stack.url) as client:
        for operation in OPERATIONS:
            reply = await client.post(
                operation.path, headers={"Authorization": f"Bearer {key}"}
            )
            expected = 400 if operation.scope is scope else 403
            assert (operation.name, reply.status_code) == (operation.name, expected)


@pytest.mark.parametrize(
    "url",
    [
        *("", "gateway.example", "http://gateway.example", "ftp://x", "https://"),
        *("http://127.0.0.1:port", "https://me:word@gateway.example"),
        *("https://gateway.example?tenant=a", "https://gateway.example/#a"),
    ],
)
def test_a_key_does_not_travel_in_the_clear(url: str) -> None:
    with pytest.raises(SettingsError, match="cannot be used"):
        HttpGateway(url, "tk_secret")


def test_no_key_stands_in_a_representation() -> None:
    assert "tk_secret" not in repr(HttpGateway("https://gateway.example", "tk_secret"))

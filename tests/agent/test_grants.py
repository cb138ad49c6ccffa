"""A guarded tool runs under a matching grant, once, and never otherwise."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.prebuilt import InjectedState

from keyturn.agent import Grant, grant, guarded
from keyturn.agent.grants import grant_scope
from keyturn.agent.messages import failed_result
from keyturn.gateway.errors import NotAllowed, NotStarted
from keyturn.gateway.gates.gate import is_guarded
from keyturn.gateway.protocol import wire
from keyturn.gateway.protocol.records import FailureKind


def _grant(args: dict[str, Any], name: str = "pay") -> Grant:
    return Grant("ap0.0", "key", "sha256:aa", name, wire.args_hash(args))


@guarded
@tool
def pay(amount: float, to: str = "ada") -> str:
    """Make a payment."""
    return f"{amount} to {to} under {grant().idempotency_key}"


async def _call(each: BaseTool, args: Any, *, is_async: bool) -> Any:
    return await each.ainvoke(args) if is_async else each.invoke(args)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_matching_grant_is_good_for_one_run(
    is_async: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    with grant_scope(_grant({"amount": 1})):
        first = await _call(pay, {"amount": 1}, is_async=is_async)
        with pytest.raises(NotAllowed, match="already ran"):
            await _call(pay, {"amount": 1}, is_async=is_async)

    assert first == "1.0 to ada under key"


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    "args",
    [{"amount": 2}, {"amount": 1, "to": "eve"}, {"amount": "1"}, {}, "1"],
)
async def test_other_arguments_than_those_granted_do_not_run(
    is_async: bool,  # noqa: FBT001 - a parameter of the test
    args: Any,
) -> None:
    with (
        grant_scope(_grant({"amount": 1})),
        pytest.raises(NotAllowed, match="differs from the cleared one"),
    ):
        await _call(pay, args, is_async=is_async)


def test_a_grant_for_another_tool_and_no_grant_do_not_run() -> None:
    with grant_scope(_grant({"amount": 1}, "look_up")), pytest.raises(NotAllowed):
        pay.invoke({"amount": 1})
    with pytest.raises(NotAllowed, match="this call was not cleared"):
        pay.invoke({"amount": 1})
    with pytest.raises(NotAllowed, match="no grant"):
        grant()


async def test_a_grant_that_leaked_into_a_task_is_closed_with_its_execution() -> None:
    go = asyncio.Event()

    async def later() -> Any:
        await go.wait()
        return await pay.ainvoke({"amount": 1})

    with grant_scope(_grant({"amount": 1})):
        leaked = asyncio.create_task(later())
        await asyncio.sleep(0)
    go.set()

    with pytest.raises(NotAllowed):
        await leaked


def test_a_guarded_tool_keeps_what_the_model_and_langchain_see_of_it() -> None:
    @tool
    def plain(amount: float, to: str = "ada") -> str:
        """Make a payment."""
        return f"{amount} {to}"

    copy = guarded(plain)

    assert (copy.name, copy.description) == (plain.name, plain.description)
    assert copy.args == plain.args
    assert isinstance(copy, StructuredTool)
    assert (is_guarded(copy), is_guarded(plain)) == (True, False)
    assert guarded(copy) is copy
    assert plain.invoke({"amount": 1}) == "1.0 ada"


def test_arguments_that_the_runtime_injects_are_not_part_of_the_grant() -> None:
    @guarded
    @tool
    def peek(query: str, state: Annotated[dict[str, Any], InjectedState]) -> str:
        """Look into the state."""
        return f"{query} {state['x']}"

    with grant_scope(_grant({"query": "q"}, "peek")):
        assert peek.invoke({"query": "q", "state": {"x": 1}}) == "q 1"


class _Old(BaseTool):
    name: str = "old"
    description: str = "A tool of the old kind."

    def _run(self, amount: float) -> str:
        return f"old {amount}"


def test_a_tool_class_of_ones_own_can_be_guarded() -> None:
    old = guarded(_Old())

    with grant_scope(_grant({"amount": 1}, "old")):
        assert old.invoke({"amount": 1}) == "old 1"
    with pytest.raises(NotAllowed):
        old.invoke({"amount": 1})


def test_a_tool_that_its_own_guard_refused_did_nothing() -> None:
    with grant_scope(_grant({"amount": 1})), pytest.raises(NotStarted) as refused:
        pay.invoke({"amount": 2})

    failed = failed_result(refused.value)
    assert failed.failure is FailureKind.NOT_STARTED
    assert failed.summary.endswith("List `ApprovalMiddleware` last.")


def test_a_tool_in_which_another_one_was_refused_may_have_had_its_effect() -> None:
    with grant_scope(_grant({"amount": 1}, "look_up")), pytest.raises(NotAllowed) as e:
        pay.invoke({"amount": 1})

    failed = failed_result(e.value)
    assert failed.failure is FailureKind.REFUSED
    assert failed.has_started
    assert "'pay' differs from the cleared one" in failed.summary

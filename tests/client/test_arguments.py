"""What cannot be used is refused where it is given, with its value and what to do."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import tool

from keyturn import Keyturn
from keyturn.agent import (
    ApprovalMiddleware,
    aask_questions,
    arequire_approval,
    connected,
    gated_subagents,
    guarded,
)
from keyturn.gateway.errors import GraphError, SettingsError
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.resume.langgraph_local import check_config
from keyturn.gateway.resume.program import wait_at_most

URL, KEY = "http://127.0.0.1:9", "tk_" + "a" * 43
POLICY = load_policy(
    'version: 1\ndefaults: {channel: "#a", needs: r}\nroles: {r: {users: [U0ANA]}}',
    "policy.yml",
)


@tool
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


async def _pay(**_: Any) -> None:
    """Pay."""


def remote() -> Any:
    return Keyturn.remote(URL, api_key=KEY)


def middleware(**given: Any) -> object:
    whole: dict[str, Any] = {"gateway": URL, "api_key": KEY, **given}
    return ApprovalMiddleware("a", **whole)


def entered(gateway: Any, ungated: Any = ()) -> object:
    return connected(gateway, ungated=ungated).__enter__()


async def step(**given: Any) -> object:
    gateway = remote().gateway
    whole: dict[str, Any] = {"tool": "pay", "args": {}, "run": _pay, "gateway": gateway}
    found: object = await arequire_approval(**{**whole, **given})
    return found


async def questions(given: Any, agent: Any = "agent") -> object:
    return await aask_questions(given, agent=agent, gateway=remote().gateway)


async def waited(seconds: Any) -> None:
    async with wait_at_most(seconds, "t"):
        await asyncio.Event().wait()


async def answers(timeout_s: Any) -> None:
    async with remote() as tk:
        await tk.answers([], thread_id="t", timeout_s=timeout_s)


async def withdrawn(ids: Any) -> None:
    async with remote() as tk:
        await tk.withdraw(thread_id="t", item_ids=ids)


NO_GATEWAYS = [5, True, URL.encode(), Path("x"), ["x"], Keyturn]
NO_NAMES = ["", " a", "a\0", 5, None]
NO_SECONDS = ["3", math.nan, True, timedelta(seconds=3), b"3"]
NO_EXCEPTIONS = [5, ["pay"], {"a": "pay"}, {"a": 5}, {5: ["pay"]}]

REFUSED: list[tuple[Callable[[Any], object], list[Any], str]] = [
    (lambda it: middleware(gateway=it), NO_GATEWAYS, "give the URL of one as text"),
    (entered, NO_GATEWAYS, "give the URL"),
    (lambda it: Keyturn.remote(it, api_key=KEY), NO_GATEWAYS, "give a URL as text"),
    (lambda it: middleware(gateway=it), [remote()], "`gateway` of Keyturn"),
    (
        lambda it: middleware(gateway=it),
        [f"{URL} ", "https://exa mple.com", "127.0.0.1:9", ""],
        "write https://host",
    ),
    (
        lambda it: middleware(receipt_keys=it),
        [5, None, b"x", "x", [5], ["x"]],
        "keyturn keys list",
    ),
    (lambda it: middleware(interrupt_on=it), [5, ["pay"], {5: True}], "interrupt_on"),
    (ApprovalMiddleware, NO_NAMES, "needs a name"),
    (lambda it: step(agent=it), NO_NAMES, "needs a name"),
    (lambda it: questions(["Which?"], agent=it), NO_NAMES, "needs a name"),
    (guarded, [5, None, "pay", {}], "give a tool"),
    (lambda it: guarded(pay, recheck=it), [5, "state"], "recheck="),
    (gated_subagents, [5, None, "x", ["x"], {"name": "x"}], "subagents="),
    (
        lambda it: Keyturn.remote(URL, api_key=KEY, ungated=it),
        NO_EXCEPTIONS,
        "ungated",
    ),
    (lambda it: Keyturn(policy=POLICY, ungated=it), NO_EXCEPTIONS, "ungated"),
    (lambda it: entered(remote().gateway, it), ["pay"], "ungated='pay'"),
    (
        lambda it: Keyturn.remote(URL, api_key=KEY, webhook_secrets=it),
        ["whsec_x"],
        "webhook_secrets",
    ),
    (Keyturn, [5], r"settings=5 .*Settings\.load"),
    (lambda it: Keyturn(policy=it), [Path("/tmp")], "Is a directory"),  # noqa: S108 - not written
    (waited, NO_SECONDS, "give seconds as a number"),
    (answers, NO_SECONDS, "give seconds as a number"),
    (
        questions,
        ["Which?", b"Which?", 5, None, {"question": "x"}],
        "is not a list of questions",
    ),
    (withdrawn, ["ap_7.1", 5, [5], b"ap_7.1"], "give a list of ids of calls"),
    (
        lambda it: check_config(it, "t"),
        [5, "x", {"configurable": "t"}],
        "'recursion_limit'",
    ),
]


@pytest.mark.parametrize(
    ("use", "given", "match"),
    [(use, one, match) for use, values, match in REFUSED for one in values],
)
async def test_what_cannot_be_used_is_refused_with_what_to_do(
    use: Callable[[Any], object], given: Any, match: str
) -> None:
    async def used() -> None:
        work = use(given)
        if inspect.isawaitable(work):
            await work

    with pytest.raises((GraphError, SettingsError, ValueError), match=match):
        await used()


@pytest.mark.parametrize("key", [5, KEY.encode(), [KEY]])
def test_what_is_no_key_is_refused_and_not_shown(key: Any) -> None:
    with pytest.raises(SettingsError, match="keyturn api-keys create") as refused:
        middleware(api_key=key)

    assert KEY not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        *(("url", 5), ("checkpoints", Path("x")), ("data_dir", "x"), ("data_dir", 5)),
        *(("secrets", "x"), ("secrets", 5), ("secrets", ["x"]), ("secrets", [b""])),
        *(("slots", "3"), ("slots", 0), ("slots", math.nan), ("slots", 257)),
        *(("slots", -1), ("slots", 1.5), ("slots", True)),
        *(("tenant", 5), ("tenant", ""), ("tenant", "A B"), ("retries", 5)),
        *(("audit_folder", "x"), ("policy", 5), ("triage", 5)),
        *(("encrypt_store", "no"),),
    ],
)
def test_an_unusable_argument_is_refused_by_name(name: str, given: Any) -> None:
    options: dict[str, Any] = {"policy": POLICY, name: given}

    with pytest.raises(SettingsError, match=name):
        Keyturn(**options)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        *(("tool", 5), ("tool", ""), ("tool", None), ("key", 5), ("says", b"x")),
        *(("task", None), ("schema", 5), ("schema", "{}"), ("recheck", 5)),
    ],
)
async def test_an_unusable_step_is_refused_by_name(name: str, given: Any) -> None:
    with pytest.raises(SettingsError, match=f"{name}="):
        await step(**{name: given})


async def test_what_is_left_of_a_deadline_may_be_nothing() -> None:
    with pytest.raises(TimeoutError, match="within -1 s"):
        await waited(-1)

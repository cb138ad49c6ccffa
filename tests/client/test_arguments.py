"""What cannot be used is refused where it is given, with its value and what to do."""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

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


@pytest.mark.parametrize(
    "given", [5, True, b"http://127.0.0.1:9", Path("x"), object(), ["x"], Keyturn]
)
def test_what_is_no_gateway_is_refused_at_construction(given: Any) -> None:
    with pytest.raises(SettingsError, match="give the URL of one as text") as refused:
        ApprovalMiddleware("a", gateway=given)
    with pytest.raises(SettingsError, match="give the URL"), connected(given):
        pass
    with pytest.raises(SettingsError, match="give a URL as text"):
        Keyturn.remote(given, api_key=KEY)

    assert repr(given)[:80] in str(refused.value)


def test_a_remote_gateway_and_its_program_are_told_apart() -> None:
    remote = Keyturn.remote(URL, api_key=KEY)

    assert ApprovalMiddleware("a", gateway=remote.gateway).gateway() is remote.gateway
    with pytest.raises(SettingsError, match="`gateway` of Keyturn"):
        ApprovalMiddleware("a", gateway=remote)  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize("url", [f"{URL} ", "https://exa mple.com", "127.0.0.1:9", ""])
def test_what_is_no_url_is_refused_at_construction(url: str) -> None:
    with pytest.raises(SettingsError, match="write https://host"):
        ApprovalMiddleware("a", gateway=url, api_key=KEY)


@pytest.mark.parametrize("key", [5, KEY.encode(), [KEY]])
def test_what_is_no_key_is_refused_and_not_shown(key: Any) -> None:
    with pytest.raises(SettingsError, match="keyturn api-keys create") as refused:
        ApprovalMiddleware("a", gateway=URL, api_key=key)

    assert KEY not in str(refused.value)


@pytest.mark.parametrize("keys", [5, None, b"x", "x", [5]])
def test_what_are_no_receipt_keys_is_refused(keys: Any) -> None:
    with pytest.raises(SettingsError, match="keyturn keys list"):
        ApprovalMiddleware("a", gateway=URL, api_key=KEY, receipt_keys=keys)


@pytest.mark.parametrize("given", [5, ["pay"], {5: True}])
def test_what_is_no_interrupt_on_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="interrupt_on"):
        ApprovalMiddleware("a", interrupt_on=given)


@pytest.mark.parametrize("name", ["", " a", "a\0", 5, None])
async def test_an_agent_without_a_name_is_refused(name: Any) -> None:
    gateway = Keyturn.remote(URL, api_key=KEY).gateway

    with pytest.raises(SettingsError, match="needs a name") as refused:
        ApprovalMiddleware(name)
    with pytest.raises(SettingsError, match="needs a name"):
        await arequire_approval("pay", {}, run=_pay, agent=name, gateway=gateway)
    with pytest.raises(SettingsError, match="needs a name"):
        await aask_questions(["Which?"], agent=name, gateway=gateway)

    assert repr(name) in str(refused.value)


@pytest.mark.parametrize("given", [5, None, "pay", {}])
def test_what_is_no_tool_is_not_guarded(given: Any) -> None:
    with pytest.raises(SettingsError, match="give a tool"):
        guarded(given)


@pytest.mark.parametrize("given", [5, "state"])
def test_what_is_no_recheck_is_refused(given: Any) -> None:
    with pytest.raises(SettingsError, match="recheck="):
        guarded(pay, recheck=given)


@pytest.mark.parametrize("given", [5, None, "x", ["x"], {"name": "x"}])
def test_what_are_no_subagents_is_refused(given: Any) -> None:
    with pytest.raises(SettingsError, match="subagents="):
        gated_subagents(given)


@pytest.mark.parametrize("given", [5, ["pay"], {"a": "pay"}, {"a": 5}, {5: ["pay"]}])
def test_what_are_no_exceptions_is_refused(given: Any) -> None:
    with pytest.raises(SettingsError, match="ungated"):
        Keyturn.remote(URL, api_key=KEY, ungated=given)
    with pytest.raises(SettingsError, match="ungated"):
        Keyturn(policy=POLICY, ungated=given)


def test_one_name_is_no_list_of_exceptions() -> None:
    gateway = Keyturn.remote(URL, api_key=KEY).gateway

    with pytest.raises(SettingsError, match="ungated='pay'"):
        connected(gateway, ungated="pay").__enter__()


@pytest.mark.parametrize("given", [{"retries": 5}, {"webhook_secrets": 5}])
def test_what_a_remote_gateway_cannot_use_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(given))):
        Keyturn.remote(URL, api_key=KEY, **given)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        *(("url", 5), ("checkpoints", Path("x")), ("data_dir", "x"), ("data_dir", 5)),
        *(("secrets", "x"), ("secrets", 5), ("secrets", ["x"]), ("secrets", [b""])),
        *(("slots", "3"), ("slots", 0), ("slots", math.nan), ("slots", 257)),
        *(("slots", "3"), ("slots", -1), ("slots", 1.5), ("slots", True)),
        *(("tenant", 5), ("tenant", ""), ("tenant", "A B"), ("retries", 5)),
        *(("audit_folder", "x"), ("keyring", 5), ("policy", 5), ("triage", 5)),
        *(("encrypt_store", "no"), ("insecure_dev", 1), ("insecure_dev", None)),
    ],
)
def test_what_a_gateway_cannot_use_is_refused(name: str, given: Any) -> None:
    with pytest.raises(SettingsError, match=name):
        Keyturn(**cast("dict[str, Any]", {"policy": POLICY, name: given}))


def test_a_folder_or_what_are_no_settings_is_no_policy(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="Is a directory"):
        Keyturn(policy=tmp_path)
    with pytest.raises(SettingsError, match=r"settings=5 .*Settings\.load"):
        Keyturn(5)  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize("given", ["3", math.nan, True, timedelta(seconds=3), b"3"])
async def test_what_are_no_seconds_is_refused(given: Any) -> None:
    with pytest.raises(SettingsError, match="give seconds as a number"):
        async with wait_at_most(given, "t"):
            pass
    async with Keyturn.remote(URL, api_key=KEY) as tk:
        with pytest.raises(SettingsError, match="give seconds as a number"):
            await tk.answers([], thread_id="t", timeout_s=given)


async def _pay(**_: Any) -> None:
    """Pay."""


@pytest.mark.parametrize(
    ("name", "given"),
    [
        *(("tool", 5), ("tool", ""), ("tool", None), ("key", 5), ("says", b"x")),
        *(("task", None), ("schema", 5), ("schema", "{}"), ("recheck", 5)),
    ],
)
async def test_what_a_step_cannot_use_is_refused(name: str, given: Any) -> None:
    gateway = Keyturn.remote(URL, api_key=KEY).gateway
    step: dict[str, Any] = {"tool": "pay", "args": {}, "run": _pay, name: given}

    with pytest.raises(SettingsError, match=f"{name}="):
        await arequire_approval(**step, gateway=gateway)


@pytest.mark.parametrize("given", ["Which?", b"Which?", 5, None, {"question": "x"}])
async def test_one_text_is_no_list_of_questions(given: Any) -> None:
    with pytest.raises(ValueError, match="is not a list of questions"):
        await aask_questions(given, gateway=Keyturn.remote(URL, api_key=KEY).gateway)


@pytest.mark.parametrize("given", ["ap_7.1", 5, [5], b"ap_7.1"])
async def test_what_are_no_ids_of_calls_is_refused(given: Any) -> None:
    async with Keyturn.remote(URL, api_key=KEY) as tk:
        with pytest.raises(SettingsError, match="give a list of ids of calls"):
            await tk.withdraw(thread_id="t", item_ids=given)


async def test_what_is_left_of_a_deadline_may_be_nothing() -> None:
    with pytest.raises(TimeoutError, match="within -1 s"):
        async with wait_at_most(-1, "t"):
            await asyncio.Event().wait()


@pytest.mark.parametrize("config", [5, "x", {"configurable": "t"}])
def test_what_is_no_config_is_refused(config: Any) -> None:
    with pytest.raises(GraphError, match="'recursion_limit'"):
        check_config(config, "t")

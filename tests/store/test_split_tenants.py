"""Whether a tenant is split by agent stays what it was at its first start."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.service.harness import RULES, ServiceHarness
from twokey.cli import freeze, policy
from twokey.cli.command_context import CommandContext
from twokey.cli.main import add
from twokey.gateway.config import Settings
from twokey.gateway.embed import Twokey
from twokey.gateway.errors import PolicyError, SettingsError
from twokey.gateway.policy.load import BadPolicy, load_policy
from twokey.gateway.policy_file import PolicyFile
from twokey.gateway.store.connection import Argument, Reply
from twokey.gateway.store.open_store import open_store
from twokey.gateway.store.split_tenants import ensure_split
from twokey.gateway.store.store import Store

HEAD = """version: 1
defaults: {channel: C0APPROVALS, reviewers: [U0ANA]}
"""
SPANNING = f"{HEAD}windows: {{all: {{tools: '*', count: true, within: 1h}}}}\n"
SETTINGS = "shards: 4\nsplit_by_agent: true\npolicy: policy.yml\n"


async def ensure(store: Store, tenant: str = "default", *, is_split: bool) -> None:
    """Start a process of a tenant, as far as this is concerned."""
    keys = store.keys_of_tenant(tenant)
    await ensure_split(store.conn, keys, tenant, is_split=is_split)


@pytest.mark.parametrize("is_split", [True, False])
async def test_a_tenant_keeps_what_it_was_set_up_with(
    store: Store, *, is_split: bool
) -> None:
    await ensure(store, is_split=is_split)

    await ensure(store, is_split=is_split)
    await ensure(store, "acme", is_split=not is_split)
    with pytest.raises(SettingsError) as told:
        await ensure(store, is_split=not is_split)
    was, here = str(is_split).lower(), str(not is_split).lower()
    assert f"'split_by_agent: {was}' in this store, and it is {here} here" in str(
        told.value
    )
    assert "once nothing of it waits, give it another name in 'tenant'" in str(
        told.value
    )


async def test_of_two_first_starts_with_two_settings_one_is_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, read = store.conn.command, asyncio.Barrier(2)
    firsts = iter([True, True])

    async def both_read_first(*words: Argument) -> Reply:
        reply = await command(*words)
        if words[0] == "GET" and next(firsts, False):
            await read.wait()
        return reply

    monkeypatch.setattr(store.conn, "command", both_read_first)

    done = await asyncio.gather(
        *(ensure(store, is_split=one) for one in (True, False)), return_exceptions=True
    )

    assert sorted(type(one).__name__ for one in done) == ["NoneType", "SettingsError"]


async def test_a_tenant_with_calls_of_before_the_setting_is_not_split(
    store: Store,
) -> None:
    # As a version that knows no such setting left it.
    await ServiceHarness(store).refund()

    with pytest.raises(SettingsError, match="once nothing of it waits"):
        await ensure(store, is_split=True)

    await ensure(store, is_split=False)


async def test_two_programs_with_two_settings_do_not_both_run(
    store: Store, tmp_path: Path
) -> None:
    url = store.conn.url
    async with Twokey(
        policy=RULES, url=url, data_dir=tmp_path, shards=4, split_by_agent=True
    ) as tk:
        assert len(tk.store.parts_of("default")) == 4
        with pytest.raises(SettingsError, match="'split_by_agent: true' in this"):
            async with Twokey(policy=RULES, url=url, data_dir=tmp_path, shards=4):
                pass


async def test_a_store_of_one_shard_splits_no_tenant(
    store: Store, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match="'shards' is 1"):
        async with open_store(store.conn.url, tmp_path, split_by_agent=True):
            pass


async def test_a_command_with_the_other_setting_freezes_nothing(
    store: Store, tmp_path: Path
) -> None:
    async with open_store(store.conn.url, tmp_path, shards=4, split_by_agent=True):
        pass
    (tmp_path / "twokey.yml").write_text(
        f"policy: {{version: 1}}\nshards: 4\ndata_dir: {tmp_path}\n"
    )
    app = typer.Typer()
    app.command()(freeze.freeze)
    app.command()(freeze.unfreeze)
    session = CommandContext(
        env={"TWOKEY_REDIS_URL": store.conn.url}, config=tmp_path / "twokey.yml"
    )

    done = await asyncio.to_thread(
        CliRunner().invoke, app, ["freeze", "tenant"], obj=session
    )

    assert isinstance(done.exception, SettingsError)
    assert "'split_by_agent: true' in this store" in str(done.exception)


def test_a_start_is_refused_by_the_policy_that_spans_agents(tmp_path: Path) -> None:
    (tmp_path / "twokey.yml").write_text(SETTINGS)
    (tmp_path / "policy.yml").write_text(SPANNING)
    settings = Settings.load(tmp_path / "twokey.yml", {})

    with pytest.raises(BadPolicy, match=r"'windows\.all' is counted for the whole"):
        PolicyFile(settings.policy)

    # By the variable alone, and for a policy within the settings.
    (tmp_path / "twokey.yml").write_text("shards: 4\npolicy: policy.yml\n")
    env = {"TWOKEY_SPLIT_BY_AGENT": "true"}
    with pytest.raises(BadPolicy, match="split_by_agent"):
        PolicyFile(Settings.load(tmp_path / "twokey.yml", env).policy)
    PolicyFile(Settings.load(tmp_path / "twokey.yml", {}).policy)


def test_a_policy_that_comes_to_span_agents_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "twokey.yml").write_text(SETTINGS)
    (tmp_path / "policy.yml").write_text(HEAD)
    followed = PolicyFile(Settings.load(tmp_path / "twokey.yml", {}).policy)
    before = followed().digest

    (tmp_path / "policy.yml").write_text(SPANNING)
    found = [one for one in (followed.look(), followed.look()) if one]

    [change] = found
    assert "'windows.all' is counted for the whole tenant" in change.why
    assert followed().digest == before


def test_a_program_is_refused_with_a_policy_that_spans_agents(tmp_path: Path) -> None:
    spanning = load_policy(SPANNING, "policy.yml")

    with pytest.raises(PolicyError, match=r"'windows\.all' is counted"):
        Twokey(policy=spanning, data_dir=tmp_path, shards=4, split_by_agent=True)


@pytest.mark.parametrize("words", [["check"], ["check", "POLICY"]], ids=len)
def test_the_policy_check_names_the_rule_that_spans_agents(
    tmp_path: Path, words: list[str]
) -> None:
    (tmp_path / "twokey.yml").write_text(SETTINGS)
    (tmp_path / "policy.yml").write_text(SPANNING)
    app = typer.Typer()
    add(app, "policy", policy)
    app.command()(freeze.freeze)
    named = [str(tmp_path / "policy.yml") if one == "POLICY" else one for one in words]

    done = CliRunner().invoke(
        app,
        ["policy", *named],
        obj=CommandContext(env={}, config=tmp_path / "twokey.yml"),
    )

    assert done.exit_code == 1
    assert "'windows.all' is counted for the whole tenant over all agents" in (
        " ".join(done.output.split())
    )

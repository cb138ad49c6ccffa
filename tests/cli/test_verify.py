"""'keyturn verify' proves each guarantee, and each one turns red under a defect."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import cast

import pytest

from keyturn.cli.verify import command
from keyturn.cli.verify.guarantee import GUARANTEES, prove
from keyturn.cli.verify.scratch import Scratch, scratch_tenant
from keyturn.gateway.config import Settings
from keyturn.gateway.secret_file import write_private
from keyturn.gateway.store.connection.connection import Connection
from keyturn.gateway.trust.key_folder import SigningKey
from keyturn.sandbox.faults import Fault
from keyturn.sandbox.server import Sandbox
from tests.cli.conftest import Shell
from tests.cli.verify_mutants import MUTANTS
from tests.service.harness import POLICY, RULES, ServiceHarness
from tests.store_secrets import SECRETS
from tests.topologies import DURABLE, Cluster, Node, programs


def settings_of(url: str, folder: Path) -> Settings:
    return Settings.load(None, environment(url, folder))


def environment(url: str, folder: Path) -> dict[str, str]:
    if not (folder / "secret.key").exists():
        write_private(folder / "secret.key", SECRETS[0])
    return {"KEYTURN_REDIS_URL": url, "KEYTURN_DATA_DIR": str(folder)}


@pytest.fixture
async def scratch(empty_url: str, tmp_path: Path) -> AsyncGenerator[Scratch]:
    async with scratch_tenant(settings_of(empty_url, tmp_path), RULES) as found:
        yield found


def test_there_are_forty_guarantees_and_a_defect_for_each() -> None:
    assert len(GUARANTEES) >= 40
    assert [*GUARANTEES] == [*MUTANTS]
    page = (Path(__file__).parents[2] / "docs/verify.md").read_text("utf-8")
    assert f"All {len(GUARANTEES)} guarantees hold" in page


@pytest.mark.parametrize("name", MUTANTS)
async def test_a_defect_breaks_its_guarantee(
    scratch: Scratch, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    MUTANTS[name](monkeypatch, scratch)

    proof = await prove(scratch, name)

    assert proof.broken


async def test_an_error_is_no_proof(scratch: Scratch) -> None:
    await scratch.main.store.close()
    scratch.main.store.conn.url = "redis://127.0.0.1:1"

    proof = await prove(scratch, "requester")

    assert "does not answer" in proof.broken


@pytest.fixture
def prover(shell: Shell, empty_url: str) -> Shell:
    """Give a shell with a store, a policy and an audit key."""
    shell.write(POLICY, "policy.yml")
    shell.env |= environment(empty_url, shell.folder)
    shell("keys", "create", "audit")
    return shell


async def everything(url: str) -> dict[bytes, object]:
    """Return all keys of a store with their content."""
    conn = Connection(url)
    names = cast("list[bytes]", await conn.command("KEYS", "*"))
    found = {name: await conn.command("DUMP", name) for name in names}
    await conn.close()
    return found


@pytest.mark.slow
async def test_all_hold_and_only_the_scratch_tenant_is_touched(
    prover: Shell, harness: ServiceHarness
) -> None:
    await harness.approved()
    # Each command notes the format of the store and its secret.
    await asyncio.to_thread(prover, "frozen")
    before = await everything(harness.store.conn.url)

    shown = await asyncio.to_thread(prover, "verify", "--report", "proof.json")

    assert shown.code == 0, shown
    assert f"All {len(GUARANTEES)} guarantees hold" in shown.out
    after = await everything(harness.store.conn.url)
    assert after == before
    await asyncio.to_thread(a_report_is_checked_with_its_key_alone, prover)


def a_report_is_checked_with_its_key_alone(prover: Shell) -> None:
    [key] = [one["public"] for one in prover.found("keys", "list")]
    del prover.env["KEYTURN_REDIS_URL"]
    check = ("verify", "--check", "proof.json")
    found = prover.found(*check, "--key", key)
    assert [one["name"] for one in found["proofs"]] == [*GUARANTEES]
    assert "vouch for its own key" in prover.refused(*check)
    other = SigningKey.from_seed("keyturn/audit", bytes(32)).public.text
    assert prover(*check, "--key", other).code == command.BROKEN
    prover.write("{}", "proof.txt")
    shown = prover("verify", "--check", "proof.txt", "--key", key)
    assert (shown.code, "not verified" in shown.out) == (command.BROKEN, True)
    path = prover.folder / "proof.json"
    path.write_text(path.read_text().replace('payload":"ey', 'payload":"ez'))
    assert prover(*check, "--key", key).code == command.BROKEN


@pytest.mark.slow
def test_a_broken_guarantee_is_shown_and_signed(
    prover: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = {"hidden_characters": GUARANTEES["hidden_characters"]}
    monkeypatch.setattr(command, "GUARANTEES", only)
    monkeypatch.setattr("keyturn.bot.text._is_usual", bool)

    shown = prover("verify", "--report", "proof.json")

    assert shown.code == command.BROKEN
    assert "U+202E stays hidden" in shown.out
    [key] = [one["public"] for one in prover.found("keys", "list")]
    assert prover("verify", "--check", "proof.json", "--key", key).code == 1


async def all_hold(url: str, folder: Path) -> None:
    """Prove all guarantees on a server, which then has nothing of them."""
    async with scratch_tenant(settings_of(url, folder), RULES) as scratch:
        proofs = [await prove(scratch, name) for name in GUARANTEES]

    assert not {one.name: one.broken for one in proofs if one.broken}
    left = Connection(url)
    masters = await left.on_each_master("KEYS", "*verify*")
    await left.close()
    assert not any(masters.values())


@pytest.mark.slow
@pytest.mark.xdist_group("topologies")
async def test_all_hold_on_a_cluster(
    replicated_cluster: Cluster, tmp_path: Path
) -> None:
    await all_hold(replicated_cluster.url, tmp_path)


@pytest.mark.slow
async def test_all_hold_on_redis_8(tmp_path: Path) -> None:
    program = programs().get("redis")
    told = await asyncio.to_thread(version_of, program) if program else ""
    if " v=8." not in told:
        pytest.skip("this machine has no redis-server of version 8")
    assert program
    node = Node(program, tmp_path / "server", dict(DURABLE))
    await asyncio.to_thread(node.start)
    try:
        await all_hold(node.url, tmp_path)
    finally:
        await asyncio.to_thread(node.kill)


def version_of(program: str) -> str:
    return subprocess.run(
        [program, "--version"], capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture
async def poster(
    prover: Shell, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[tuple[Shell, Sandbox]]:
    """Give a shell that only proves the card, and a sandbox."""
    monkeypatch.setattr(command, "GUARANTEES", {})
    async with Sandbox() as sandbox:
        prover.env |= {
            "KEYTURN_SLACK_API_URL": sandbox.api_url,
            "SLACK_BOT_TOKEN": sandbox.bot_token,
        }
        yield prover, sandbox


async def test_a_card_lives_and_is_deleted(poster: tuple[Shell, Sandbox]) -> None:
    shell, sandbox = poster
    words = ("verify", "--slack", "#agent-approvals", "--json")

    [proof] = (await asyncio.to_thread(shell.found, *words))["proofs"]

    assert (proof["name"], proof["broken"]) == ("slack_card", "")
    post, update, delete = sandbox.calls
    assert [it.method for it in (post, update, delete)] == [
        "chat.postMessage", "chat.update", "chat.delete",
    ]  # fmt: skip
    assert "A test by 'keyturn verify'" in json.dumps(post.arguments)
    assert update.arguments["blocks"] != post.arguments["blocks"]
    assert update.arguments["ts"] == delete.arguments["ts"]
    assert not any(it.error for it in sandbox.calls)


async def test_a_stuck_card_is_deleted(poster: tuple[Shell, Sandbox]) -> None:
    shell, sandbox = poster
    sandbox.faults.plan(Fault.HTTP_500, "chat.update")

    code, out, _ = await asyncio.to_thread(shell, "verify", "--slack", "C0APPROVALS")

    assert (code, "Slack's chat.update failed" in out) == (command.BROKEN, True)
    assert sandbox.calls[-1].method == "chat.delete"
    assert sandbox.calls[-1].error is None
    code, out, _ = await asyncio.to_thread(shell, "verify", "--slack", "C0NONE")
    assert (code, "channel_not_found" in out) == (command.BROKEN, True)
    del shell.env["SLACK_BOT_TOKEN"]
    told = await asyncio.to_thread(shell.refused, "verify", "--slack", "C0APPROVALS")
    assert "set SLACK_BOT_TOKEN" in told

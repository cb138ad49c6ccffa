"""What docs/audit.md shows is what the commands print."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from keyturn.cli.main import run
from keyturn.gateway.approvals.decisions import Approve, Reject
from keyturn.gateway.protocol.records import Result
from keyturn.gateway.protocol.wire import Claimed
from keyturn.gateway.service.report.audit_writing import public_keys
from keyturn.gateway.store.store import Store
from tests.service.audit_harness import AuditHarness
from tests.service.harness import ANA, ServiceHarness

PAGE = Path(__file__).parents[2] / "docs/audit.md"
SIZE = 16
"""Entries of the log that the page shows."""


def shown(command: str) -> list[list[str]]:
    """Return what the page shows below a command, each time."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    lines = [block.splitlines() for block in blocks]
    return [rest for first, *rest in lines if first == f"$ {command}"]


async def written(house: AuditHarness) -> None:
    harness = ServiceHarness(house.store)
    click, claim = await harness.refund(899, thread="t1")
    await harness.reviews.decide(click, Approve(), ANA)
    granted = await harness.agents.claim(claim)
    assert isinstance(granted, Claimed)
    await harness.agents.finish(claim.item_id, granted.fence, Result(ok=True))
    click, _ = await harness.refund(12, thread="t2")
    await harness.reviews.decide(click, Reject(reason="no"), ANA)
    await house.writer.tick()
    await house.put(SIZE - house.files.size)
    await house.writer.tick(is_last=True)


async def test_the_page_shows_what_the_commands_print(
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    store.conn.secrets = (b"s" * 32,)
    house = AuditHarness(store, tmp_path)
    await written(house)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keyturn.yml").write_text("data_dir: .")
    env = {"KEYTURN_REDIS_URL": store.conn.url, "KEYTURN_SECRET": (b"s" * 32).hex()}
    assert store.keyring
    key = public_keys(store.keyring)[0].text

    async def told(command: str) -> list[str]:
        words = [key if one == '"$AUDIT_KEY"' else one for one in command.split()[1:]]
        await asyncio.to_thread(run, words, env)
        out = capfd.readouterr().out
        return re.sub(r"(keyturn/audit/default/)[0-9a-f]{16}", r"\1…", out).splitlines()

    verify = "keyturn audit verify"
    assert await told(verify) == shown(verify)[0]
    export = "keyturn audit export bundle.jsonl"
    [exported] = shown(export)
    now = await told(export)
    about = re.compile(r"about \d+ approvals")
    assert [about.sub("", one) for one in now] == [
        about.sub("", one) for one in exported
    ]
    check = 'keyturn audit verify bundle.jsonl --key "$AUDIT_KEY" --stories'
    [[entries, _]] = shown(check)
    found = await told(check)
    assert found[0] == entries
    assert any("no call ran" in line for line in found)
    body = (tmp_path / "bundle.jsonl").read_bytes()
    (tmp_path / "changed.jsonl").write_bytes(body.replace(b'"agent"', b'"tnega"', 1))
    changed = 'keyturn audit verify changed.jsonl --key "$AUDIT_KEY"'
    assert await told(changed) == shown(changed)[0]
    tree = bytearray(house.files.tree_path.read_bytes())
    tree[3 * 49 + 20] ^= 1
    house.files.tree_path.write_bytes(tree)
    found = await told(verify)
    assert len(found) == len(shown(verify)[1]) == 1
    assert found[0].startswith("✖ default: not verified. The first bad entry is")

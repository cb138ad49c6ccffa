"""Lost checkpoints are refused, reported, and replaced at an operator's command."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from keyturn.cli.main import run
from keyturn.gateway.config import Settings
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.store.store import Store
from tests.resume import sample_tools
from tests.resume.programs import asked
from tests.resume.resume_stack import DAN, ORIGIN

SETTINGS = """
agents: {shop: {graph: "tests.resume.sample_tools:graph"}}
checkpoints: CHECKPOINTS
redis_url: STORE
policy:
  version: 1
  defaults: {channel: C0APPROVALS, needs: [U0ANA]}
"""


async def test_lost_checkpoints_are_refused_until_an_operator_accepts_new_ones(
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(sample_tools.LEDGER, str(tmp_path / "ledger"))

    def settings(checkpoints: str) -> Path:
        file = tmp_path / "keyturn.yml"
        text = SETTINGS.replace("CHECKPOINTS", checkpoints)
        file.write_text(text.replace("STORE", store.conn.url), encoding="utf-8")
        return file

    async with Keyturn(Settings.load(settings("old.sqlite"), {})) as tk:
        call = '[["refund", {"order": "1", "amount": 2}]]'
        await tk.reviews.ask_agent("shop", "t1", call, requester=DAN, origin=ORIGIN)
        await asked(tk)

    file = settings("new.sqlite")
    with pytest.raises(SettingsError, match=r"old\.sqlite.* --new-checkpoints"):
        async with Keyturn(Settings.load(file, {})):
            pass
    capsys.readouterr()
    await asyncio.to_thread(run, ["--config", str(file), "doctor"], {})
    told = capsys.readouterr().out
    assert "✖ processes: The gateway" in told
    assert "was refused: 1 call of agent 'shop' waits" in told

    words = ["--config", str(file), "repair", "--new-checkpoints"]
    code = await asyncio.to_thread(run, words, {})

    assert code == 0
    assert "The threads of agent 'shop' are in" in capsys.readouterr().out
    async with Keyturn(Settings.load(file, {})):
        pass

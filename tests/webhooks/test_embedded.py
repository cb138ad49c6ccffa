"""A program with all of the settings sends their webhooks, too."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from keyturn.gateway import embed
from keyturn.gateway.config import Settings
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.store.store import Store


async def test_an_embedded_gateway_sends_webhooks(
    empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = list[str]()

    @asynccontextmanager
    async def sending(settings: Settings, store: Store) -> AsyncGenerator[None]:
        steps.append(f"begun for {settings.tenant}")
        # The store is open as long as something is sent.
        await store.conn.command("PING")
        yield
        await store.conn.command("PING")
        steps.append("ended")

    monkeypatch.setattr(embed, "sending_webhooks", sending)
    file = tmp_path / "keyturn.yml"
    file.write_text(f"policy: {{version: 1}}\nredis_url: {empty_url}\n")
    monkeypatch.chdir(tmp_path)
    settings = Settings.load(file, {})
    async with Keyturn(settings, insecure_dev=True):
        assert steps == ["begun for default"]

    assert steps == ["begun for default", "ended"]

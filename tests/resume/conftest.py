"""Give the tests of resuming a house and a ledger."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from gateway.store.store import Store
from tests.resume import shop
from tests.resume.house import House, open_house


@pytest.fixture(autouse=True)
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give every test a ledger of its own."""
    path = tmp_path / "ledger.txt"
    monkeypatch.setenv(shop.LEDGER, str(path))
    return path


@pytest.fixture
async def house(store: Store, tmp_path: Path) -> AsyncGenerator[House]:
    """Give a gateway with the shop's agent; nobody works yet."""
    async with open_house(store, tmp_path / "checkpoints.db") as opened:
        yield opened

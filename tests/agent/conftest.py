"""What the tests of the agent's side share: short waits instead of real ones."""

from __future__ import annotations

import pytest

from gateway.agent import bridge


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "FIRST_PAUSE_S", 0.001)

"""Let agents ask in the gateway's process, and over HTTP again."""

from __future__ import annotations

import pytest

from tests.service.starts import noted
from tests.transports import pytest_generate_tests, transport

__all__ = ["pytest_generate_tests", "transport"]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return of each claim that was precomputed whether it was written."""
    return noted(monkeypatch)

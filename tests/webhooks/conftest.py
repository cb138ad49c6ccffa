"""What the tests of webhooks share."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.webhooks.receiver import Receiver, receiving, trusting


@pytest.fixture
async def receiver(tmp_path: Path) -> AsyncGenerator[Receiver]:
    """Receive webhooks, and trust the receiver's certificate."""
    async with receiving(tmp_path) as found:
        with trusting(found):
            yield found

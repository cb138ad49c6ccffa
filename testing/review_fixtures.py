"""Pytest fixtures for tests that decide an agent's calls in a local Slack.

Every pytest in an environment with Keyturn loads this module. The imports take seconds,
so each fixture imports its modules only when a test requests it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

if TYPE_CHECKING:
    from keyturn.gateway.policy.rules import Policy
    from keyturn.sandbox.server import Sandbox
    from keyturn.testing.review import Review

ASK_ABOUT_EVERYTHING = """\
version: 1
defaults: {channel: "#agent-approvals", tier: approve, needs: [U0ANA]}
"""


@pytest.fixture
def keyturn_policy() -> Policy | Path:
    """Return the policy of `keyturn_review`: Ana decides every call of every tool.

    Override this fixture to test another policy, for example with
    ``Path("policy.yml")``.
    """
    from keyturn.gateway.policy.load import load_policy  # noqa: PLC0415 - see above

    return load_policy(ASK_ABOUT_EVERYTHING, "the policy of keyturn_review")


@pytest_asyncio.fixture
async def keyturn_review(
    keyturn_sandbox: Sandbox, keyturn_policy: Policy | Path, tmp_path: Path
) -> AsyncIterator[Review]:
    """Run a gateway and a bot on a local Slack; the test is agent and reviewer."""
    from keyturn.testing.review import open_review  # noqa: PLC0415 - see above

    async with open_review(
        keyturn_sandbox, keyturn_policy, tmp_path / "keyturn"
    ) as opened:
        yield opened

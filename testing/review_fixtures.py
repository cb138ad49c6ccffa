"""Pytest fixtures with which a test decides an agent's calls in a local Slack."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.rules import Policy
from keyturn.sandbox.server import Sandbox
from keyturn.testing.review import Review, open_review

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
    return load_policy(ASK_ABOUT_EVERYTHING, "the policy of keyturn_review")


@pytest_asyncio.fixture
async def keyturn_review(
    keyturn_sandbox: Sandbox, keyturn_policy: Policy | Path, tmp_path: Path
) -> AsyncIterator[Review]:
    """Run a gateway and a bot on a local Slack; the test is agent and reviewer."""
    async with open_review(
        keyturn_sandbox, keyturn_policy, tmp_path / "keyturn"
    ) as opened:
        yield opened

"""Pytest fixtures: a separate Slack workspace for each test."""

from collections.abc import AsyncIterator

import pytest_asyncio

from keyturn.sandbox.server import Sandbox


@pytest_asyncio.fixture
async def keyturn_sandbox() -> AsyncIterator[Sandbox]:
    """Run a fresh sandbox for one test, and fail the test if the app erred.

    An app errs when Slack would show "trouble connecting": an invalid view, or errors
    for unknown inputs. See `Sandbox.problems`.
    """
    async with Sandbox() as sandbox:
        yield sandbox
        fail_on_problems(sandbox)


def fail_on_problems(sandbox: Sandbox) -> None:
    """Raise AssertionError if the app erred."""
    if sandbox.problems:
        raise AssertionError(f"The app erred: {sandbox.problems!r}.")

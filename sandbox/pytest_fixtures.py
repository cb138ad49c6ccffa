"""Pytest fixtures: a Slack workspace of its own for each test."""

from collections.abc import AsyncIterator

import pytest_asyncio

from keyturn.sandbox.server import Sandbox


@pytest_asyncio.fixture
async def keyturn_sandbox() -> AsyncIterator[Sandbox]:
    """Run a fresh sandbox for one test, and fail the test if the app erred.

    An app errs where Slack would show "trouble connecting": a view it cannot use,
    errors that name no input. See `Sandbox.problems`.
    """
    async with Sandbox() as sandbox:
        yield sandbox
        fail_on_problems(sandbox)


def fail_on_problems(sandbox: Sandbox) -> None:
    """Raise AssertionError when the app did what Slack could not use."""
    if sandbox.problems:
        raise AssertionError(f"The app erred: {sandbox.problems!r}.")

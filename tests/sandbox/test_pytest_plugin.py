"""A user's own tests get a sandbox from one fixture."""

import pytest

from keyturn.sandbox.pytest_fixtures import fail_on_problems
from keyturn.sandbox.server import Sandbox


async def test_the_fixture_needs_no_import(keyturn_sandbox: Sandbox) -> None:
    assert (await keyturn_sandbox.person("U0ANA").state())["team"]["id"] == "T0SANDBOX"


async def test_an_app_that_erred_fails_the_test(sandbox: Sandbox) -> None:
    fail_on_problems(sandbox)
    sandbox.slack.add_problem("errors that name no input")

    with pytest.raises(AssertionError, match="errors that name no input"):
        fail_on_problems(sandbox)

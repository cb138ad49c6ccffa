"""Pytest plugin: register the fixtures where their dependencies are installed.

This module is loaded by every pytest of an environment that holds twokey, so it
imports nothing that a bare installation lacks.
"""

from importlib.util import find_spec

NEEDED = ("aiohttp", "pytest_asyncio")

pytest_plugins: list[str] = (
    ["twokey.sandbox.pytest_fixtures"] if all(map(find_spec, NEEDED)) else []
)

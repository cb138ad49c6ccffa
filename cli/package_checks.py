"""Check for `twokey doctor` whether the packages of the extras are new enough."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires, version

from twokey.gateway.errors import SettingsError

# Of the package's own metadata, such as 'aiohttp<4,>=3.12; extra == "server"'. Other
# extras are not needed to run, so their packages may be missing.
_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)[^;]*>=(?P<oldest>[\d.]+)[^;]*; extra == .(?:server|slack).",
    re.ASCII,
)


async def check_packages() -> str:
    """Return how many packages are there.

    Raises:
        SettingsError: names those that are missing or too old.
    """
    needed = {
        match["name"]: match["oldest"]
        for match in map(_REQUIREMENT.match, requires("twokey") or [])
        if match
    }
    problems = [
        problem
        for name, oldest in needed.items()
        if (problem := _package_problem(name, oldest))
    ]
    if problems:
        raise SettingsError(f"{'; '.join(problems)}; run: pip install -U 'twokey[all]'")
    return f"{len(needed)} packages are there and new enough"


def _package_problem(name: str, oldest: str) -> str:
    try:
        found = version(name)
    except PackageNotFoundError:
        return f"{name} is not installed"
    # As tuples of numbers: as texts "10.0" would be older than "9.0".
    is_old = _numbers(found) < _numbers(oldest)
    return f"{name} is {found}, {oldest} is needed" if is_old else ""


def _numbers(text: str) -> tuple[int, ...]:
    # Three numbers: of 1.2.0rc1 the suffix does not count.
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])

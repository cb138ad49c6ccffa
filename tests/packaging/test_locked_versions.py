"""The locked versions install also after a package of them was released anew."""

from __future__ import annotations

import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCKS = Path(__file__).parents[2] / "requirements"


def _locked(name: str) -> dict[str, set[str]]:
    """Return the extras of each package that a lock file fixes."""
    lines = (LOCKS / name).read_text(encoding="utf-8").splitlines()
    fixed = [
        Requirement(line.split(";")[0].rstrip(" \\")) for line in lines if "==" in line
    ]
    return {canonicalize_name(one.name): one.extras for one in fixed}


@pytest.mark.parametrize("name", ["dev.txt", "run.txt"])
def test_a_package_is_locked_with_the_extras_that_others_ask_it_for(name: str) -> None:
    # An older pip looks for `coverage[toml]` apart from `coverage==7.17.3`, takes the
    # newest one, and then refuses it for having no hash.
    locked = _locked(name)
    asked = [
        (needed, owner.name)
        for owner in distributions()
        if canonicalize_name(owner.name) in locked
        for needed in map(Requirement, owner.requires or [])
        if needed.extras
        and (not needed.marker or needed.marker.evaluate({"extra": ""}))
    ]

    missing = [
        f"{needed} of {owner}"
        for needed, owner in asked
        if not needed.extras <= locked.get(canonicalize_name(needed.name), set())
    ]

    assert locked
    assert missing == []


PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def _needed() -> dict[str, Requirement]:
    """Return what the product needs, with what its extras need."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    rows = [*project["dependencies"], *extras["server"], *extras["slack"]]
    rows += extras["agent"]
    found = [Requirement(row) for row in rows]
    return {canonicalize_name(one.name): one for one in found}


@pytest.mark.parametrize(
    ("name", "release"),
    [
        # An unsigned request that names `ssl_check` in its payload runs a listener.
        ("slack-bolt", "1.28.0"),
        # A part of an issuer's name, also "", is taken for the issuer (CVE-2024-53861).
        ("pyjwt", "2.10.0"),
        # A header that demands an unknown extension (`crit`, RFC 7515 4.1.11) is
        # accepted.
        ("pyjwt", "2.11.0"),
        # A wheel with OpenSSL before the mend of CVE-2024-12797.
        ("cryptography", "44.0.0"),
    ],
)
def test_a_release_with_a_known_hole_is_not_enough(name: str, release: str) -> None:
    needed = _needed()

    assert release not in needed[name].specifier

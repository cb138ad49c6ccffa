"""The bounds of dependencies exclude releases that break one of our promises."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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

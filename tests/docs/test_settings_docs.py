"""docs/settings.md has every setting, with its variable and its default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from keyturn.gateway.config import SECRETS, VARIABLES, SettingsFile

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| `")
]
VARIABLE_OF = {".".join(path): name for name, path in VARIABLES.items()}


def _defaults() -> dict[str, object]:
    """Return every setting with its default."""
    found: dict[str, object] = {}
    for name, value in SettingsFile():
        if isinstance(value, BaseModel):
            found |= {f"{name}.{inner}": given for inner, given in value}
        else:
            found[name] = value
    return found


DEFAULTS = _defaults()
SETTINGS = {row[0].strip("`"): row for row in ROWS if len(row) == 4}


def _is_set(value: object) -> bool:
    if isinstance(value, BaseModel):
        return bool(value.model_dump(exclude_defaults=True))
    return bool(value)


def test_every_setting_and_no_other_is_there() -> None:
    assert sorted(SETTINGS) == sorted(DEFAULTS)


@pytest.mark.parametrize("name", DEFAULTS)
def test_its_variable_is_the_one_that_is_read(name: str) -> None:
    variable = VARIABLE_OF.get(name)

    assert SETTINGS[name][1] == (f"`{variable}`" if variable else "")


@pytest.mark.parametrize("name", DEFAULTS)
def test_its_default_is_the_one_that_counts(name: str) -> None:
    literal = re.fullmatch("`([^`]+)`", SETTINGS[name][2])
    outer, _, inner = name.partition(".")
    if literal is None:
        # Words stand for settings without a default, or without a place in a settings
        # file.
        assert not _is_set(DEFAULTS[name]) or name == "retries.first"
        return
    value = yaml.safe_load(literal[1])
    given = SettingsFile.model_validate({outer: {inner: value} if inner else value})
    read = getattr(given, outer)

    assert str(getattr(read, inner) if inner else read) == str(DEFAULTS[name])


def test_every_secret_and_no_other_is_there() -> None:
    assert {row[0].strip("`") for row in ROWS if len(row) == 2} == {*SECRETS}

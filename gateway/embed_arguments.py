"""Check the arguments of `Twokey(...)`, which opens nothing yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast, get_args

from pydantic import TypeAdapter, ValidationError

from twokey.gateway.arguments import check_ungated, is_a, require, require_secret
from twokey.gateway.config import MAX_SHARDS, MAX_WORKERS, Settings
from twokey.gateway.errors import SettingsError
from twokey.gateway.policy.rules import Policy
from twokey.gateway.retrying import RetrySettings
from twokey.gateway.setting_forms import TenantName
from twokey.gateway.trust.keyring import Keyring

_OTHERS: tuple[tuple[str, type | tuple[type, ...], str], ...] = (
    ("settings", Settings, "give what Settings.load returns, or policy=Path('…')"),
    ("policy", (Policy, Path, str), "give the path of the file, Path('policy.yml')"),
    ("retries", RetrySettings, "give RetrySettings(limit='1h')"),
    ("audit_folder", Path, "give the path of a folder, Path('audit')"),
    ("keyring", Keyring, "give a Keyring, or leave it out"),
)
"""Arguments that may be None: name, type, what to write instead."""


def check_arguments(given: Mapping[str, object]) -> None:
    """Check the arguments of `Twokey(...)` by their names.

    Raises:
        SettingsError: names the first that cannot be used, and what to write instead.
    """
    for name, kind, needed in _OTHERS:
        value = given[name]
        require(value is None or isinstance(value, kind), name, value, needed)
    for name in ("url", "checkpoints"):
        # It may hold a password.
        is_text = given[name] is None or isinstance(given[name], str)
        require_secret(is_text, name, given[name], "give an address as text")
    for name in ("split_by_agent", "encrypt_store", "insecure_dev"):
        require(isinstance(given[name], bool), name, given[name], "give True or False")
    data_dir = given["data_dir"]
    needed = "give the path of a folder, Path('.twokey')"
    require(isinstance(data_dir, Path), "data_dir", data_dir, needed)
    _check_count("shards", given["shards"], MAX_SHARDS)
    _check_count("slots", given["slots"], MAX_WORKERS)
    _check_tenant(given["tenant"])
    check_ungated(given["ungated"])
    _check_secrets(given["secrets"])


def _check_count(name: str, value: object, most: int) -> None:
    is_count = isinstance(value, int) and not isinstance(value, bool)
    is_usable = is_count and 1 <= cast("int", value) <= most
    require(is_usable, name, value, f"give a whole number from 1 to {most}")


def _check_tenant(tenant: object) -> None:
    try:
        TypeAdapter[str](TenantName).validate_python(tenant, strict=True)
    except ValidationError:
        form = get_args(TenantName)[1].description
        require(False, "tenant", tenant, f"give {form}")  # noqa: FBT003 - it was just found to be wrong


def _check_secrets(secrets: object) -> None:
    is_list = is_a(secrets, Sequence) and not is_a(secrets, (str, bytes))
    require_secret(is_list, "secrets", secrets, "give a list of bytes")
    for one in cast("Sequence[object]", secrets):
        if not (isinstance(one, bytes) and one):
            raise SettingsError(
                f"secrets= holds a value of type {type(one).__name__} that cannot be "
                "used: give bytes that are not empty, such as secrets.token_bytes(32)."
            )

"""A process whose secret is another one does not start, and sets nothing aside."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.store_secrets import SECRETS
from twokey.gateway.errors import SettingsError
from twokey.gateway.store.open_store import open_store
from twokey.gateway.store.store import Store

OTHER = b"another secret of some 32 bytes!"


async def starts(store: Store, folder: Path, *secrets: bytes) -> None:
    async with open_store(store.conn.url, folder, secrets=secrets):
        pass


async def test_another_secret_is_refused(store: Store, tmp_path: Path) -> None:
    await starts(store, tmp_path, *SECRETS)

    with pytest.raises(SettingsError, match="sealed with another secret"):
        await starts(store, tmp_path, OTHER)


async def test_a_secret_is_replaced_in_two_steps(store: Store, tmp_path: Path) -> None:
    """First all accept the new one, then it seals, then the old one is taken out."""
    await starts(store, tmp_path, *SECRETS)

    await starts(store, tmp_path, *SECRETS, OTHER)
    await starts(store, tmp_path, OTHER, *SECRETS)
    await starts(store, tmp_path, *SECRETS, OTHER)
    await starts(store, tmp_path, OTHER, *SECRETS)
    await starts(store, tmp_path, OTHER)

    with pytest.raises(SettingsError, match="sealed with another secret"):
        await starts(store, tmp_path, *SECRETS)

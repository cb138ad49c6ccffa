"""The audit log is kept for a time, and then dropped in bounded steps."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from keyturn.gateway.config import Settings
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.service.run.sweep import Sweeper
from keyturn.gateway.store.store import Store

DAY_MS = 86_400_000


async def write(store: Store, ages_in_days: list[int], each: int = 200) -> None:
    """Write audit entries as if they were so old, oldest first."""
    seconds, _ = cast("list[bytes]", await store.conn.command("TIME"))
    key = store.keys_of_tenant("default").audit
    for age in sorted(ages_in_days, reverse=True):
        at_ms = int(seconds) * 1000 - age * DAY_MS
        await store.conn.transaction(
            *(["XADD", key, f"{at_ms}-{n}", "e", "{}"] for n in range(1, each + 1))
        )


async def ages(store: Store) -> set[int]:
    """Return how old the entries are that are left, in days."""
    seconds, _ = cast("list[bytes]", await store.conn.command("TIME"))
    key = store.keys_of_tenant("default").audit
    rows = cast("list[list[bytes]]", await store.conn.command("XRANGE", key, "-", "+"))
    written = (int(row[0].split(b"-")[0]) for row in rows)
    return {round((int(seconds) * 1000 - at_ms) / DAY_MS) for at_ms in written}


async def test_entries_older_than_that_are_dropped(store: Store) -> None:
    await write(store, [500, 450, 399, 10, 0])

    await Sweeper(store).sweep()

    assert await ages(store) == {399, 10, 0}


@pytest.mark.parametrize("text", ["29d", "1h", "400", "0d", "ever", "-30d"])
def test_what_is_no_time_to_keep_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "keyturn.yml"
    file.write_text(f"retention: {{audit: {text}}}")

    with pytest.raises(SettingsError, match=r"retention.*(30d or more|write 400d)"):
        Settings.load(file, {})

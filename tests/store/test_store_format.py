"""A process refuses a store with a format that it cannot read."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import cast

import pytest
import typer
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from typer.testing import CliRunner

from keyturn.cli.command_context import CommandContext
from keyturn.cli.main import add
from keyturn.gateway import store as store_package
from keyturn.gateway.approvals.events import Event, SecurityEvent
from keyturn.gateway.approvals.precedents import Precedent
from keyturn.gateway.approvals.quality_checks import SeededCard
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.service.submit.submitting import StoredVerdicts
from keyturn.gateway.store import store as opening
from keyturn.gateway.store.connection.connection import text
from keyturn.gateway.store.runs.processes import ProcessInfo
from keyturn.gateway.store.store import FORMATS, Store, ensure_format
from keyturn.gateway.trust.api_keys import ApiKey

ELSEWHERE = (Approval, ApiKey, Event, Precedent, SecurityEvent, SeededCard)
"""Records that the store keeps, and other packages define."""

THREE = dict.fromkeys(("0.1.0", "0.2.0", "0.4.0"), "")
"""Formats of a later version."""


def stored_records() -> list[type[BaseModel]]:
    """Return every record that is kept in the store."""
    for module in pkgutil.walk_packages(
        store_package.__path__, "keyturn.gateway.store."
    ):
        importlib.import_module(module.name)

    def below(kind: type[Record]) -> Iterator[type[Record]]:
        for one in kind.__subclasses__():
            yield one
            yield from below(one)

    own = {
        one
        for one in below(Record)
        if one.__module__.startswith(store_package.__name__)
    }
    return sorted({*own, *ELSEWHERE, StoredVerdicts}, key=lambda one: one.__qualname__)


def without_words(schema: object) -> object:
    """Return a schema without docstrings and titles, which change no record."""
    if isinstance(schema, list):
        return [without_words(one) for one in cast("list[object]", schema)]
    if not isinstance(schema, dict):
        return schema
    return {
        name: without_words(one)
        for name, one in cast("dict[str, object]", schema).items()
        if not (name in {"title", "description"} and isinstance(one, str))
    }


def digest_now() -> str:
    _, schemas = models_json_schema([(one, "validation") for one in stored_records()])
    body = json.dumps(without_words(schemas), sort_keys=True)
    return hashlib.sha256(body.encode()).hexdigest()[:32]


def test_the_newest_format_is_that_of_the_record_schemas() -> None:
    """A version that changes a record has a new format."""
    line = f'"{version("keyturn")}": "{digest_now()}",'

    assert [*FORMATS.values()][-1] == digest_now(), (
        f"The schema of a stored record changed. Write into FORMATS of "
        f"gateway/store/store.py, in place of the line of this version if there "
        f"is one, and give each new field a default:\n    {line}"
    )


async def kept(store: Store) -> str:
    return text(await store.conn.command("GET", store.keys_of_tenant("default").format))


HERE = "and this process has the format 3 of Keyturn 0.4.0, so nothing was started."


@pytest.mark.parametrize(
    ("found", "where", "step"),
    [
        ("4 0.5.1", "format 4 of Keyturn 0.5.1", "Start Keyturn 0.5.1 or a later"),
        ("1 0.1.0", "format 1 of Keyturn 0.1.0", "start Keyturn 0.2.0 once, then"),
        ("junk", "format junk of Keyturn ", "start Keyturn 0.1.0 once, then"),
    ],
)
async def test_a_store_that_cannot_be_read_is_refused_and_left_as_it_is(
    store: Store, monkeypatch: pytest.MonkeyPatch, found: str, where: str, step: str
) -> None:
    monkeypatch.setattr(opening, "FORMATS", THREE)
    await store.conn.command("SET", store.keys_of_tenant("default").format, found)

    with pytest.raises(SettingsError, match=re.escape(f"{where}, {HERE}")) as said:
        await ensure_format(store, store.keys_of_tenant("default"))

    assert step in str(said.value)
    assert await kept(store) == found


async def test_the_format_before_is_read_and_raised_once_its_processes_ended(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "FORMATS", THREE)
    keys = store.keys_of_tenant("default")
    await store.conn.command("SET", keys.format, "2 0.3.1")
    await store.processes.stay(
        keys, "one", ProcessInfo(role="bot", where="h:1", tenant="default")
    )

    with pytest.raises(SettingsError, match=r"Keyturn 0\.3\.1 still run \(h:1\): stop"):
        await ensure_format(store, store.keys_of_tenant("default"))
    assert await kept(store) == "2 0.3.1"

    await store.processes.leave(keys, "one")
    await ensure_format(store, store.keys_of_tenant("default"))
    assert await kept(store) == "3 0.4.0"


async def test_each_opening_compares_the_number(store: Store, tmp_path: Path) -> None:
    await store.conn.command("SET", store.keys_of_tenant("default").format, "9 9.9.0")
    policy, url = load_policy("version: 1", "policy.yml"), store.conn.url
    (tmp_path / "keyturn.yml").write_text("policy: {version: 1}\n")
    app = typer.Typer()
    add(app, "jobs")
    session = CommandContext(
        env={"KEYTURN_REDIS_URL": url}, config=tmp_path / "keyturn.yml"
    )

    with pytest.raises(SettingsError, match="format 9"):
        async with Keyturn(policy=policy, url=url, data_dir=tmp_path):
            pass
    done = await asyncio.to_thread(
        CliRunner().invoke, app, ["jobs", "list"], obj=session
    )
    assert isinstance(done.exception, SettingsError)
    assert "format 9" in str(done.exception)

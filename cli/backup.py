"""Back up the data of a tenant into a file, and restore it.

The file is a tar archive: the tenant's keys of the store, the files of the audit log,
and the SQLite file with checkpoints and ledger. A Postgres database is not in it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import sqlite3
import tarfile
import zlib
from contextlib import closing
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from keyturn.cli import console
from keyturn.cli.command_context import command_context
from keyturn.cli.repair import print_repairs, repaired
from keyturn.cli.store_access import open_configured, require_store
from keyturn.gateway.approvals.events import SecurityEvent, SecurityKind
from keyturn.gateway.config import Settings
from keyturn.gateway.errors import KeyturnError, SettingsError, ThreadUnavailable
from keyturn.gateway.secret_file import write_private
from keyturn.gateway.setting_forms import is_postgres
from keyturn.gateway.store.audit.files import TreeFiles
from keyturn.gateway.store.copying import StoredKey, copied, put_back
from keyturn.gateway.store.open_store import AUDIT_FOLDER
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.key_folder import FOLDER as KEY_FOLDER
from keyturn.gateway.trust.seals import Purpose, key_id_of

_FORMAT = "keyturn/backup/v1"
_MANIFEST, _STORE, _CHECKPOINTS = "manifest.json", "store.jsonl", "checkpoints.sqlite"
_SECRETS = ("secret.key", "secret.old.key")
_TRIES, _PAUSE_S = 100, 0.1
_MADE_AT_START = {"format", "sealed_by", "members"}
"""Keys that a store has before its first use."""


def backup(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The archive to write.")],
    *,
    with_keys: Annotated[
        bool,
        typer.Option(
            "--with-keys",
            help="Include secret.key and the private signing keys. Whoever reads the "
            "file can then forge decisions.",
        ),
    ] = False,
) -> None:
    """Back up the store, the audit log, and checkpoints in SQLite.

    The copy of the store is from one moment; Keyturn may run. Protect the file: it has
    arguments of calls and names of people. Its data can only be read with the same
    KEYTURN_SECRET.

    Examples:
      keyturn backup keyturn.tar.gz              without keys
      keyturn backup keyturn.tar.gz --with-keys  with keys
    """
    command = command_context(ctx)
    settings = command.settings()
    require_store(settings)
    names = asyncio.run(_write(settings, file, with_keys=with_keys))
    console.good(f"{str(file)!r} has {', '.join(names)}.")
    if is_postgres(settings.checkpoint_place):
        console.note(
            "Checkpoints and ledger are in Postgres: back up that database now, with "
            "its own tools. A ledger that is older than the store may let a call run "
            "twice."
        )
    if not with_keys:
        console.note(
            "It has no keys: keep KEYTURN_SECRET or 'secret.key', and the key folder."
        )


async def _write(settings: Settings, file: Path, *, with_keys: bool) -> list[str]:
    async with open_configured(settings, insecure_dev=True) as store:
        files = TreeFiles(_audit_folder(settings), settings.tenant)
        for _ in range(_TRIES):
            # The writer of the audit log moves entries from the store into files.
            with files.locked("backup") as was_last:
                if was_last is not None:
                    with console.new_file(file) as opened:
                        os.fchmod(opened.fileno(), 0o600)
                        with tarfile.open(fileobj=opened, mode="w:gz") as archive:
                            return await _fill(store, settings, archive, keys=with_keys)
            await asyncio.sleep(_PAUSE_S)
    raise ThreadUnavailable(
        "Another process is writing the audit log, so nothing was backed up; run the "
        "command again."
    )


async def _fill(
    store: Store, settings: Settings, archive: tarfile.TarFile, *, keys: bool
) -> list[str]:
    tenant = store.keys_of_tenant(settings.tenant)
    counters = await store.restore_counters.read(tenant)
    rows = await copied(store, tenant)
    sealed_by = await store.conn.command("GET", tenant.sealed_by)
    manifest = {
        "format": _FORMAT,
        "tenant": settings.tenant,
        "at_ms": counters.now_ms,
        "counters": [*counters.of],
        "sealed_by": sealed_by.decode() if isinstance(sealed_by, bytes) else "",
    }
    _add(archive, _MANIFEST, json.dumps(manifest).encode())
    lines = (
        json.dumps([one.name, one.ends_ms, base64.b64encode(one.dump).decode()])
        for one in rows
    )
    _add(archive, _STORE, "\n".join(lines).encode())
    names = [f"{len(rows)} keys of the store"]
    if audit := _audit_files(settings):
        for one in audit:
            archive.add(one, f"{AUDIT_FOLDER}/{one.name}")
        names.append("the files of the audit log")
    # Last: a ledger that is newer than the store only refuses more.
    if await asyncio.to_thread(_add_checkpoints, archive, settings.checkpoint_place):
        names.append("checkpoints and ledger")
    if keys:
        for name, path in _key_files(settings).items():
            archive.add(path, name)
        names.append("the keys")
    return names


def _add_checkpoints(archive: tarfile.TarFile, place: str) -> bool:
    if is_postgres(place) or not Path(place).exists():
        return False
    with TemporaryDirectory() as folder:
        copy = Path(folder) / _CHECKPOINTS
        with (
            closing(sqlite3.connect(place)) as source,
            closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
        archive.add(copy, _CHECKPOINTS)
    return True


def restore(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Of 'keyturn backup'.")],
    *,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the data of the store.")
    ] = False,
) -> None:
    """Restore a backup, so that no call runs twice.

    Stop all gateways and bots first. Calls that the backup lists as approved may have
    run since: people are asked. Waiting calls need new votes. Files that exist are
    kept, because they are newer: the audit log, checkpoints with the ledger, and keys.

    Examples:
      keyturn restore keyturn.tar.gz            into an empty store
      keyturn restore keyturn.tar.gz --replace  instead of the data in the store
    """
    command = command_context(ctx)
    with TemporaryDirectory() as folder:
        found = _unpacked(file, Path(folder))
        asyncio.run(_restore(command.settings(), found, Path(folder), replace=replace))
    at = console.utc(found["at_ms"])
    console.good(f"The store has the data of {at} again.")
    console.bad(
        f"It lacks everything since {at}. Check 'keyturn frozen', 'keyturn api-keys "
        "list' and 'keyturn audit verify': freezes and revocations since then count "
        "only if the files of the audit log have them."
    )
    try:
        done = asyncio.run(repaired(command, is_dry=False, is_restored=True))
    except KeyturnError as error:
        console.bad(f"{error} The next gateway puts the approved calls in doubt.")
        raise typer.Exit(1) from error
    print_repairs(done, is_dry=False)


async def _restore(
    settings: Settings, found: dict[str, Any], folder: Path, *, replace: bool
) -> None:
    if found["tenant"] != settings.tenant:
        raise SettingsError(
            f"The backup is of the tenant {found['tenant']!r}, and the settings have "
            f"{settings.tenant!r}."
        )
    for name, path in _key_files(settings, folder).items():
        _put(path, _key_path(settings, name))
    has_secret = settings.secret or (settings.data_dir / _SECRETS[0]).exists()
    known = settings.secret_keys() if has_secret else ()
    if found["sealed_by"] not in {key_id_of(one, Purpose.RECORDS) for one in known}:
        raise SettingsError(
            "The backup is sealed with another secret, so nothing was restored. Set "
            f"KEYTURN_SECRET, or put its 'secret.key' into {str(settings.data_dir)!r}."
        )
    lines = (folder / _STORE).read_text().splitlines()
    rows = [
        StoredKey(name, ends, base64.b64decode(dump))
        for name, ends, dump in map(json.loads, lines)
    ]
    async with open_configured(settings, insecure_dev=True) as store:
        keys = store.keys_of_tenant(settings.tenant)
        if alive := (await store.processes.read(keys)).alive:
            who = ", ".join(sorted(one.where for one, _ in alive.values()))
            raise SettingsError(
                f"Processes use the store ({who}), so nothing was restored. Stop them; "
                "a killed one counts as gone after 20 seconds."
            )
        here = {keys.suffix(one.name) for one in await copied(store, keys)}
        if here - _MADE_AT_START and not replace:
            raise SettingsError(
                "The store has data, so nothing was restored. Back it up, then give "
                "--replace to lose it."
            )
        _put_files(settings, folder)
        await put_back(store, keys, rows, found["counters"])
        # An entry of the audit log, so that the gap in it is visible.
        event = SecurityEvent(
            kind=SecurityKind.REPLAYED,
            tenant=settings.tenant,
            about="store",
            name=f"restored from a backup of {console.utc(found['at_ms'])}",
        )
        await store.security.report(keys, event)


def _put_files(settings: Settings, folder: Path) -> None:
    place = settings.checkpoint_place
    if (folder / _CHECKPOINTS).exists() and not is_postgres(place):
        _put(folder / _CHECKPOINTS, Path(place))
    if _audit_files(settings):
        console.note("The audit log in the folder is kept.")
        return
    for one in sorted((folder / AUDIT_FOLDER).glob("*")):
        _put(one, _audit_folder(settings) / one.name)


def _put(source: Path, target: Path) -> None:
    try:
        write_private(target, source.read_bytes())
    except FileExistsError:
        console.note(f"{str(target)!r} is kept.")


def _unpacked(file: Path, folder: Path) -> dict[str, Any]:
    """Unpack a backup completely before anything is changed; return its manifest."""
    try:
        with tarfile.open(file) as archive:
            archive.extractall(folder, filter="data")
        found: dict[str, Any] = json.loads((folder / _MANIFEST).read_bytes())
    except (OSError, tarfile.TarError, EOFError, ValueError, zlib.error) as error:
        raise SettingsError(f"{str(file)!r} is no whole backup: {error}.") from error
    if found.get("format") != _FORMAT:
        raise SettingsError(
            f"{str(file)!r} is no backup that this version reads; use the version "
            "that made it."
        )
    return found


def _audit_folder(settings: Settings) -> Path:
    return settings.audit_folder or settings.data_dir / AUDIT_FOLDER


def _audit_files(settings: Settings) -> list[Path]:
    name = re.compile(rf"{settings.tenant}(\.(?!lock$).+|-\d{{12}}\.jsonl\.gz)")
    found = _audit_folder(settings).glob("*")
    return sorted(one for one in found if name.fullmatch(one.name))


def _key_path(settings: Settings, name: str) -> Path:
    """Return the place of a key by its name in a backup."""
    folder, _, rest = name.partition("/")
    if folder == KEY_FOLDER:
        return (settings.keys.folder or settings.data_dir / KEY_FOLDER) / rest
    return settings.data_dir / name


def _key_files(settings: Settings, folder: Path | None = None) -> dict[str, Path]:
    """Return secrets and signing keys by their name in a backup."""
    places = {
        name: folder / name if folder else _key_path(settings, name)
        for name in (*_SECRETS, KEY_FOLDER)
    }
    keys = places.pop(KEY_FOLDER)
    found = {name: path for name, path in places.items() if path.exists()}
    listed = keys.rglob("*.json")
    return found | {f"{KEY_FOLDER}/{one.relative_to(keys)}": one for one in listed}


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, BytesIO(data))

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
import shutil
import sqlite3
import tarfile
import zlib
from contextlib import closing
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import typer
from pydantic import Base64Bytes, Field, TypeAdapter, ValidationError

from keyturn.cli import console
from keyturn.cli.command_context import command_context
from keyturn.cli.console import argument, flag
from keyturn.cli.repair import print_repairs, repaired
from keyturn.cli.store_access import open_configured, require_store
from keyturn.gateway.approvals.events import SecurityEvent, SecurityKind
from keyturn.gateway.config import Settings
from keyturn.gateway.errors import KeyturnError, SettingsError, ThreadUnavailable
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.secret_file import folder_secrets, write_private
from keyturn.gateway.setting_forms import is_postgres
from keyturn.gateway.store.audit.files import TreeFiles
from keyturn.gateway.store.copying import StoredKey, copied, put_back
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.store import AUDIT_FOLDER, Store
from keyturn.gateway.trust.key_folder import FOLDER as KEY_FOLDER
from keyturn.gateway.trust.seals import Purpose, key_id_of

_MANIFEST, _STORE, _CHECKPOINTS = "manifest.json", "store.jsonl", "checkpoints.sqlite"
_SECRETS = ("secret.key", "secret.old.key")
_AUDIT_FILE = r"(\.(?!lock$)[\w.]+|-\d{12}\.jsonl\.gz)"
_MEMBER = re.compile(
    rf"{_MANIFEST}|{_STORE}|{_CHECKPOINTS}|secret(\.old)?\.key"
    rf"|{KEY_FOLDER}/[^/]+/[^/]+\.key\.json|{AUDIT_FOLDER}/[a-z0-9_-]+{_AUDIT_FILE}",
    re.ASCII,
)
_TRIES, _PAUSE_S = 100, 0.1
_MADE_AT_START = {"format", "sealed_by", "members"}
"""Keys that a store has before its first use."""

_LAST_MS = 253_402_300_799_999
"""The end of the year 9999."""


class _Manifest(Record):
    """The first member of a backup."""

    format: Literal["keyturn/backup/v1"] = "keyturn/backup/v1"
    tenant: str
    at_ms: int = Field(ge=0, le=_LAST_MS)
    counters: tuple[str, ...]
    sealed_by: str


_ROW = TypeAdapter(tuple[str, Annotated[int, Field(ge=0)], Base64Bytes])


def backup(
    ctx: typer.Context,
    file: Annotated[Path, argument("FILE", "The archive to write.")],
    *,
    with_keys: Annotated[
        bool,
        flag(
            "--with-keys",
            "Include secret.key and the private signing keys. Readers of the "
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
            "It has no keys. Keep KEYTURN_SECRET or 'secret.key', and the key folder, "
            "in another place."
        )
    elif settings.secret:
        console.note("KEYTURN_SECRET is not in it; keep it in another place.")


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
                            # Mounted keys are links to their content.
                            archive.dereference = True
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
    manifest = _Manifest(
        tenant=settings.tenant,
        at_ms=counters.now_ms,
        counters=tuple(counters.of),
        sealed_by=sealed_by.decode() if isinstance(sealed_by, bytes) else "",
    )
    _add(archive, _MANIFEST, manifest.model_dump_json().encode())
    lines = (
        json.dumps([one.name, one.ends_ms, base64.b64encode(one.dump).decode()])
        for one in rows
    )
    _add(archive, _STORE, "\n".join(lines).encode())
    names = [f"{len(rows)} keys of the store"]
    if audit := _audit_files(settings, _audit_folder(settings)):
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
        try:
            with (
                closing(sqlite3.connect(place)) as source,
                closing(sqlite3.connect(copy)) as target,
            ):
                source.backup(target)
        except sqlite3.Error as error:
            raise SettingsError(
                f"The checkpoints in {place!r} cannot be copied ({error}), so nothing "
                "was backed up. If the file is damaged, move it away and try again."
            ) from error
        archive.add(copy, _CHECKPOINTS)
    return True


def restore(
    ctx: typer.Context,
    file: Annotated[Path, argument("FILE", "The backup.")],
    *,
    replace: Annotated[
        bool, flag("--replace", "Replace the data of the store.")
    ] = False,
) -> None:
    """Restore a backup; no call runs twice.

    Stop all gateways and bots first. A call that is approved in the backup may have run
    since, so reviewers are asked. Waiting calls need new votes. Existing files are kept
    because they are newer: the audit log, checkpoints with the ledger, and keys.

    Examples:
      keyturn restore keyturn.tar.gz            into an empty store
      keyturn restore keyturn.tar.gz --replace  instead of the data in the store
    """
    command = command_context(ctx)
    with TemporaryDirectory() as folder:
        found, rows = _unpacked(file, Path(folder))
        settings = command.settings()
        restoring = _restore(settings, found, rows, Path(folder), replace=replace)
        asyncio.run(restoring)
    at = console.utc(found.at_ms)
    console.good(f"The store has the data of {at} again.")
    console.bad(
        f"Everything after {at} is missing, and all delegations: people make them "
        "again. Check 'keyturn frozen', 'keyturn api-keys list' and 'keyturn audit "
        "verify': later freezes and revocations count only if the files of the audit "
        "log have them."
    )
    try:
        done = asyncio.run(repaired(command, is_dry=False, is_restored=True))
    except KeyturnError as error:
        console.bad(f"{error} The next gateway puts the approved calls in doubt.")
        raise typer.Exit(1) from error
    print_repairs(done, is_dry=False)


async def _restore(
    settings: Settings,
    found: _Manifest,
    rows: list[StoredKey],
    folder: Path,
    *,
    replace: bool,
) -> None:
    if found.tenant != settings.tenant:
        raise SettingsError(
            f"The backup is of the tenant {found.tenant!r}, and the settings have "
            f"{settings.tenant!r}; use the settings of its tenant."
        )
    _require_secret(settings, found, folder)
    async with open_configured(settings, insecure_dev=True) as store:
        keys = store.keys_of_tenant(settings.tenant)
        if alive := (await store.processes.read(keys)).alive:
            who = ", ".join(sorted({one.where for one, _ in alive.values()}))
            raise SettingsError(
                f"Processes use the store ({who}), so nothing was restored. Stop them; "
                "a killed one counts as gone after 20 seconds."
            )
        here = {keys.suffix(one.name) for one in await copied(store, keys)}
        if here - _MADE_AT_START and not replace:
            raise SettingsError(
                "The store has data, so nothing was restored. Back it up, then "
                "replace it with --replace."
            )
        _put_files(settings, folder)
        # A person may have taken their queue back since.
        kept = [one for one in rows if one.name != keys.delegations]
        await put_back(store, keys, kept, found.counters)
        # An entry of the audit log, so that the gap in it is visible.
        event = SecurityEvent(
            kind=SecurityKind.REPLAYED,
            tenant=settings.tenant,
            about="store",
            name=f"restored from a backup of {console.utc(found.at_ms)}",
        )
        await store.security.report(keys, event)


def _require_secret(settings: Settings, found: _Manifest, folder: Path) -> None:
    """Require the secret of a backup; take it from there only if there is none here.

    Whoever made a backup with another secret can have forged all of its records.
    """
    has_secret = settings.secret or (settings.data_dir / _SECRETS[0]).exists()
    known = settings.secret_keys() if has_secret else ()
    if not has_secret and (folder / _SECRETS[0]).exists():
        known = folder_secrets(folder)
    if found.sealed_by not in {key_id_of(one, Purpose.RECORDS) for one in known}:
        raise SettingsError(
            "The backup is sealed with another secret, so nothing was restored. Set "
            f"KEYTURN_SECRET, or put its 'secret.key' into {str(settings.data_dir)!r}."
        )
    for name in _SECRETS:
        if not has_secret and (folder / name).exists():
            _put(folder / name, settings.data_dir / name)


def _put_files(settings: Settings, folder: Path) -> None:
    place, keys = settings.checkpoint_place, _key_path(settings, KEY_FOLDER)
    if (folder / _CHECKPOINTS).exists() and not is_postgres(place):
        left = Path(f"{place}-wal")
        # SQLite would write the pages of the lost file into the restored one.
        if left.exists() and not Path(place).exists():
            raise SettingsError(
                f"{str(left)!r} belongs to a file that is missing, so nothing was "
                f"restored. Put {place!r} back beside it, or move it away."
            )
        _put(folder / _CHECKPOINTS, Path(place))
    restored = sorted((folder / KEY_FOLDER).rglob("*.json"))
    # Not one by one: a key that others do not know could be of an attacker.
    if restored and any(keys.rglob("*.json")):
        console.note(f"The signing keys in {str(keys)!r} are kept.")
        restored = []
    for one in restored:
        _put(one, keys / one.relative_to(folder / KEY_FOLDER))
    audit = _audit_folder(settings)
    if _audit_files(settings, audit):
        console.note("The audit log in the folder is kept.")
        return
    for one in _audit_files(settings, folder / AUDIT_FOLDER):
        _put(one, audit / one.name)


def _put(source: Path, target: Path) -> None:
    try:
        write_private(target, source.read_bytes())
    except FileExistsError:
        console.note(f"{str(target)!r} is kept.")


def _unpacked(file: Path, folder: Path) -> tuple[_Manifest, list[StoredKey]]:
    """Unpack and check a backup completely before anything is changed."""
    try:
        with tarfile.open(file) as archive:
            _unpack(archive, folder)
        found = _Manifest.model_validate_json((folder / _MANIFEST).read_bytes())
        lines = (folder / _STORE).read_bytes().splitlines()
        rows = [StoredKey(*_ROW.validate_json(line)) for line in lines]
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        text = f"a part of it has an unknown form ({error.title} {where})"
        raise _not_whole(file, text) from error
    except (OSError, tarfile.TarError, EOFError, ValueError, zlib.error) as error:
        # Python lists the problem of each compression after a colon.
        text = getattr(error, "strerror", None) or str(error).partition(":\n")[0]
        raise _not_whole(file, text) from error
    keys, names = Keys(found.tenant), {one.name for one in rows}
    if keys.format not in names or len(names) < len(rows):
        raise _not_whole(file, "it lacks keys of the store, or has one twice")
    if others := [one for one in names if keys.suffix(one) == one]:
        raise _not_whole(file, f"{others[0]!r} is no key of its tenant")
    return found, rows


def _unpack(archive: tarfile.TarFile, folder: Path) -> None:
    # It may come from somebody else, so only files that `backup` writes are unpacked.
    for member in archive:
        is_known = member.isreg() and _MEMBER.fullmatch(member.name)
        if not is_known or (folder / member.name).exists():
            raise ValueError(f"it has no place for {member.name!r}")
        # A small file can unpack to any size.
        if member.size > shutil.disk_usage(folder).free:
            raise ValueError(
                f"{member.name!r} has {member.size:,} bytes, more than are free in "
                f"{str(folder.parent)!r}; set TMPDIR to a larger disk"
            )
        archive.extract(member, folder, filter="data")


def _not_whole(file: Path, problem: str) -> SettingsError:
    return SettingsError(
        f"{str(file)!r} is no complete backup that this version reads: {problem}. "
        "Name another file."
    )


def _audit_folder(settings: Settings) -> Path:
    return settings.audit_folder or settings.data_dir / AUDIT_FOLDER


def _audit_files(settings: Settings, folder: Path) -> list[Path]:
    name = re.compile(f"{settings.tenant}{_AUDIT_FILE}", re.ASCII)
    return sorted(one for one in folder.glob("*") if name.fullmatch(one.name))


def _key_path(settings: Settings, name: str) -> Path:
    """Return the place of a key by its name in a backup."""
    folder, _, rest = name.partition("/")
    if folder == KEY_FOLDER:
        return (settings.keys.folder or settings.data_dir / KEY_FOLDER) / rest
    return settings.data_dir / name


def _key_files(settings: Settings) -> dict[str, Path]:
    """Return secrets and signing keys by their name in a backup."""
    places = {name: _key_path(settings, name) for name in _SECRETS}
    found = {name: path for name, path in places.items() if path.exists()}
    keys = _key_path(settings, KEY_FOLDER)
    listed = keys.glob("*/*.key.json")
    return found | {f"{KEY_FOLDER}/{one.relative_to(keys)}": one for one in listed}


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, BytesIO(data))

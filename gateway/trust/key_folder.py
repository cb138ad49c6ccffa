"""The signing keys of each role in files, and the keys that a process uses.

A role signs with its newest key. Older keys verify until they are retired. Retiring
removes the secret; its signatures then verify only where old signatures count (the
audit log). To replace a key without refusing waiting calls, `rotate`, distribute the
new public key, and `retire` the old key.

Files are written atomically, and only their owner can read them.

A process signs with the keys of its roles. Trusted public keys come from the key
folder, if processes share it, or else from the settings. New and rotated keys count at
once, and retired keys stop counting after a second, without a restart.
"""

from __future__ import annotations

import logging
import os
import secrets
import stat
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import AwareDatetime, Field, ValidationError

from keyturn.gateway.clock import now_s
from keyturn.gateway.config import Settings
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.failures import log_failure
from keyturn.gateway.protocol.public_keys import PublicKey, parse_public_key
from keyturn.gateway.protocol.receipts import enveloped, pae
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.secret_file import write_private

logger = logging.getLogger(__name__)

FOLDER = "keys"
"""Default folder of the keys, inside the data folder."""

_LOOK_S = 1.0
"""How long the content of the folder is cached."""

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_USE = stat.S_IRWXG | stat.S_IRWXO
_SUFFIX = ".key.json"
_SEED_BYTES = 32


@dataclass(frozen=True, slots=True)
class SigningKey:
    """An Ed25519 key, and the name in its signatures."""

    public: PublicKey
    _private: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def from_seed(cls, name: str, seed: bytes) -> SigningKey:
        """Return the key from 32 secret bytes (RFC 8032 section 5.1.5)."""
        private = Ed25519PrivateKey.from_private_bytes(seed)
        raw = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return cls(PublicKey(name, raw), private)

    def sign(self, message: bytes) -> bytes:
        """Return the 64-byte signature of a message."""
        return self._private.sign(message)

    def envelope(self, payload_type: str, payload: bytes) -> str:
        """Return a DSSE envelope with this key's signature, as JSON text."""
        signature = self.sign(pae(payload_type, payload))
        signed = [(self.public.label, signature)]
        return enveloped(payload_type, payload, signed).to_text()


class Role(StrEnum):
    """The signing roles, each in a separate process.

    ``bot`` signs people's decisions, ``gateway`` receipts, ``audit`` the heads of the
    audit log.
    """

    BOT = "bot"
    GATEWAY = "gateway"
    AUDIT = "audit"


class KeyState(StrEnum):
    """The current use of a key."""

    SIGNS = "signs"
    VERIFIES = "verifies"
    RETIRED = "retired"


class _File(Record):
    """The content of a key file; a retired key has no seed."""

    v: int = 1
    public: str
    created_at: AwareDatetime
    retired_at: AwareDatetime | None = None
    seed: str = Field(default="", repr=False)

    @property
    def signing(self) -> SigningKey:
        """Return the key that the seed makes."""
        name = parse_public_key(self.public).name
        return SigningKey.from_seed(name, bytes.fromhex(self.seed))


@dataclass(frozen=True, slots=True)
class Key:
    """A key as shown in lists."""

    public: PublicKey
    state: KeyState
    created_at: datetime
    retired_at: datetime | None


class KeyFolder:
    """The keys of a role.

    Args:
        folder: folder of all keys; each role has a folder inside it.
        role: the role.
    """

    def __init__(self, folder: Path, role: Role) -> None:
        self._folder = folder / role
        self._role = role

    def listed(self) -> list[Key]:
        """Return all keys, the newest first.

        Raises:
            SettingsError: when a file cannot be read, or others may read it.
        """
        keys: list[Key] = []
        for file in self._files():
            state = KeyState.RETIRED
            if file.seed:
                has_newer = any(one.state is KeyState.SIGNS for one in keys)
                state = KeyState.VERIFIES if has_newer else KeyState.SIGNS
            public = parse_public_key(file.public)
            keys.append(Key(public, state, file.created_at, file.retired_at))
        return keys

    def signing_key(self) -> SigningKey:
        """Return the key that signs.

        Raises:
            SettingsError: also when there is none.
        """
        for file in self._files():
            if file.seed:
                return file.signing
        raise SettingsError(
            f"There is no key for {self._role.value!r} in {str(self._folder)!r}; run: "
            f"keyturn keys create {self._role}"
        )

    def verifying(self) -> tuple[PublicKey, ...]:
        """Return the keys that verify new signatures, the signing key first."""
        return tuple(
            key.public for key in self.listed() if key.state is not KeyState.RETIRED
        )

    def create(self, now: datetime) -> PublicKey:
        """Make the first key of the role.

        Raises:
            SettingsError: when there is one that signs.
        """
        if any(key.state is KeyState.SIGNS for key in self.listed()):
            raise SettingsError(
                f"{self._role.value!r} has a key already; to replace it run: "
                f"keyturn keys rotate {self._role}"
            )
        return self._new(now)

    def create_first(self, now: datetime) -> PublicKey | None:
        """Make the first key of the role; return None if it has one.

        Of two processes that start concurrently, each may make one: the newer one then
        signs for both, and both verify.

        Raises:
            SettingsError: when the folder cannot be read or written.
        """
        return None if self.listed() else self._new(now)

    def rotate(self, now: datetime) -> PublicKey:
        """Make a new signing key; older keys still verify.

        Raises:
            SettingsError: when there is none yet.
        """
        self.signing_key()
        return self._new(now)

    def retire(self, label: str, now: datetime) -> PublicKey:
        """Remove the secret of a key that no longer signs; raises like `older`."""
        key = self.older(label)
        path = self._path(key.public)
        with _usable(path):
            file = self._read(path)
        file = file.with_(seed="", retired_at=key.retired_at or now)
        self._write(path, file, replaces=True)
        return key.public

    def older(self, label: str) -> Key:
        """Return a key that no longer signs.

        Args:
            label: its name and id, or its id, as shown by `keyturn keys list`.

        Raises:
            SettingsError: when there is no such key, or it signs.
        """
        found = [
            key
            for key in self.listed()
            if label in {key.public.label, key.public.id.hex(), key.public.text}
        ]
        if not found:
            raise SettingsError(
                f"{self._role.value!r} has no key {label!r}; see: keyturn keys list"
            )
        [key] = found
        if key.state is KeyState.SIGNS:
            raise SettingsError(
                f"The key {key.public.label} signs for {self._role.value!r}; "
                f"first run: keyturn keys rotate {self._role}"
            )
        return key

    def _new(self, now: datetime) -> PublicKey:
        seed = secrets.token_bytes(_SEED_BYTES)
        public = SigningKey.from_seed(f"keyturn/{self._role}", seed).public
        # Always later than older keys, even if the clock is wrong: the newest signs.
        step = timedelta(microseconds=1)
        times = [key.created_at + step for key in self.listed()]
        file = _File(
            public=public.text,
            created_at=max(now, *times) if times else now,
            seed=seed.hex(),
        )
        self._write(self._path(public), file)
        return public

    def _files(self) -> list[_File]:
        """Return the content of all files, the newest first."""
        with _usable(self._folder):
            try:
                # Not by glob, which treats an unreadable folder as empty.
                paths = list(self._folder.iterdir())
            except FileNotFoundError:
                return []
            is_open = bool(self._folder.stat().st_mode & _OTHERS_WRITE)
            # The mode of a mounted Kubernetes Secret allows writing.
            is_read_only = os.statvfs(self._folder).f_flag & os.ST_RDONLY
            # Other users could add a public key, which would be trusted.
            if is_open and not is_read_only:
                raise _changeable(self._folder, "go-w")
            files = [self._read(one) for one in paths if one.name.endswith(_SUFFIX)]
        return sorted(
            files, key=lambda file: (file.created_at, file.public), reverse=True
        )

    def _path(self, public: PublicKey) -> Path:
        return self._folder / f"{public.id.hex()}{_SUFFIX}"

    def _read(self, path: Path) -> _File:
        descriptor = os.open(path, os.O_RDONLY)
        with os.fdopen(descriptor, "rb") as file:
            # Of the open file: another process may replace the file of this name.
            mode = os.fstat(file.fileno()).st_mode
            data = file.read()
        found, is_whole = None, False
        try:
            found = _File.model_validate_json(data)
            public = parse_public_key(found.public)
            is_whole = not found.seed or found.signing.public == public
        except (ValidationError, ValueError, SettingsError):
            pass
        if found is None or not is_whole:
            # Without the cause, which could show a part of the secret.
            raise SettingsError(
                f"The key {str(path)!r} is damaged; bring it back from a backup, or "
                "move it away and make another."
            ) from None
        if mode & (_OTHERS_USE if found.seed else _OTHERS_WRITE):
            raise _changeable(path, "600")
        return found

    def _write(self, path: Path, file: _File, *, replaces: bool = False) -> None:
        with _usable(path):
            data = file.model_dump_json().encode() + b"\n"
            write_private(path, data, replaces=replaces)


@contextmanager
def _usable(path: Path) -> Generator[None]:
    """Turn an OSError into a `SettingsError` with the file and the next step."""
    try:
        yield
    except OSError as error:
        raise SettingsError(
            f"The signing keys in {str(path)!r} cannot be used: {error.strerror}. Name "
            "with 'keys: {folder: …}' a folder that this user can read and write."
        ) from error


def _changeable(path: Path, mode: str) -> SettingsError:
    return SettingsError(
        f"The signing keys in {str(path)!r} can be used or changed by other users of "
        f"this machine; find out who changed them, and run: chmod {mode} {path}"
    )


class _Found(NamedTuple):
    looked_s: float
    signing: SigningKey | None
    verifying: tuple[PublicKey, ...]


class Keyring:
    """The keys of one process.

    Args:
        folder: folder of the keys of all roles.
        makes: roles whose first key this process makes, if there is none.
        known: more trusted public keys, of other processes, by role.
        clock: seconds that only move forward.

    Raises:
        SettingsError: when a known key is not a complete public key.
    """

    def __init__(
        self,
        folder: Path,
        *,
        makes: Iterable[Role] = (),
        known: Mapping[Role, Iterable[str]] | None = None,
        clock: Callable[[], float] = now_s,
    ) -> None:
        self.folder = folder
        self._makes = tuple(makes)
        self._others = {
            role: tuple(map(parse_public_key, texts))
            for role, texts in (known or {}).items()
        }
        self._clock = clock
        self._found: dict[Role, _Found] = {}

    @classmethod
    def of(cls, settings: Settings, *makes: Role) -> Keyring:
        """Return the keys that the settings name, for a process of these roles."""
        keys = settings.keys
        return cls(
            keys.folder or settings.data_dir / FOLDER,
            makes=makes,
            known={
                Role.BOT: keys.bot,
                Role.GATEWAY: keys.gateway,
                Role.AUDIT: keys.audit,
            },
        )

    def make_missing(self, now: datetime) -> tuple[PublicKey, ...]:
        """Make the first key of each role of this process; return those made now.

        Raises:
            SettingsError: when the folder cannot be read or written.
        """
        made = [self._folder_of(role).create_first(now) for role in self._makes]
        return tuple(key for key in made if key is not None)

    def signing(self, role: Role) -> SigningKey:
        """Return the key that signs for a role in this process.

        Raises:
            SettingsError: when there is none.
        """
        found = self._look(role)
        # Read again for an error that names the folder and the command to run.
        return found.signing or self._folder_of(role).signing_key()

    def verifying(self, role: Role) -> tuple[PublicKey, ...]:
        """Return the public keys whose signatures count for a role."""
        return (*self._look(role).verifying, *self.known(role))

    def verifying_now(self, role: Role) -> tuple[PublicKey, ...]:
        """Return the trusted keys after reading the folder again.

        For a signature by an unknown key: a bot that has just made its first key signs
        with it at once.
        """
        return (*self._look(role, cached_s=0.0).verifying, *self.known(role))

    def known(self, role: Role) -> tuple[PublicKey, ...]:
        """Return the public keys of a role that the settings name."""
        return self._others.get(role, ())

    def _look(self, role: Role, *, cached_s: float = _LOOK_S) -> _Found:
        before, at_s = self._found.get(role), self._clock()
        if before is not None and at_s - before.looked_s < cached_s:
            return before
        folder = self._folder_of(role)
        try:
            verifying = folder.verifying()
            signing = folder.signing_key() if verifying else None
            found = _Found(at_s, signing, verifying)
        except SettingsError as error:
            if before is None:
                raise
            # A running process keeps the keys that it has read, and retries later.
            log_failure(logger, error, "keys.unreadable role=%s", role)
            found = before._replace(looked_s=at_s)
        self._found[role] = found
        return found

    def _folder_of(self, role: Role) -> KeyFolder:
        return KeyFolder(self.folder, role)

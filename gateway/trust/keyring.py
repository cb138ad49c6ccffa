"""The signing keys of a process, and the public keys that it trusts.

A process signs with the keys of its roles. Trusted public keys come from the key
folder, if processes share it, or else from the settings. New and rotated keys count at
once, and retired keys stop counting after a second, without a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from keyturn.gateway.clock import now_s
from keyturn.gateway.config import Settings
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.failures import log_failure
from keyturn.gateway.protocol.public_keys import PublicKey, parse_public_key
from keyturn.gateway.trust.key_folder import KeyFolder, Role, SigningKey

logger = logging.getLogger(__name__)

FOLDER = "keys"
"""Default folder of the keys, inside the data folder."""

_LOOK_S = 1.0
"""How long the content of the folder is cached."""


@dataclass(frozen=True, slots=True)
class _Found:
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
        self._found[role] = self._read(role, self._clock(), self._found.get(role))
        return self.verifying(role)

    def known(self, role: Role) -> tuple[PublicKey, ...]:
        """Return the public keys of a role that the settings name."""
        return self._others.get(role, ())

    def _look(self, role: Role) -> _Found:
        found, at_s = self._found.get(role), self._clock()
        if found is not None and at_s - found.looked_s < _LOOK_S:
            return found
        found = self._found[role] = self._read(role, at_s, found)
        return found

    def _read(self, role: Role, at_s: float, before: _Found | None) -> _Found:
        folder = self._folder_of(role)
        try:
            verifying = folder.verifying()
            signing = folder.signing_key() if verifying else None
        except SettingsError as error:
            if before is None:
                raise
            # A running process keeps the keys that it has read, and retries later.
            log_failure(logger, error, "keys.unreadable role=%s", role)
            return _Found(at_s, before.signing, before.verifying)
        return _Found(at_s, signing, verifying)

    def _folder_of(self, role: Role) -> KeyFolder:
        return KeyFolder(self.folder, role)


def own_keyring(settings: Settings | None, data_dir: Path) -> Keyring:
    """Return the keys of a process in which every role signs."""
    if settings is not None:
        return Keyring.of(settings, *Role)
    return Keyring(data_dir / FOLDER, makes=Role)

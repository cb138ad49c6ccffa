"""The signing keys that a process uses, and the public keys that it believes.

A process signs with the keys of its own roles. Whose signatures it accepts is written
in its folder, where it shares one with the others, and in the settings, where it does
not. A key that is made or rotated counts at once, and one that is retired no longer
after a second, without a restart.
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
"""Where in the data folder the keys are, if the settings say nothing else."""

_LOOK_S = 1.0
"""How long a look at the folder counts."""


@dataclass(frozen=True, slots=True)
class _Found:
    looked_s: float
    signing: SigningKey | None
    verifying: tuple[PublicKey, ...]


class Keyring:
    """The keys of one process.

    Args:
        folder: of the keys of all roles.
        makes: roles whose first key this process makes, if there is none.
        known: public keys of other processes, by role, beside those of the folder.
        clock: seconds that only go forward.

    Raises:
        SettingsError: when one of the known keys is not a whole public key.
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
        """Return the key with which this process signs for a role.

        Raises:
            SettingsError: when it has none.
        """
        found = self._look(role)
        # Asked again, so that the error names the folder and what to run.
        return found.signing or self._folder_of(role).signing_key()

    def verifying(self, role: Role) -> tuple[PublicKey, ...]:
        """Return the public keys whose signatures count for a role."""
        return (*self._look(role).verifying, *self.known(role))

    def verifying_now(self, role: Role) -> tuple[PublicKey, ...]:
        """Return them as the folder is at this moment.

        For a signature whose key is not known: a bot that has just made its first key
        signs with it at once.
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
            # A process that runs goes on with what it has read; the next look tries
            # again.
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

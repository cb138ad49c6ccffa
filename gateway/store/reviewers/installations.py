"""Installations of the Slack app in workspaces, and the state of their OAuth flow.

A token is the right to act as the bot. So installations are always encrypted, even if
the store does not encrypt other texts. AES-GCM binds each one to its tenant and id: a
plain, changed or moved value is refused. An older copy of the same installation is
accepted, but its token was replaced or revoked, so Slack refuses it.
"""

from __future__ import annotations

from contextlib import suppress

from keyturn.gateway.approvals.events import Event
from keyturn.gateway.store.connection.connection import Argument, fields
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.sealing.encryption import MARK, decrypted_text, encrypt_text
from keyturn.gateway.store.sealing.sealing import Repository, Sealed, write_if

STATE_MS = 10 * 60 * 1000
"""Lifetime of a `state`: Slack's code lives as long."""

RENEWING_MS = 60_000
"""Time in which only one process renews a token; longer than its call can take."""


class InstallationStore(Repository):
    """Installations by the id of a workspace, or of an organization."""

    async def all(self, keys: Keys) -> dict[str, bytes]:
        """Return the stored installations, encrypted.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        return dict(fields(await self._conn.command("HGETALL", keys.installations)))

    async def decrypted(
        self, keys: Keys, installation: str, stored: bytes
    ) -> bytes | None:
        """Return an installation as JSON; None, and a report, for a forged one.

        Raises:
            StoreUnavailable: it may be encrypted with a newer secret.
        """
        with suppress(ValueError):
            if stored.startswith(MARK):  # never plain, as other texts may be
                return decrypted_text(self._conn, _place(keys, installation), stored)
        await self._sealing.refuse(keys, Sealed.INSTALLATION, stored, name=installation)
        return None

    async def write(
        self,
        keys: Keys,
        installation: str,
        body: str,
        event: Event | None,
        *,
        seen: bytes | None = None,
    ) -> bool:
        """Store an installation, or remove it; False if it has changed.

        Args:
            keys: keys of the tenant.
            installation: id of the workspace or organization.
            body: JSON; "" removes the installation.
            event: an audit entry that is written with it.
            seen: the stored value to replace; None replaces any.

        Raises:
            StoreUnavailable: when the result is unknown.
        """
        name = keys.installations
        change: list[Argument] = ["HDEL", name, installation]
        if body:
            place = _place(keys, installation)
            text = encrypt_text(self._conn, place, body)
            change = ["HSET", name, installation, text]
        checks = [] if seen is None else [(["HGET", name, installation], seen)]
        audit = [event] if event else []
        return await write_if(self._conn, keys, checks, change, audit=audit)

    async def add_state(self, keys: Keys, state: str) -> None:
        """Remember a state for `STATE_MS`; raises `StoreUnavailable`."""
        await self._conn.command("SET", keys.install_state(state), 1, "PX", STATE_MS)

    async def use_state(self, keys: Keys, state: str) -> bool:
        """Return whether a state may be used; it may be once.

        Raises:
            StoreUnavailable: when the store does not answer; the state is then used.
        """
        return await self._conn.command("DEL", keys.install_state(state)) == 1

    async def begin_renewal(self, keys: Keys, installation: str) -> bool:
        """Return whether this process may renew a token now, and no other one."""
        name = keys.renewing(installation)
        reply = await self._conn.command("SET", name, 1, "NX", "PX", RENEWING_MS)
        return reply is not None


def _place(keys: Keys, installation: str) -> tuple[str, str, str]:
    return Sealed.INSTALLATION, keys.tenant, installation

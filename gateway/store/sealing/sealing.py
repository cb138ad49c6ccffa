"""Seal security-relevant texts, and reject texts with an invalid seal for their place.

A sealed text is a mark, the seal, and the text (`keyturn.gateway.trust.seals`).
Its place is the Redis key, which contains tenant and thread, and names that distinguish
several texts under one key. Approvals have other seals, see
`keyturn.gateway.store.records.codec`.

A seal does not reveal that a text is older than another one of the same place. Where
that matters, a text has a rising number, and a process rejects a number below the
highest one it has seen.

A process refuses to start on a store that is sealed with another secret.

Security events go to the log, to the audit log, and to people. An attacker with write
access to the store can cause any number of them. This process logs and counts every
event. The store gets the same event once in ten minutes, at most 20 of a kind within
that time, and then their total. People get three, and then the total. Each kind has a
separate budget: some kinds can be caused by anyone who reaches a port, and must not use
up the budget of the others.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from keyturn.gateway.approvals.events import Event, SecurityEvent, SecurityKind, summary
from keyturn.gateway.errors import SettingsError, StoreUnavailable
from keyturn.gateway.store.connection.connection import Argument, Connection, text
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.scripts.script import Script
from keyturn.gateway.store.sealing.encryption import (
    decrypted,
    decrypted_text,
    encrypted,
    encrypted_text,
)
from keyturn.gateway.store.sealing.event_seals import sealed_texts
from keyturn.gateway.trust.seals import (
    SEAL_BYTES,
    Purpose,
    SealKeys,
    key_id_of,
    seal_keys,
)

Check = tuple[Sequence[Argument], Argument]
"""A command that reads one value, and the reply that was read; "" for none."""

WRITE_IF = Script("write_if")
FENCED_WRITE_IF = Script("write_if", is_fenced=True)


async def write_if(
    conn: Connection,
    keys: Keys,
    checks: Sequence[Check],
    *commands: Sequence[Argument],
    outbox: Iterable[Event] = (),
    audit: Iterable[Event] = (),
    is_fenced: bool = False,
) -> bool:
    """Run commands in one step; False, and nothing is written, if a value has changed.

    Args:
        conn: connection to the store.
        keys: keys of the tenant, which has all keys of the commands.
        checks: values to compare; see `Check`.
        commands: commands to run.
        outbox: events for the outbox, written in the same step.
        audit: events for the audit log.
        is_fenced: True if it requires the lease of the current context.

    Raises:
        StoreUnavailable: when the result is unknown.
        LeaseLost: another process has the lease now; nothing was written.
    """
    words: list[Argument] = []
    for read, expected in checks:
        words += [len(read), *read, expected]
    for command in commands:
        words += [len(command), *command]
    script = FENCED_WRITE_IF if is_fenced else WRITE_IF
    reply = await script(
        conn,
        outbox=keys.outbox,
        audit=keys.audit,
        outbox_events=sealed_texts(conn, keys, outbox),
        audit_events=sealed_texts(conn, keys, audit),
        checks=len(checks),
        writes=len(commands),
        words=words,
    )
    return text(reply[0]) == "done"


logger = logging.getLogger(__name__)

_PERIOD_S = 600.0
_LOGGED, _ANNOUNCED = 20, 3
_MOST_KNOWN = 10_000


@dataclass
class _Period:
    """Number of events of one kind and tenant since a moment."""

    since: float
    keys: Keys
    found: int = 0

    def summaries(self, tenant: str, kind: SecurityKind) -> Iterator[Event | None]:
        """Yield the summaries to announce and to log; None for an empty one."""
        for told in (_ANNOUNCED if kind.is_announced else self.found, _LOGGED):
            left = self.found - told
            yield summary(tenant, kind, left) if left > 0 else None


class SecurityEvents:
    """The security events of this process.

    Args:
        conn: connection to the store.
        clock: monotonic seconds.

    Attributes:
        counts: numbers of events in this process.
        tenant: tenant whose people get the reports.
    """

    tenant = ""

    def __init__(
        self, conn: Connection, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._conn = conn
        self._clock = clock
        self._known: dict[str, float] = {}
        self._periods: dict[tuple[str, SecurityKind], _Period] = {}
        self.counts: Counter[SecurityKind] = Counter()

    async def report(self, keys: Keys, found: SecurityEvent) -> None:
        """Report an event once; never fails.

        Args:
            keys: keys of the tenant where it was found.
            found: the event.
        """
        if not found.tenant:
            found = found.with_(tenant=self.tenant)
        place, now = self._mark(keys, found.model_dump_json()), self._clock()
        if now - self._known.get(place, now - _PERIOD_S) < _PERIOD_S:
            return
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[place] = now
        self.counts[found.kind] += 1
        logger.error(
            "security.detected kind=%s tenant=%r about=%s name=%r agent=%r thread=%r "
            "approval=%r key=%s",
            found.kind, found.tenant, found.about, found.name, found.agent,
            found.thread, found.approval, found.key_id,
        )  # fmt: skip
        await self._end_periods(now)
        period = self._periods.setdefault(
            (found.tenant, found.kind), _Period(now, keys)
        )
        period.found += 1
        is_announced = found.kind.is_announced and period.found <= _ANNOUNCED
        told = found.announced() if is_announced else None
        logged = found.logged() if period.found <= _LOGGED else None
        if told or logged:
            await self._write(keys, place, told, logged)

    async def tell_left(self) -> None:
        """Report summaries whose period is over."""
        await self._end_periods(self._clock())

    async def _end_periods(self, now: float) -> None:
        ended = [
            one
            for one, period in self._periods.items()
            if now - period.since >= _PERIOD_S
        ]
        for tenant, kind in ended:
            period = self._periods.pop((tenant, kind))
            told, logged = period.summaries(tenant, kind)
            if told or logged:
                text = f"{tenant} {kind} {id(self)} {now}"
                place = self._mark(period.keys, text)
                await self._write(period.keys, place, told, logged)

    def _mark(self, keys: Keys, text: str) -> str:
        """Return the key that marks an event as reported."""
        # Keyed by the secret: an attacker must not be able to set the mark in advance.
        if self._conn.secrets:
            sealing = seal_keys(self._conn.secrets, Purpose.RECORDS)
            text = sealing.make("told", (keys.tenant,), text.encode()).hex()
        return keys.security(text)

    async def _write(
        self, keys: Keys, place: str, told: Event | None, logged: Event | None
    ) -> None:
        try:
            await write_if(
                self._conn,
                keys,
                # Another process may have reported it.
                [(["GET", place], "")],
                ["SET", place, "1", "PX", int(_PERIOD_S * 1000)],
                outbox=[told] if told else [],
                audit=[logged] if logged else [],
            )
        except StoreUnavailable as error:
            # The text is rejected anyway, and the log has the event.
            logger.warning("security.not_recorded why=%s", error)


MARK = b"\x1d"
"""First byte of a sealed text."""

_SEAL = 24
"""Length of a seal in base64."""

SEALED_OTHERWISE = (
    "the store is marked as sealed with a secret that this process does not accept. If "
    "KEYTURN_SECRET was replaced, restart it with the new one; if not, see who else "
    "writes to the store."
)


class Sealed(StrEnum):
    """Kind of a sealed text; a seal is valid for one kind only."""

    VERDICTS = "verdicts"
    FACTS = "thread"
    DELEGATION = "delegation"
    FREEZES = "freezes"
    JOB = "job"
    PAGE = "page"
    CALL_END = "call"
    MESSAGE = "message"
    REJECTION = "rejection"
    PRECEDENT = "precedent"
    EDIT = "edit"
    EVENT = "event"
    API_KEY = "api_key"
    VIEW = "view"
    DEFINITIONS = "definitions"
    LEFT_CALL = "left_call"
    JOINED_CALL = "joined_call"
    CARD_URL = "card_url"
    INSTALLATION = "installation"


class Seals:
    """Seals texts of one store.

    Args:
        conn: connection to the store, with the secrets for the keys.

    Attributes:
        conn: connection to the store.
    """

    def __init__(self, conn: Connection) -> None:
        self.conn = conn

    @property
    def keys(self) -> SealKeys:
        """Return the keys of facts."""
        return seal_keys(self.conn.secrets, Purpose.FACTS)

    def sealed(self, kind: Sealed, place: Sequence[str], body: bytes) -> bytes:
        """Return a text in stored form."""
        body = encrypted(self.conn, (kind, *place), body)
        return MARK + self.keys.make(kind, place, body) + body

    def opened(self, kind: Sealed, place: Sequence[str], stored: bytes) -> bytes | None:
        """Return the text if its seal is valid for this place, else None."""
        start = len(MARK) + SEAL_BYTES
        seal, body = stored[len(MARK) : start], stored[start:]
        is_valid = self.keys.is_valid(seal, kind, place, body)
        if not (is_valid and stored.startswith(MARK)):
            return None
        try:
            return decrypted(self.conn, (kind, *place), body)
        except ValueError:
            return None

    def sealed_text(self, kind: Sealed, place: Sequence[str], body: str) -> str:
        """Return JSON in stored form, for scripts, which take only strings."""
        text = encrypted_text(self.conn, (kind, *place), body)
        seal = self.keys.make(kind, place, text.encode())
        return base64.b64encode(seal).decode() + text

    def opened_text(
        self, kind: Sealed, place: Sequence[str], stored: bytes
    ) -> bytes | None:
        """Return the JSON if its seal is valid for this place, else None."""
        # Not in base64, or encrypted for another place.
        with suppress(ValueError):
            seal = base64.b64decode(stored[:_SEAL], validate=True)
            if self.keys.is_valid(seal, kind, place, stored[_SEAL:]):
                return decrypted_text(self.conn, (kind, *place), stored[_SEAL:])
        return None


class Sealing(Seals):
    """Seals texts of one store, and reports invalid seals.

    Args:
        conn: connection to the store, with the secrets for the keys.
        security: receives the reports.

    Attributes:
        security: receives the reports.
    """

    def __init__(self, conn: Connection, security: SecurityEvents) -> None:
        super().__init__(conn)
        self.security = security
        self._newest: OrderedDict[str, int] = OrderedDict()

    def is_older(self, place: str, number: int) -> bool:
        """Return whether a number is below the highest one seen for a place."""
        newest = self._newest.pop(place, 0)
        self._newest[place] = max(newest, number)
        if len(self._newest) > _MOST_KNOWN:
            self._newest.popitem(last=False)
        return number < newest

    def newest(self, place: str) -> int:
        """Return the highest number seen for a place; 0 if there is none."""
        return self._newest.get(place, 0)

    async def ensure_known(self, keys: Keys, *, approval: str = "") -> None:
        """Raise unless this process accepts the tenant's current secret.

        Call it before a record is treated as forged: its seal may be valid under a
        newer secret. An attacker can fake such a change of the secret, so it is
        reported.

        Args:
            keys: keys of the tenant.
            approval: the approval that cannot be verified.

        Raises:
            StoreUnavailable: the current secret is unknown here, so this process must
                not decide, acknowledge or quarantine.
        """
        if await knows_secret(self.conn, keys):
            return
        kind = SecurityKind.SECRET_UNKNOWN
        found = SecurityEvent(kind=kind, tenant="", about="secret", approval=approval)
        await self.security.report(keys, found)
        raise StoreUnavailable(
            f"The data of the store cannot be verified, so nothing was decided or run: "
            f"{SEALED_OTHERWISE}"
        )

    async def refuse(
        self,
        keys: Keys,
        kind: Sealed,
        stored: bytes,
        *,
        is_older: bool = False,
        **where: str,
    ) -> None:
        """Report a rejected text: its seal is invalid, or it is an older one.

        ``where`` has the agent, thread, approval and name, as far as known.

        Raises:
            StoreUnavailable: the seal may be valid under a newer secret.
        """
        if not is_older:
            await self.ensure_known(keys)
        found = SecurityEvent(
            kind=SecurityKind.REPLAYED if is_older else SecurityKind.SEAL_WRONG,
            tenant=keys.tenant,
            about=kind,
            key_id=self.keys.id,
            evidence=hashlib.sha256(stored).hexdigest()[:16],
        )
        await self.security.report(keys, found.with_(**where))


class Repository:
    """One kind of data of all tenants; see `keyturn.gateway.store.store.Store`."""

    def __init__(self, sealing: Sealing) -> None:
        self._conn, self._sealing = sealing.conn, sealing


async def ensure_secret(conn: Connection, keys: Keys) -> None:
    """Store the id of the tenant's sealing key, or compare it with the stored one.

    A process with another secret would treat every record as forged, and quarantine it.
    The stored id of the derived key reveals nothing about the secret. Changing it only
    prevents processes from starting.

    Raises:
        SettingsError: the secret differs; the message has the next step.
        StoreUnavailable: when the store does not answer.
    """
    key, mine = keys.sealed_by, _mine(conn)
    kept = await first_of(conn, key, mine[0])
    if kept not in mine:
        raise SettingsError(
            f"This store is sealed with another secret (its key is {kept}, "
            f"and this process has {', '.join(mine)}), so its data cannot be "
            "verified. Give all processes of a store the same KEYTURN_SECRET, or the "
            "same 'data_dir'. If that secret is lost, see 'A lost secret' in "
            "docs/upgrade.md."
        )
    if kept != mine[0]:
        # The secret is being replaced: other processes already accept the new one.
        await conn.keep(["SET", key, mine[0]])


async def first_of(conn: Connection, key: str, mine: str) -> str:
    """Return the text of a key; the first caller's text is stored.

    Raises:
        StoreUnavailable: when the store does not answer.
    """
    if kept := text(await conn.command("GET", key)):
        return kept
    # If two processes start at once, one write wins, and both compare.
    await conn.keep(["SET", key, mine, "NX"])
    return text(await conn.command("GET", key))


async def knows_secret(conn: Connection, keys: Keys) -> bool:
    """Return whether this process accepts the secret that now seals a tenant's data.

    A process that was paused, or forgotten, during a change of the secret does not.
    Seals that it cannot verify are then no evidence of forgery.

    Raises:
        StoreUnavailable: when the store does not answer.
    """
    kept = text(await conn.command("GET", keys.sealed_by))
    return not kept or kept in _mine(conn)


def _mine(conn: Connection) -> list[str]:
    return [key_id_of(one, Purpose.RECORDS) for one in conn.secrets]

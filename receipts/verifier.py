"""The keys, audience and ledger of a tool that verifies receipts."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from keyturn.gateway.errors import BadJson, NotVerified, SettingsError
from keyturn.gateway.protocol.public_keys import PublicKey, parse_public_key
from keyturn.gateway.protocol.receipts import Ledger, Receipt, verify_receipt
from keyturn.gateway.protocol.strict_json import JsonObject, accept_object

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")

PARAMETER = "receipt"
"""The keyword argument of a guarded function that carries its receipt."""

_WAIT_S = 5.0
"""How long a use waits for another process that is writing."""


class Verifier:
    """Verifies receipts for one audience.

    Args:
        audience: the gateway's name for the process that runs the tools.
        keys: public keys of the gateway, as `keyturn keys list` prints them: the
            current one, and older ones while calls still wait under them.
        ledger: records used receipts.
        needs_people: refuse receipts of calls that only the policy authorized.

    Raises:
        SettingsError: when a key is not a complete public key, or there is none.
    """

    def __init__(
        self,
        *,
        audience: str,
        keys: Iterable[str | PublicKey],
        ledger: Ledger,
        needs_people: bool = False,
    ) -> None:
        self._audience = audience
        self._keys = tuple(
            parse_public_key(key) if isinstance(key, str) else key for key in keys
        )
        if not self._keys:
            raise SettingsError(
                "A verifier needs a public key of the gateway; copy the lines that "
                "`keyturn keys list` prints."
            )
        self._ledger = ledger
        self._needs_people = needs_people

    def verify(self, text: str, *, tool: str, args: JsonObject) -> Receipt:
        """Return the receipt that authorizes this call now, and use it up.

        Raises:
            NotVerified: with a one-word reason why the call must not run
                (`verify_receipt`).
        """
        return verify_receipt(
            text,
            tool=tool,
            args=args,
            keys=self._keys,
            audience=self._audience,
            ledger=self._ledger,
            now_s=time.time(),  # noqa: TID251 - there is no store here to ask
            needs_people=self._needs_people,
        )

    def guarded(self, function: Callable[_Params, _Result]) -> Callable[..., _Result]:
        """Return a function that runs only with a receipt for exactly this call.

        It accepts the same keywords and also ``receipt``, which it does not pass on.
        The tool name is the function's name, and the arguments are the given keywords:
        they must equal those of the approved call. The function receives the verified
        copy of them. Functions and coroutine functions are supported.
        """
        name = function.__name__

        def verified(
            args: tuple[object, ...], kwargs: dict[str, object]
        ) -> dict[str, Any]:
            text = kwargs.pop(PARAMETER, "")
            if args:
                raise NotVerified(
                    "call_differs", f"{name} has to be called with keywords"
                )
            try:
                # A copy: the caller's lists may change during the verification.
                given = accept_object(kwargs)
            except BadJson as error:
                raise NotVerified(
                    "call_differs", "the arguments are not strict JSON"
                ) from error
            self.verify(text if isinstance(text, str) else "", tool=name, args=given)
            return given

        called = cast("Callable[..., _Result]", function)
        if inspect.iscoroutinefunction(function):
            awaited = cast("Callable[..., Awaitable[object]]", function)

            @functools.wraps(function)
            async def guarded_coroutine(*args: object, **kwargs: object) -> object:
                # In a thread, because the ledger waits for the disk.
                return await awaited(**await asyncio.to_thread(verified, args, kwargs))

            return cast("Callable[..., _Result]", guarded_coroutine)

        @functools.wraps(function)
        def guarded_function(*args: object, **kwargs: object) -> _Result:
            return called(**verified(args, kwargs))

        return guarded_function


def requires_receipt(
    *,
    audience: str,
    keys: Iterable[str | PublicKey],
    ledger: Ledger,
    needs_people: bool = False,
) -> Callable[[Callable[_Params, _Result]], Callable[..., _Result]]:
    """Return a decorator; the function then runs only with a receipt.

    It makes a `Verifier` and applies `Verifier.guarded`.

    Raises:
        SettingsError: as `Verifier`.
    """
    verifier = Verifier(
        audience=audience, keys=keys, ledger=ledger, needs_people=needs_people
    )
    return verifier.guarded


class SqliteLedger:
    """A ledger in a file, for all processes of one machine that run the same tool.

    A use is on disk before the tool runs. If it cannot be recorded, the tool does not
    run. Uses are dropped one hour after their receipts have expired, by this machine's
    clock.
    """

    _KEPT_S = 3600

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        with closing(self._open()) as db:
            db.execute(
                "CREATE TABLE IF NOT EXISTS used_receipts "
                "(jti TEXT PRIMARY KEY, expires_at_s INTEGER NOT NULL) WITHOUT ROWID"
            )

    def use(self, jti: str, expires_at_s: int) -> bool:
        """Record the use of a receipt; return False if it was recorded before.

        Raises:
            NotVerified: ``ledger_unavailable``.
        """
        try:
            # A connection for each use: threads cannot share one.
            with closing(self._open()) as db, db:
                # Locked before reading, so that one of two processes waits.
                db.execute("BEGIN IMMEDIATE")
                ended = int(time.time()) - self._KEPT_S  # noqa: TID251 - no store here
                db.execute("DELETE FROM used_receipts WHERE expires_at_s < ?", (ended,))
                done = db.execute(
                    "INSERT OR IGNORE INTO used_receipts VALUES (?, ?)",
                    (jti, expires_at_s),
                )
                return done.rowcount == 1
        except sqlite3.Error as error:
            raise NotVerified(
                "ledger_unavailable",
                f"its use could not be recorded in {str(self._path)!r} ({error})",
            ) from error

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, timeout=_WAIT_S, isolation_level=None)
        # FULL: a use that a power failure undoes could run the call again.
        db.execute("PRAGMA synchronous = FULL")
        return db

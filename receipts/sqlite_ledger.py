"""Remember in an SQLite file which receipts were used."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from keyturn.gateway.errors import NotVerified

_WAIT_S = 5.0
"""How long a use waits for another process that writes."""


class SqliteLedger:
    """A ledger in a file, for all processes of one machine that run the same tool.

    A use is on the disk before the tool runs. Where it cannot be recorded nothing runs.
    Uses are dropped once their receipts have ended, by this machine's clock, and one
    hour later.
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
        """Record the use of a receipt; return False when it was recorded before.

        Raises:
            NotVerified: ``ledger_unavailable``.
        """
        try:
            # A connection for each use: it may come from any thread.
            with closing(self._open()) as db, db:
                # Taken before it is read, so that of two processes one waits.
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
        # FULL: a use that a power failure takes back could run the call again.
        db.execute("PRAGMA synchronous = FULL")
        return db

"""Break how approvals are read ahead: for whom it waits, and what it takes."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

AHEAD = "gateway/service/reading_ahead.py"
FORGOTTEN = "tests/store/test_forgotten_process.py"

READING_AHEAD_TABLE = (
    Mutant(
        "reading ahead: clicks have their turn between two approvals",
        AHEAD,
        "    await asyncio.sleep(0)\n",
        "",
        "tests/service/test_reading_ahead_of_many.py",
    ),
    Mutant(
        "reading ahead: clicks have their turn while events are parsed",
        "gateway/store/outbox.py",
        "            await asyncio.sleep(0)\n",
        "",
        "tests/service/test_reading_ahead_of_many.py",
    ),
    Mutant(
        "reading ahead: what others did is read once nobody clicks",
        AHEAD,
        "        await quiet()\n        opened",
        "        opened",
        "tests/service/test_reading_ahead.py",
    ),
    Mutant(
        "reading ahead: no more is read than fits",
        "gateway/service/as_shown.py",
        "        if self.bytes < _FULL * MOST_BYTES:\n",
        "        if True:\n",
        "tests/service/test_reading_ahead_of_many.py",
    ),
    Mutant(
        "reading ahead: what another policy said takes no room",
        "gateway/service/as_shown.py",
        " or oldest.policy is not self._policy():",
        ":",
        "tests/service/test_reading_ahead_of_many.py",
    ),
    Mutant(
        "precomputed: it counts what it takes",
        "gateway/service/as_shown.py",
        "_PRECOMPUTED = 20_000",
        "_PRECOMPUTED = 12_000",
        "tests/service/test_as_shown_memory.py",
    ),
    Mutant(
        "precomputed: again where the card was drawn since",
        "gateway/service/as_shown.py",
        "shown.precomputed_as != display_of(approval_id)",
        "shown.precomputed_as is None",
        "tests/service/test_reading_ahead.py",
    ),
    Mutant(
        "precomputed: tried once",
        "gateway/service/as_shown.py",
        "        shown.precomputed_as = display\n",
        "",
        "tests/service/test_reading_ahead.py",
    ),
    Mutant(
        "precomputed: not of a card of many calls",
        "gateway/service/as_shown.py",
        "if len(shown.evaluated) > MOST_CALLS:",
        "if not keys:",
        "tests/service/test_as_shown_memory.py",
    ),
    Mutant(
        "what is remembered of a long text counts unpacked",
        "gateway/store/known_records.py",
        "_ITEM * len(approval.items) + texts",
        "_ITEM * len(approval.items)",
        "tests/service/test_as_shown_memory.py",
    ),
    Mutant(
        "who marks a store with another secret hides no forgery by that",
        "gateway/store/secret_check.py",
        "    await security.report(keys, found)\n",
        "",
        "tests/store/test_secret_check.py",
    ),
    Mutant(
        "a process says that the secret of its store is not known to it",
        "gateway/service/process_check.py",
        "self._is_secret_known = await knows_secret(self._store.conn)",
        "self._is_secret_known = True",
        "tests/service/test_process_check.py",
    ),
    Mutant(
        "what a secret seals that came since is not set aside",
        "gateway/store/quarantine.py",
        "            if error.why == WRONG_SEAL:\n",
        "            if False:\n",
        "tests/store/test_secret_check.py",
    ),
    Mutant(
        "a forgery is set aside also while the secret is replaced",
        "gateway/store/secret_check.py",
        "    return not kept or kept in _mine(conn)\n",
        "    return not kept or kept == _mine(conn)[0]\n",
        "tests/store/test_secret_check.py",
    ),
    Mutant(
        "an event that a later secret seals is not acknowledged unread",
        "gateway/store/outbox.py",
        "                    await self._members.ensure_known(self._keys)\n",
        "                    pass\n",
        FORGOTTEN,
    ),
    Mutant(
        "a job that a later secret seals is not set aside",
        "gateway/store/sealing.py",
        "        if not is_older:\n            await self.ensure_known(keys)\n",
        "",
        FORGOTTEN,
    ),
    Mutant(
        "the audit tree calls no entry forged that a later secret seals",
        "gateway/service/audit_writing.py",
        "            await self._store.sealing.ensure_known(self._keys)\n",
        "",
        FORGOTTEN,
    ),
    Mutant(
        "an API key that a later secret seals is not called forged",
        "gateway/store/api_keys.py",
        "            await ensure_known(self._conn, self._security, self._keys)\n",
        "",
        FORGOTTEN,
    ),
)

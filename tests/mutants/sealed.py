"""Ways to believe what somebody else wrote into the store."""

from __future__ import annotations

from tests.mutants.encryption import ENCRYPTION_TABLE
from tests.mutants.mutant import Mutant
from tests.mutants.receipts import RECEIPTS_TABLE

FACTS = "tests/security/test_forged_facts.py"
FREEZES = "tests/security/test_forged_freezes.py"
EVENTS = "tests/store/test_security_events.py"
SEALS = "tests/trust/test_seals.py"
LISTS = "gateway/store/freezes.py"

RECORDS = "gateway/store/record_seals.py"
FORGED = "tests/security/test_forged_records.py"

SEALED_TABLE = (
    Mutant(
        "a message leaves nothing behind in a prepared key",
        "gateway/trust/seals.py",
        "found = self._begun.copy()",
        "found = self._begun",
        "tests/trust/test_keyed_hash.py",
    ),
    Mutant(
        "a seal names its kind",
        "gateway/trust/seals.py",
        "    part = label.encode()\n",
        '    part = b""\n',
        SEALS,
    ),
    Mutant(
        "a seal names its place",
        "gateway/store/sealing.py",
        "return self.keys.is_valid(seal, kind, place, body)",
        "return len(seal) == SEAL_BYTES",
        FACTS,
    ),
    Mutant(
        "facts without a seal are not believed",
        "gateway/store/threads.py",
        "    if opened is None:\n",
        "    if opened is None and False:\n",
        FACTS,
    ),
    Mutant(
        "older facts are not believed",
        "gateway/store/threads.py",
        "if sealing.is_older(key, number):",
        "if False:",
        FACTS,
    ),
    Mutant(
        "verdicts are of one turn",
        "gateway/service/submitting.py",
        'return turn_key, line.decode("ascii", "replace")',
        'return "", line.decode("ascii", "replace")',
        FACTS,
    ),
    Mutant(
        "what is refused is reported",
        "gateway/store/sealing.py",
        "await self._security.report(keys, found)",
        "pass",
        FACTS,
    ),
    Mutant(
        "a forged delegation gives nothing",
        "gateway/store/delegations.py",
        "if not self._sealing.is_valid(Sealed.DELEGATION, place, content, given):",
        "if False:",
        FACTS,
    ),
    Mutant(
        "a forged job starts nothing",
        "gateway/store/jobs.py",
        "if _is_believed(self._sealing, job):",
        "if True:",
        FACTS,
    ),
    Mutant(
        "the words of a job are sealed",
        "gateway/store/jobs.py",
        "return place, job.input.encode()",
        'return place, b""',
        FACTS,
    ),
    Mutant(
        "a forged end of a call is told to nobody",
        "gateway/store/auto_runs.py",
        "        if result is None:\n",
        "        result = result or stored[-60:]\n        if result is None:\n",
        FACTS,
    ),
    Mutant(
        "a forged page was seen by nobody",
        "gateway/store/cards.py",
        "if stored is not None and self._is_ours(own, name, stored):",
        "if stored is not None:",
        FACTS,
    ),
    Mutant(
        "a deleted freeze holds",
        LISTS,
        "        listed = known.found.freezes\n",
        "        listed: dict[str, Freeze] = {}\n",
        FREEZES,
    ),
    Mutant(
        "an older list of freezes is not believed",
        LISTS,
        "is_believed = not self._sealing.is_older(key, found.epoch)",
        "is_believed = True",
        FREEZES,
    ),
    Mutant(
        "a list that is not believed freezes everything",
        LISTS,
        "            found[NOT_BELIEVED.name] = NOT_BELIEVED\n",
        "            pass\n",
        FREEZES,
    ),
    Mutant(
        "scripts compare the list of freezes",
        "gateway/store/lua/prelude.lua",
        "return (list and string.sub(list, 2, 17) or '') ~= from_hex(seal)",
        "return false",
        FREEZES,
    ),
    Mutant(
        "the same finding is told once",
        "gateway/store/lua/security.lua",
        "'NX', 'PX', ARGV[1]) then return {'known'}",
        "'PX', ARGV[1]) then return {'known'}",
        EVENTS,
    ),
    Mutant(
        "a flood is posted as a summary",
        "gateway/store/security_events.py",
        "found.kind.is_announced and period.found <= _ANNOUNCED",
        "found.kind.is_announced",
        EVENTS,
    ),
    Mutant(
        "what anybody can cause does not silence forgeries",
        "gateway/store/security_events.py",
        "            (found.tenant, found.kind), _Period(now, keys)",
        '            (found.tenant, SecurityKind("stalled")), _Period(now, keys)',
        EVENTS,
    ),
    *RECEIPTS_TABLE,
    *ENCRYPTION_TABLE,
    Mutant(
        "a record whose seal does not fit it is refused",
        RECORDS,
        "        if not self._keys.is_valid(stored.seal,",
        "        if False and not self._keys.is_valid(stored.seal,",
        FORGED,
    ),
    Mutant(
        "a record without a seal is refused",
        RECORDS,
        "            raise ForgedRecord(approval_id, NO_SEAL)\n",
        "            return\n",
        FORGED,
    ),
    Mutant(
        "when givers were confirmed is sealed",
        RECORDS,
        "        if is_checked and not",
        "        if False and not",
        FORGED,
    ),
    Mutant(
        "nobody else sets a record aside unheard",
        RECORDS,
        "        if self.is_quarantined(approval_id, head):",
        "        if QUARANTINED in head:",
        FORGED,
    ),
    Mutant(
        "an older sealed record is a replay",
        "gateway/store/known_records.py",
        "return rev < self.rev or (",
        "return (",
        FORGED,
    ),
    Mutant(
        "a sealed record that lost a race is a replay",
        "gateway/store/known_records.py",
        "(rev == self.rev and self.seal not in (None, seal))",
        "False",
        FORGED,
    ),
    Mutant(
        "how far a record had come outlives what is remembered of it",
        "gateway/store/known_records.py",
        "now = Lasting(approval.rev, stored.seal) if is_newer else was",
        "now = was",
        FORGED,
    ),
    Mutant(
        "a process with another secret does not start",
        "gateway/store/sealing.py",
        "    if kept not in mine:",
        "    if False:",
        "tests/store/test_secret_check.py",
    ),
    Mutant(
        "junk in a list keeps nothing behind it from being read",
        "gateway/store/listed_members.py",
        "            await conn.command(taken_out, name, member)\n",
        "            raise\n",
        "tests/store/test_listed_members.py",
    ),
)

"""Ways to believe what somebody else wrote into the store."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from tests.mutants.receipts import RECEIPTS_TABLE

FACTS = "tests/security/test_forged_facts.py"
FREEZES = "tests/security/test_forged_freezes.py"
EVENTS = "tests/store/test_security_events.py"
SEALS = "tests/trust/test_seals.py"
LISTS = "gateway/store/freeze_list.py"

SEALED_TABLE = (
    Mutant(
        "a seal names its kind",
        "gateway/trust/seals.py",
        "parts = [label.encode()]",
        'parts = [b""]',
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
        "of verdicts without a seal none runs",
        "gateway/service/stored_verdicts.py",
        "refused(one, UNSEALED) if one.runs_unclaimed else one",
        "one",
        FACTS,
    ),
    Mutant(
        "verdicts are of one turn",
        "gateway/service/stored_verdicts.py",
        'return turn_key, line.decode("ascii")',
        'return "", line.decode("ascii")',
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
        "gateway/store/read_pages.py",
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
        "            found[_NOT_BELIEVED.name] = _NOT_BELIEVED\n",
        "            pass\n",
        FREEZES,
    ),
    Mutant(
        "scripts compare the list of freezes",
        "gateway/store/lua/prelude.lua",
        "if has_other_list(frozen, names[1]) then return true end",
        "",
        FREEZES,
    ),
    Mutant(
        "nobody is told the words of a freeze that was not sealed",
        LISTS,
        'return Freeze(scope=scope, by="somebody", reason="", at_ms=at_ms)',
        "return Freeze.model_validate_json(stored)",
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
        "if is_announced and period.announced >= _ANNOUNCED:",
        "if False:",
        EVENTS,
    ),
    *RECEIPTS_TABLE,
)

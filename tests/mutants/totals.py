"""Break what windows count, and how long, and how rules compare."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SUBMITTING = "gateway/service/submitting.py"
COMPARING = "gateway/policy/expressions.py"
COMPARISONS = "tests/policy/test_typed_comparisons.py"
RESOURCES = "gateway/policy/windows.py"
REQUESTS = "tests/service/test_request_windows.py"

TOTALS_TABLE = (
    Mutant(
        "requests: one that was refused without asking counts",
        "gateway/service/submitting.py",
        "counted=[*uses(lambda one: one.runs_unclaimed), *requests],",
        "counted=uses(lambda one: one.runs_unclaimed),",
        REQUESTS,
    ),
    Mutant(
        "requests: they are not given back",
        "gateway/policy/windows.py",
        'is_request=rule.counts == "requests",',
        "is_request=False,",
        REQUESTS,
    ),
    Mutant(
        "requests: each keeps its place",
        "gateway/service/call_evaluation.py",
        "if before is not None:",
        "if False:",
        REQUESTS,
    ),
    Mutant(
        "requests: two at once see each other",
        SUBMITTING,
        "[one.reserved for one in usage]",
        "[one.uses for one in usage]",
        REQUESTS,
    ),
    Mutant(
        "keys: nothing invisible makes another customer",
        RESOURCES,
        "if not is_hidden(one)",
        "if unicodedata.category(one) != 'Cf'",
        "tests/policy/test_window_keys.py",
    ),
    Mutant(
        "keys: a number is one however it is spelled",
        RESOURCES,
        "return _number(text) if is_number else text",
        "return text",
        "tests/policy/test_window_keys.py",
    ),
    Mutant(
        "quarantine: what waited leaves its windows",
        "gateway/store/lua/next_version.lua",
        "      pcall(update_uses, head, i, state, now, expires + keep)\n",
        "",
        "tests/service/test_quarantine.py",
    ),
    Mutant(
        "quarantine: corrupt uses stop nothing",
        "gateway/store/lua/next_version.lua",
        "pcall(update_uses, head,",
        "update_uses(head,",
        "tests/service/test_quarantine.py",
    ),
    Mutant(
        "audit: one look drops some thousands",
        "gateway/store/audit_log.py",
        '"LIMIT", _TRIMMED',
        '"LIMIT", 0',
        "tests/store/test_audit_retention.py",
    ),
    Mutant(
        "failures: one of a call that never was counts nothing",
        "gateway/service/agents.py",
        "one.runs_unclaimed and (one.tool, one.tool_call_id) == reported",
        "True",
        "tests/service/test_auto_run_failures.py",
    ),
    Mutant(
        "failures: each counts once",
        "gateway/store/lua/fail.lua",
        "if redis.call('ZSCORE', KEYS[1], ARGV[1]) then return {'same'} end",
        "if false then return {'same'} end",
        "tests/service/test_auto_run_failures.py",
    ),
    Mutant(
        "types: equality tells them apart",
        COMPARING,
        "    if len(kinds) > 1:\n",
        "    if False:\n",
        COMPARISONS,
    ),
    Mutant(
        "types: so does what stands in brackets",
        COMPARING,
        "*typed(row[at + 1 : end])",
        "*row[at + 1 : end]",
        COMPARISONS,
    ),
    Mutant(
        "types: a list is looked through to its end",
        COMPARING,
        "    if mixed is not None:\n        raise mixed\n",
        "",
        COMPARISONS,
    ),
    Mutant(
        "types: a difference hides no other type",
        COMPARING,
        "found = [_equal(left, right) for left, right in pairs]",
        "found = (_equal(left, right) for left, right in pairs)",
        COMPARISONS,
    ),
    Mutant(
        "quarantine: a run is not open for ever",
        "gateway/store/quarantine.py",
        "    await _mend_of(conn, keys, approval_id, ref)\n",
        "",
        "tests/service/test_quarantine.py",
    ),
)

"""List ways to break triage that some test has to notice; see `tests.mutants.table`."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ASSESSMENT = "gateway/triage/assessment.py"
TURN_TRIAGE = "gateway/service/turn_evaluation.py"
TRIAGE = "tests/triage tests/service/test_triage.py tests/service/test_turn_triage.py"

TRIAGE_TABLE = (
    Mutant(
        "no assessment lowers a tier",
        ASSESSMENT,
        "return join(tier, asked)",
        "return asked",
        TRIAGE,
    ),
    Mutant(
        "triage refuses only where the policy lets it",
        ASSESSMENT,
        "if asked is Tier.DENY and not may_deny:",
        "if False:",
        TRIAGE,
    ),
    Mutant(
        "a word that is no tier raises nothing",
        ASSESSMENT,
        "return Tier(word) if word in set(Tier) else None",
        "return Tier(word) if word in set(Tier) else Tier.DENY",
        TRIAGE,
    ),
    Mutant(
        "a quoted argument hides no assessment",
        ASSESSMENT,
        "return max((one for one in assessments if one), key=_caution, default=None)",
        "return next((one for one in assessments if one), None)",
        TRIAGE,
    ),
    Mutant(
        "the words of triage hide nothing",
        ASSESSMENT,
        "one if one.isprintable() else",
        "one if one else",
        TRIAGE,
    ),
    Mutant(
        "a hanging triage costs its time-out",
        "gateway/triage/asking.py",
        "await asyncio.wait([task], timeout=within.total_seconds())",
        "await asyncio.wait([task])",
        TRIAGE,
    ),
    Mutant(
        "no word of a failed triage is logged",
        "gateway/triage/asking.py",
        "type(error).__name__",
        "str(error)",
        TRIAGE,
    ),
    Mutant(
        "triage sees nothing of the agent's run",
        "gateway/triage/asking.py",
        ", context=contextvars.Context()",
        "",
        TRIAGE,
    ),
    Mutant(
        "a redacted value reaches no model",
        "gateway/triage/request.py",
        "every = arguments(args, decision.redact)",
        "every = arguments(args)",
        TRIAGE,
    ),
    Mutant(
        "no argument ends the frame that a model reads",
        "gateway/triage/chat_model.py",
        '.replace("<", "\\\\u003c")',
        "",
        TRIAGE,
    ),
    Mutant(
        "what triage asks for counts",
        "gateway/policy/evaluate.py",
        "*(one.to for one in asks)",
        "*(one.to for one in raised)",
        TRIAGE,
    ),
    Mutant(
        "a turn is put to triage once",
        TURN_TRIAGE,
        "and position not in self._responses",
        "",
        TRIAGE,
    ),
    Mutant(
        "a turn waits for triage once",
        TURN_TRIAGE,
        "rule.timeout - self._spent()",
        "rule.timeout",
        TRIAGE,
    ),
    Mutant(
        "words that ask for less are not shown",
        TURN_TRIAGE,
        "TriageResult(score=assessment.score))",
        "TriageResult(score=assessment.score, rationale=assessment.rationale))",
        TRIAGE,
    ),
    Mutant(
        "no word of a model is in the audit log",
        TURN_TRIAGE,
        "data=facts if raised_to else {},",
        'data={**facts, "why": one.result.rationale},',
        TRIAGE,
    ),
    Mutant(
        "time decides before any score",
        "bot/cards/queue.py",
        "return is_usual, deadline // _SAME_TIME_MS, -score, deadline, age",
        "return is_usual, -score, deadline, age, age",
        "tests/bot/cards/test_home.py",
    ),
)

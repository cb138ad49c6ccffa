"""Break how turns are kept with their message, and how an auto call ends."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

AUTO_CALLS_TABLE: tuple[Mutant, ...] = (
    Mutant(
        "an answer is kept with the verdicts on its calls",
        "agent/middleware.py",
        "return ExtendedModelResponse(model_response=answer, command=kept)",
        "return answer",
        "tests/agent/test_model_answers.py",
    ),
    Mutant(
        "an answer without an id gets one before its turn is submitted",
        "agent/middleware.py",
        "        answer = model_answers.with_ids(answer)\n",
        "",
        "tests/agent/test_model_answers.py",
    ),
    Mutant(
        "an outer agent is told of an edit to a call that ends the inner one",
        "agent/calls.py",
        "    report_edits(records)\n",
        "",
        "tests/agent/test_nested_agents.py",
    ),
    Mutant(
        "an outer agent is told of edits to siblings that ran before a pause",
        "agent/history_checks.py",
        "has_siblings and request.tool is not None",
        "False and request.tool is not None",
        "tests/agent/test_nested_agents.py",
    ),
    Mutant(
        "an outer agent is told again of edits before a pause of its tool",
        "agent/history_checks.py",
        "    nesting.report_edits((await confirm_edits(caller, state)).made)\n",
        "",
        "tests/agent/test_nested_agents.py",
    ),
    Mutant(
        "failures: one is told also where no result is kept",
        "agent/auto_approved.py",
        "None if not begun.keeps_result and went_well(result) else",
        "None if not begun.keeps_result else",
        "tests/agent/test_auto_approved.py",
    ),
    Mutant(
        "under a lease a call asks whether it may begin",
        "agent/auto_approved.py",
        "if not self.gateway().keeps_calls():",
        "if True:",
        "tests/resume/test_auto_runs_once.py",
    ),
)

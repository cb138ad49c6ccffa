"""Break how turns are kept with their message, and how an auto call ends."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

AUTO_CALLS_TABLE: tuple[Mutant, ...] = (
    Mutant(
        "a thread that an older version left before its step goes on",
        "gateway/resume/langgraph_local.py",
        "return message if former_steps.is_at(found) else None",
        "return None",
        "tests/resume/test_former_steps.py",
    ),
    Mutant(
        "only a thread at the former step is asked again",
        "gateway/resume/langgraph_local.py",
        "return message if former_steps.is_at(found) else None",
        "return message",
        "tests/resume/test_former_steps.py",
    ),
    Mutant(
        "half of a character is the same as nothing",
        "agent/canonical.py",
        'return one == other and cast("str", one).isascii()',
        "return one == other",
        "tests/agent/test_same_arguments.py",
    ),
    Mutant(
        "arguments of another type are other arguments",
        "agent/canonical.py",
        "if kind is not type(other) or depth > strict_json.MAX_DEPTH:",
        "if depth > strict_json.MAX_DEPTH:",
        "tests/agent/test_same_arguments.py",
    ),
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
        "calls that start together are read again after a write",
        "gateway/service/starting_together.py",
        "return found.policy is policy and found.read_s == loaded.read_s",
        "return found.policy is policy",
        "tests/service/test_starting_together.py",
    ),
    Mutant(
        "calls that start together are held to the policy of now",
        "gateway/service/starting_together.py",
        "return found.policy is policy and found.read_s == loaded.read_s",
        "return found.read_s == loaded.read_s",
        "tests/service/test_starting_together.py",
    ),
    Mutant(
        "an outer agent is told of an edit to a call that ends the inner one",
        "agent/calls.py",
        "        report_edits(records)\n",
        "",
        "tests/agent/test_nested_agents.py",
    ),
    Mutant(
        "an outer agent is told of edits to siblings that ran before a pause",
        "agent/edit_verification.py",
        "has_siblings and request.tool is not None",
        "False and request.tool is not None",
        "tests/agent/test_nested_agents.py",
    ),
    Mutant(
        "an outer agent is told again of edits before a pause of its tool",
        "agent/edit_verification.py",
        "    nested_edits.report_edits((await confirm_edits(caller, state)).made)\n",
        "",
        "tests/agent/test_nested_agents.py",
    ),
    Mutant(
        "a call is only said to fit where all that it is written with does",
        "gateway/service/call_documents.py",
        "args = digest.canonical([call.args])",
        "args = digest.canonical(call.args)",
        "tests/service/test_call_documents.py",
    ),
    Mutant(
        "failures: one is told also where no result is kept",
        "agent/auto_approved.py",
        "if not begun.keeps_result and went_well(result):",
        "if not begun.keeps_result:",
        "tests/agent/test_auto_approved.py",
    ),
    Mutant(
        "under a lease a call asks whether it may begin",
        "agent/auto_approved.py",
        "if not self.gateway().keeps_calls():",
        "if True:",
        "tests/resume/test_auto_runs_once.py",
    ),
    Mutant(
        "a text one level too deep is not hashed",
        "gateway/protocol/digest.py",
        "if depth == MAX_DEPTH and kind in _CONTAINERS and value:",
        "if False:",
        "tests/protocol/test_digest.py",
    ),
    Mutant(
        "a whole number in a list is one that every reader keeps exact",
        "gateway/protocol/digest.py",
        "if type(one) is int and -MAX_INTEGER <= one <= MAX_INTEGER",
        "if type(one) is int",
        "tests/protocol/test_digest.py",
    ),
)

"""Mutants of what keeps questions of agents answered once, whole, and by the right."""

from tests.mutants.mutant import Mutant

ASKED = "tests/resume/test_questions.py"
REPLIES = "tests/bot/listeners/test_question_replies.py"
EVIDENCE = "tests/service/test_answered_before.py"
SHOWN = "tests/bot/listeners/test_questions.py"

QUESTION_TABLE = (
    Mutant(
        "a question can be answered or skipped, and nothing else",
        "gateway/policy/evaluate.py",
        "allow=(Verb.RESPOND, Verb.REJECT),",
        "allow=tuple(Verb),",
        ASKED,
    ),
    Mutant(
        "an answer answers every question",
        "gateway/approvals/deciding.py",
        "if problems := questions.answer_problems(asked, given):",
        "if problems := dict[int, str]():",
        ASKED,
    ),
    Mutant(
        "only the requester and the role answer a question",
        "gateway/approvals/permission.py",
        "return _why_not_answer(approval, reviewer, requirement)",
        "return None",
        ASKED,
    ),
    Mutant(
        "an answer cannot look like another question with its answer",
        "gateway/protocol/questions.py",
        'return "\\n   ".join(text.strip().splitlines())',
        "return text.strip()",
        ASKED,
    ),
    Mutant(
        "the questions of a call have a card of their own",
        "gateway/service/proposals.py",
        "needs_own_card = evaluation.tier is Tier.ESCALATE or evaluation.is_question",
        "needs_own_card = evaluation.tier is Tier.ESCALATE",
        ASKED,
    ),
    Mutant(
        "an agent inside a tool asks nobody",
        "gateway/service/proposals.py",
        "if call.is_question and ref.nested_in is not None:",
        "if False:",
        "tests/service/test_questions.py",
    ),
    Mutant(
        "a subagent with the name of the agent around it asks nobody",
        "agent/calls.py",
        "        if is_nested:\n",
        "        if False:\n",
        "tests/resume/test_questions_of_deep_agents.py",
    ),
    Mutant(
        "a reply answers a single question only",
        "bot/listeners/messages.py",
        "    if others:\n",
        "    if False:\n",
        SHOWN,
    ),
    Mutant(
        "a reply is recorded before Slack hears that it arrived",
        "bot/listeners/messages.py",
        "        answered = await _answered(ctx, mention, shown)\n",
        "        answered = None\n"
        '        ctx.tasks.later(_answered(ctx, mention, shown), name="reply")\n',
        REPLIES,
    ),
    Mutant(
        "commas of a reply make no choices of a person's own words",
        "gateway/protocol/questions.py",
        "if len(others) > 1:",
        "if False:",
        REPLIES,
    ),
    Mutant(
        "a question is counted as no call that people reviewed",
        "gateway/metrics/fold.py",
        "if event.concerns_no_call:",
        "if False:",
        "tests/metrics/test_fold.py",
    ),
    Mutant(
        "a skipped question is no evidence",
        "gateway/store/lua/lifetimes.lua",
        "if redis.call('HGET', head, '0:s') == 'answered' then",
        "if true then",
        EVIDENCE,
    ),
    Mutant(
        "an old answer is no evidence",
        "gateway/service/submitting.py",
        "if decision.at_ms <= loaded.now_ms - DAY_MS:",
        "if False:",
        EVIDENCE,
    ),
    Mutant(
        "an answer stands beside a call while it waits, and no longer",
        "bot/cards/call_rows.py",
        "approval.state is not ApprovalState.OPEN",
        "False",
        "tests/bot/cards/test_answered.py",
    ),
    Mutant(
        "a choice that the form did not offer is refused",
        "bot/modals/answer.py",
        "if place not in offered:",
        "if False:",
        "tests/bot/modals/test_answer.py",
    ),
)

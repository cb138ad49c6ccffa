"""Mutants of what keeps questions to requesters harmless, kept, and by the right."""

from tests.mutants.mutant import Mutant

ASKING = "gateway/approvals/inquiring.py"
PURE = "tests/approvals/test_inquiring.py"
KEPT = "tests/service/test_inquiries.py"
CARD = "tests/bot/cards/test_inquiries.py"
SLACK = "tests/bot/listeners/test_ask_requester.py"

INQUIRY_TABLE = (
    Mutant(
        "only who may decide a call asks the requester",
        ASKING,
        "refused = refusal(approval, reviewer, now_ms, call=call)",
        "refused = None",
        PURE,
    ),
    Mutant(
        "who may decide one call of a card asks about no other call",
        "gateway/approvals/deadline_changes.py",
        "approval.items[call : call + 1]",
        "approval.items",
        PURE,
    ),
    Mutant(
        "only the requester replies to reviewers",
        ASKING,
        "was_asked = requester is not None and requester.is_same(person)",
        "was_asked = requester is not None",
        PURE,
    ),
    Mutant(
        "what the requester writes unasked is no reply to reviewers",
        ASKING,
        "return was_asked and bool(approval.inquiries)",
        "return was_asked",
        PURE,
    ),
    Mutant(
        "a reply that Slack delivers again is kept once",
        ASKING,
        "kept = next((one for one in approval.inquiries if one.reply_ts == ts), None)",
        "kept = None",
        PURE,
    ),
    Mutant(
        "a form that was sent twice asks once",
        ASKING,
        "if is_same and one.text == text:",
        "if False:",
        PURE,
    ),
    Mutant(
        "a reply after the time is over is not kept",
        ASKING,
        "if is_over(approval, now_ms):",
        "if False:",
        PURE,
    ),
    Mutant(
        "a question is not written behind the end of its card",
        ASKING,
        "before_ms=next_end_ms(before, one.at_ms)",
        "before_ms=0",
        PURE,
    ),
    Mutant(
        "Full details have every question and reply",
        "bot/cards/inquiries.py",
        "if one.is_about(index)",
        "if False",
        CARD,
    ),
    Mutant(
        "a call about which was asked is not approved in a row of the Home tab",
        "bot/cards/queue.py",
        "has_words = bool(approval.remarks or approval.inquiries)",
        "has_words = bool(approval.remarks)",
        CARD,
    ),
    Mutant(
        "who has left is not asked",
        "bot/listeners/card_actions.py",
        "if (refused := _NO_READER.get(found.account)) is not None:",
        "if (refused := _NOBODY) is None:",
        SLACK,
    ),
    Mutant(
        "nobody is asked about what was decided before the question was posted",
        "bot/delivery/event_messages.py",
        "or requester is None or not is_open:",
        "or requester is None:",
        SLACK,
    ),
    Mutant(
        "a further reply tells nobody again",
        "bot/delivery/event_messages.py",
        "if not askers:",
        "if False:",
        SLACK,
    ),
)

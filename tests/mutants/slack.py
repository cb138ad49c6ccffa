"""List ways to break what Slack shows; see `tests.mutants.table`."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

BATCHES = "tests/bot/listeners/test_batches_and_doubt.py"
NOTICES = "tests/bot/listeners/test_notices.py"

SLACK_TABLE = (
    Mutant(
        "an escalated call has a card of its own",
        "gateway/service/proposals.py",
        "alone = place if one.ruling.tier is Tier.ESCALATE else _SHARED",
        "alone = _SHARED",
        BATCHES,
    ),
    Mutant(
        "Approve all never covers an escalated call",
        "bot/cards/batch.py",
        "return has_reason or is_escalated or needs_full_view",
        "return has_reason or needs_full_view",
        BATCHES,
    ),
    Mutant(
        "only who may review a thing stops it",
        "gateway/service/stopping.py",
        "reason = objection(reviewer, demand, ())",
        "reason = None",
        "tests/service/test_stopping.py",
    ),
    Mutant(
        "a seal of a notice is good for its own button",
        "bot/ids.py",
        "[_NOTICE_TAG, team, notice.id, index, tool, str(purpose)]",
        "[_NOTICE_TAG, team, notice.id, index, tool]",
        NOTICES,
    ),
    Mutant(
        "the end of another call changes no notice",
        "gateway/service/noticing.py",
        "return (notice, call) if is_same else None",
        "return notice, call",
        "tests/service/test_notices.py",
    ),
    Mutant(
        "a person reports a notice once",
        "gateway/store/lua/note.lua",
        "if known and (ARGV[3] == '1' or known == ARGV[2])",
        "if known and known == ARGV[2]",
        "tests/service/test_notices.py",
    ),
    Mutant(
        "a flood of notices keeps no card waiting",
        "bot/board.py",
        "return len(waiting) >= NOTICES_AT_ONCE",
        "return False",
        NOTICES,
    ),
    Mutant(
        "a bot that stands by takes over",
        "bot/publisher.py",
        'logger.debug("publisher.standby shard=%s", self._keys.shard)',
        "return",
        "tests/bot/test_publisher.py",
    ),
)

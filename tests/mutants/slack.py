"""List ways to break what Slack shows; see `tests.mutants.table`."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

BATCHES = "tests/bot/listeners/test_batches_and_doubt.py"
NOTIFICATIONS = "tests/bot/listeners/test_notifications.py"
ASKING = "tests/bot/cards/test_mentions.py"
NOTIFIED = "tests/bot/test_notified.py"

SLACK_TABLE = (
    Mutant(
        "an escalated call has a card of its own",
        "gateway/service/proposals.py",
        "alone = position if one.evaluation.tier is Tier.ESCALATE else _SHARED",
        "alone = _SHARED",
        BATCHES,
    ),
    Mutant(
        "approve all is bound to what was seen",
        "gateway/approvals/batch_deciding.py",
        "if seen != (approval.version, approval.digest) or",
        "if",
    ),
    Mutant(
        "a batch decision decides exactly the calls that wait",
        "gateway/approvals/batch_deciding.py",
        "or {*partition} != waiting:",
        "or not partition:",
    ),
    Mutant(
        "one call that may not be decided stops the whole batch decision",
        "gateway/approvals/batch_deciding.py",
        "            return BatchRefused(index=index, refusal=result)",
        "            continue",
    ),
    Mutant(
        "a call that has been escalated is left out of a batch decision",
        "gateway/approvals/batch_deciding.py",
        "return raised.tier in {Tier.ESCALATE, Tier.DENY}",
        "return raised.tier is Tier.DENY",
    ),
    Mutant(
        "calls of a batch are claimed in turn",
        "gateway/store/approvals.py",
        "        if not in_turn:\n",
        "        if True:\n",
        "tests/races/test_batch_races.py",
    ),
    Mutant(
        "a table is not drawn again for each of its calls that runs",
        "bot/delivery/card_updater.py",
        "if not entry.is_missed and is_progress(record, entry.events):",
        "if False:",
        "tests/bot/listeners/test_large_batches.py",
    ),
    Mutant(
        "a button for all calls is good for the calls that its card showed",
        "bot/ids.py",
        "[waiting] if purpose in OF_WAITING else []",
        "[]",
        "tests/bot/listeners/test_large_batches.py",
    ),
    Mutant(
        "Approve all never covers an escalated call",
        "bot/cards/batch_footer.py",
        "            or item.tier is Tier.ESCALATE\n",
        "",
        BATCHES,
    ),
    Mutant(
        "only who may review a thing stops it",
        "gateway/service/reviewer_freezes.py",
        "reason = ineligible_reason(reviewer, requirement, ())",
        "reason = None",
        "tests/service/test_reviewer_freezes.py",
    ),
    Mutant(
        "a seal opens its own page only",
        "bot/ids.py",
        "place = [index, page] if page else [index]",
        "place = [index]",
        "tests/bot/test_ids.py",
    ),
    Mutant(
        "an old click is told what ended the call",
        "gateway/approvals/decisions.py",
        "return changed if item.is_pending else Stale.of(item)",
        "return changed",
        "tests/approvals/test_explain_state.py",
    ),
    Mutant(
        "nobody has a call run again whose agent went on",
        "gateway/approvals/reconciling.py",
        "        return _WENT_ON",
        "        return None",
        "tests/service/test_notifications.py",
    ),
    Mutant(
        "a call that the policy let run never goes to people",
        "gateway/approvals/revoking.py",
        "        return _uncleared(approval, item, policy_now, now_ms)",
        "        pass",
        "tests/service/test_notifications.py",
    ),
    Mutant(
        "a person reports a call once",
        "gateway/approvals/reporting.py",
        "if any(one.by.is_same(by) for one in approval.remarks):",
        "if False:",
        "tests/service/test_notifications.py",
    ),
    Mutant(
        "a flood of notifications keeps no card waiting",
        "bot/delivery/outbox_queue.py",
        "return len(waiting) >= NOTIFICATIONS_AT_ONCE",
        "return False",
        NOTIFICATIONS,
    ),
    Mutant(
        "a bot that stands by takes over",
        "bot/delivery/publisher.py",
        'logger.debug("publisher.standby shard=%s", self._keys.shard)',
        "return",
        "tests/bot/test_publisher.py",
    ),
    Mutant(
        "who asked for a call is not pinged as its reviewer",
        "bot/cards/mentions.py",
        "return _users((*approval.principals, *barred))",
        "return set()",
        ASKING,
    ),
    Mutant(
        "who is called later is left in peace until then",
        "bot/cards/mentions.py",
        "needed += first if _can_give(first, missing[names]) else roles",
        "needed += roles",
        ASKING,
    ),
    Mutant(
        "an edit notifies those who decide what it made",
        "bot/delivery/event_messages.py",
        "if note and item:",
        "if False and note and item:",
        NOTIFIED,
    ),
    Mutant(
        "who is needed because of another call is notified",
        "bot/delivery/card_updater.py",
        "            mention_newly_needed(entry, record, place, now_ms)",
        "            pass",
        NOTIFIED,
    ),
    Mutant(
        "nobody is notified twice of the same need",
        "bot/delivery/event_dispatcher.py",
        "            await cards.asked(keys, entry.approval, queued.mentioned_roles)",
        "            pass",
        NOTIFIED,
    ),
    Mutant(
        "mentioning people wins over leaving them in peace",
        "gateway/approvals/quorum.py",
        "is_told = Notify.MENTION in {role.notify, other.notify}",
        "is_told = Notify.MENTION is role.notify is other.notify",
        "tests/policy/test_notify.py",
    ),
    Mutant(
        "a new card finds a token that words have left",
        "bot/delivery/scheduler.py",
        "return _RESERVED if is_reserved else 0",
        "return 0",
        "tests/bot/test_scheduler.py",
    ),
    Mutant(
        "work that ends wakes the scheduler",
        "bot/delivery/scheduler.py",
        "        self.queue.drop_done(entry)\n        self.changed.set()\n",
        "        self.queue.drop_done(entry)\n",
        "tests/bot/test_scheduler.py",
    ),
    Mutant(
        "a card depends on no event",
        "bot/delivery/feed.py",
        "            self.queue.miss(approval)\n",
        "            pass\n",
        "tests/bot/test_feed.py",
    ),
    Mutant(
        "an event stays until every reader has acknowledged it",
        "gateway/store/readers.py",
        "last = min(groups, key=lambda one: one.needs)",
        "last = max(groups, key=lambda one: one.needs)",
        "tests/store/test_readers.py",
    ),
    Mutant(
        "a channel counts as told when Slack took the message",
        "bot/delivery/event_dispatcher.py",
        "entry.escalation_results[entry.messages[0].escalated_to] = error.error",
        'entry.escalation_results[entry.messages[0].escalated_to] = ""',
        "tests/bot/listeners/test_called.py",
    ),
    Mutant(
        "a refused card is tried for as long as it is needed",
        "bot/delivery/card_updater.py",
        "        if is_over(approval):\n",
        "        if True:\n",
        "tests/bot/test_undelivered.py",
    ),
)

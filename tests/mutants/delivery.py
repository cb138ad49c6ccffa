"""List ways to break the queue of what Slack is sent; see `tests.mutants.table`."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SCHEDULER = "tests/bot/test_scheduler.py"

DELIVERY_TABLE = (
    Mutant(
        "a reply about several failures acknowledges each of them, and no other event",
        "bot/delivery/queue_entry.py",
        "return [seq for seq in told if seq]",
        "return [seq for seq in told if seq][:1]",
        "tests/bot/test_failure_replies.py",
    ),
    Mutant(
        "a flood of notifications keeps no card waiting",
        "bot/delivery/outbox_queue.py",
        "return len(waiting) >= NOTIFICATIONS_AT_ONCE",
        "return False",
        "tests/bot/listeners/test_notifications.py",
    ),
    Mutant(
        "a new card finds a token that words have left",
        "bot/delivery/scheduler.py",
        "return LimitedCall(call, _RESERVED if is_reserved else 0)",
        "return LimitedCall(call, 0)",
        SCHEDULER,
    ),
    Mutant(
        "work that ends wakes the scheduler",
        "bot/delivery/scheduler.py",
        "        self.queue.drop_done(entry)\n        self.changed.set()\n",
        "        self.queue.drop_done(entry)\n",
        SCHEDULER,
    ),
    Mutant(
        "of those that wait for a call each one has its turn",
        "bot/delivery/scheduler.py",
        "if first_for is not None:",
        "if False:",
        SCHEDULER,
    ),
    Mutant(
        "an event ends the wait of what was set aside",
        "bot/delivery/outbox_queue.py",
        "            self.waiting.look_again(entry)\n",
        "            pass\n",
        SCHEDULER,
    ),
    Mutant(
        "outdated places of a busy entry are dropped",
        "bot/delivery/waiting_entries.py",
        "if len(self._heap) > 2 * len(self._known) + _OUTDATED:",
        "if False:",
        SCHEDULER,
    ),
    Mutant(
        "a card that falls due while its messages wait for a limit is looked at",
        "bot/delivery/waiting_entries.py",
        "        if change_at:\n",
        "        if False:\n",
        SCHEDULER,
    ),
    Mutant(
        "a card depends on no event",
        "bot/delivery/feed.py",
        "            self.queue.mark_outdated(approval)\n",
        "            pass\n",
        "tests/bot/test_feed.py",
    ),
)

"""List ways to break the queue of what Slack is sent; see `tests.mutants.table`."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SCHEDULER = "tests/bot/test_scheduler.py"

DELIVERY_TABLE = (
    Mutant(
        "a reply about several failures acknowledges each of them, and no other event",
        "bot/delivery/outbox_queue.py",
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
        "bot/delivery/publisher.py",
        "return _LimitedCall(call, _RESERVED if is_reserved else 0)",
        "return _LimitedCall(call, 0)",
        SCHEDULER,
    ),
    Mutant(
        "work that ends wakes the scheduler",
        "bot/delivery/publisher.py",
        "        self.queue.drop_done(entry)\n        self.changed.set()\n",
        "        self.queue.drop_done(entry)\n",
        SCHEDULER,
    ),
    Mutant(
        "a card depends on no event",
        "bot/delivery/publisher.py",
        "            self.queue.mark_outdated(approval)\n",
        "            pass\n",
        "tests/bot/test_feed.py",
    ),
)

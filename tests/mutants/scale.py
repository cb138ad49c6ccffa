"""List ways to lose or hide something where there is very much of it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SCALE_TABLE = (
    Mutant(
        "a bot that lost its events looks at every open card",
        "bot/delivery/feed.py",
        "            await self.mark_missed()\n",
        "            pass\n",
        "tests/bot/test_missed_cards.py",
    ),
    Mutant(
        "an event that no index has is kept, however full the queue is",
        "bot/delivery/feed.py",
        "is_indexed = _opens_a_card(event) and self._is_full()",
        "is_indexed = self._is_full()",
        "tests/bot/test_feed.py",
    ),
    Mutant(
        "a reader that a process uses is not dropped",
        "cli/outbox.py",
        "if idle_ms is not None and idle_ms < IN_USE_MS:",
        "if False:",
        "tests/cli/test_outbox_command.py",
    ),
)

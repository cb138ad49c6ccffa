"""Ways to leave in Slack what is to be redacted, or to redact what is needed."""

from __future__ import annotations

from tests.mutants.erasing import ERASING_TABLE
from tests.mutants.mutant import Mutant

REDACTION_TABLE = (
    Mutant(
        "messages about a request are noted when they are posted",
        "bot/delivery/queue_sender.py",
        "        await self.card_publisher.note(entry.approval, *at)\n",
        "",
        "tests/bot/test_redacted_messages.py",
    ),
    Mutant(
        "copies of a card are redacted",
        "bot/delivery/card_copies.py",
        "        await self.card_publisher.note(record.id, *at)\n",
        "",
        "tests/bot/test_redacted_messages.py",
    ),
    Mutant(
        "nothing is redacted before its time",
        "bot/delivery/redacting.py",
        "        if due_ms > now_ms:\n",
        "        if False:\n",
        "tests/bot/test_redacted_messages.py",
    ),
    Mutant(
        "what waits for people is not redacted",
        "bot/delivery/redacting.py",
        "        if not all(map(is_over, records)):\n",
        "        if False:\n",
        "tests/bot/test_redacted_messages.py",
    ),
    Mutant(
        "messages are redacted when the store has forgotten their request",
        "bot/delivery/redacting.py",
        "places = list(posted.places)",
        "places = list(posted.places if found.is_there else ())",
        "tests/bot/test_redacted_messages.py",
    ),
    Mutant(
        "a message that nobody can change ends its redaction",
        "bot/delivery/redacting.py",
        "            if error.error in _GONE:\n",
        "            if False:\n",
        "tests/bot/test_redacted_messages.py",
    ),
    Mutant(
        "no message is redacted that was not noted for its request",
        "gateway/store/posted_messages.py",
        '(Sealed.MESSAGE, (name, at), b"", stored):',
        '(Sealed.MESSAGE, (name, at), b"", stored) and False:',
        "tests/bot/test_redacted_messages.py",
    ),
    Mutant(
        "no message is redacted with words that somebody wrote",
        "gateway/store/posted_messages.py",
        "        body = self._sealing.opened(Sealed.MESSAGE, (name, _ENDED), stored)\n",
        "        body = stored\n",
        "tests/bot/test_redacted_messages.py",
    ),
    *ERASING_TABLE,
)

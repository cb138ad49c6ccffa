"""Break what a pause, a suspension or a lost answer would else leave untrue."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

PAUSES_TABLE = (
    Mutant(
        "an attempt that did not begin makes no authorization longer",
        "gateway/approvals/executing.py",
        "    if result is None and has_begun:\n",
        "    if result is None:\n",
        "tests/service/test_executions.py",
    ),
    Mutant(
        "who was paused before the start asks whether the claim stands",
        "agent/execution.py",
        "    if now_s() - asked_s < claimed.lease_s / 2:\n",
        "    if True:\n",
        "tests/agent/test_once.py",
    ),
    Mutant(
        "what is remembered gets old while the machine is suspended",
        "gateway/clock.py",
        "time.clock_gettime(_CLOCK)",
        "time.monotonic()",
        "tests/bot/test_suspended.py",
    ),
    Mutant(
        "a request finds its own record and is no replay",
        "gateway/store/cards.py",
        "return held in {None, mine}",
        "return held is None",
        "tests/store/test_nonces.py",
    ),
    Mutant(
        "a change that is beaten by itself is not made twice",
        "gateway/store/changing.py",
        "lost = found if self._conn.resent != resent else None",
        "lost = None",
        "tests/service/test_lost_answers.py",
    ),
    Mutant(
        "what was sent and not answered may be recorded",
        "gateway/store/connection.py",
        "if writes and isinstance(error, MaybeDoneError):",
        "if False:",
        "tests/bot/test_store_cut.py",
    ),
    Mutant(
        "a used up response URL keeps no answer from who clicked",
        "bot/listener_context.py",
        "            return False\n        return bool(action.response_url)",
        "            return True\n        return bool(action.response_url)",
        "tests/bot/test_response_urls.py",
    ),
)

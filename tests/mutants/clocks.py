"""Ways to go by a clock that may be wrong."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_APART = "tests/apart/test_clocks.py"
_HTTP = "tests/api/test_clocks_over_http.py"
_PROCESSES = "tests/service/test_process_check.py"
_REFERENCE = "tests/test_reference_clock.py"

CLOCKS_TABLE: tuple[Mutant, ...] = (
    Mutant(
        "how old a request of Slack is goes by the store's clock",
        "bot/app.py",
        "            clock=self._service.store.conn.clock.now_s,\n",
        "",
        _APART,
    ),
    Mutant(
        "Bolt judges no request by the clock of the machine",
        "bot/app.py",
        "request_verification_enabled=False",
        "request_verification_enabled=True",
        _APART,
    ),
    Mutant(
        "a person's token ends by the store's clock",
        "gateway/api/person_tokens.py",
        '"verify_iat": False',
        '"verify_iat": True',
        "tests/api/test_person_tokens.py",
    ),
    Mutant(
        "a token that has ended proves nobody",
        "gateway/api/person_tokens.py",
        'int(claims["exp"]) <= now_s - LEEWAY_S',
        "False",
        "tests/api/test_decide.py",
    ),
    Mutant(
        "a token that begins later proves nobody",
        "gateway/api/person_tokens.py",
        "if max(begins) > now_s + LEEWAY_S:",
        "if False:",
        "tests/api/test_decide.py",
    ),
    Mutant(
        "the store's clock goes on while ours is set",
        "gateway/clock.py",
        "now_s = last.other_s + self._elapsed_s() - last.at_s",
        "now_s = last.other_s + self._wall_s() - last.at_s",
        _REFERENCE,
    ),
    Mutant(
        "an answer that took long says little about a clock",
        "gateway/clock.py",
        "if is_better or (",
        "if True or (",
        _REFERENCE,
    ),
    Mutant(
        "a process whose clock is wrong reports it",
        "gateway/service/process_check.py",
        "                await self._compare_clocks()\n",
        "",
        _PROCESSES,
    ),
    Mutant(
        "others are told whose clock is wrong",
        "gateway/service/process_check.py",
        "return [*found.refused, *clocks, *await unserved(store, keys)]",
        "return [*found.refused, *await unserved(store, keys)]",
        _PROCESSES,
    ),
    Mutant(
        "a program tells the gateway that its clock is wrong",
        "gateway/client/http_connection.py",
        "if ahead_s := self.clock.ahead_s:",
        "if ahead_s := 0:",
        _HTTP,
    ),
    Mutant(
        "a call that waits for the clock is given back",
        "gateway/client/http_gateway.py",
        "await self.release(item_id, fence, has_begun=False)\n        raise ClockWrong",
        "pass\n        raise ClockWrong",
        _HTTP,
    ),
    Mutant(
        "a card does not go on asking when its end was missed",
        "gateway/store/missed_cards.py",
        "await _is_shown(store, keys, approval):",
        "False:",
        "tests/bot/test_missed_cards.py",
    ),
    Mutant(
        "what was redacted is not drawn again",
        "gateway/store/missed_cards.py",
        "if ended is not None and (ended.is_erased or ended.redacted_rev):",
        "if False:",
        "tests/bot/test_missed_cards.py",
    ),
)

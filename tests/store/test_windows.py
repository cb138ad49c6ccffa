"""Sums slide exactly through reservations, releases and expiry."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from keyturn.gateway.policy.windows import MAX_MICRO
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.store.limits import windows
from keyturn.gateway.store.limits.windows import Use, use_of
from keyturn.gateway.store.records.turn_opener import Preconditions
from keyturn.gateway.store.store import Store
from tests.levels import examples
from tests.store_secrets import SECRETS

RUN = RunRef(agent="a", thread="t")

LENGTHS = {"minute": 60_000, "hour": 3_600_000}
KEY = "w"


@dataclass
class Model:
    """What should count: (window, use) to amount and when that ends, on our clock."""

    now_ms: int = 0
    counted: dict[tuple[str, str], tuple[int, int]] = field(
        default_factory=dict[tuple[str, str], tuple[int, int]]
    )

    def total(self, window: str) -> int:
        """Return the sum of what counts now, by adding it all up."""
        return sum(
            micro
            for (name, _), (micro, till) in self.counted.items()
            if name == window and till > self.now_ms
        )


class Sliding(RuleBasedStateMachine):
    """Drive windows of one tenant through turns that run or are refused."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.store = Store(self.url, secrets=SECRETS)
        self.keys = self.store.keys_of_tenant("default")
        self.model = Model()
        self.turns = 0
        self._run(self.store.conn.command("FLUSHALL"))

    def teardown(self) -> None:
        self._run(self.store.close())
        self.loop.close()

    @rule(
        calls=st.lists(
            st.tuples(
                st.sampled_from(sorted(LENGTHS)),
                st.one_of(st.integers(0, 10**9), st.just(MAX_MICRO)),
                st.booleans(),
            ),
            max_size=4,
        ),
        is_opened=st.booleans(),
    )
    def turn(self, calls: list[tuple[str, int, bool]], *, is_opened: bool) -> None:
        self.turns += 1
        turn_key = f"sha256:{self.turns:032x}{0:032x}"
        uses = [
            self._use(name, f"{self.turns}:{place}", micro)
            for place, (name, micro, _) in enumerate(calls)
        ]
        found = self._run(
            self.store.windows.reserve(self.keys, turn_key, [[use] for use in uses])
        )
        assert found is not None
        for use, totals, (name, micro, _) in zip(uses, found, calls, strict=True):
            hold = self.model.now_ms + 2 * windows.HOLD_MS
            self.model.counted[name, use.use] = (micro, hold)
            assert totals == {name: self.model.total(name)}
        again = self._run(
            self.store.windows.reserve(self.keys, turn_key, [[use] for use in uses])
        )
        assert again == found
        if is_opened:
            self._open(turn_key, uses, [runs for *_, runs in calls])

    def _open(self, turn_key: str, uses: list[Use], runs: list[bool]) -> None:
        ran = [use for use, is_run in zip(uses, runs, strict=True) if is_run]
        refused = [use for use in uses if use not in ran]
        preconditions = Preconditions(
            (), 1, 1, RUN, counted=ran, refused=refused, reserved=uses
        )
        opened = self._run(
            self.store.approvals.open_turn(
                self.keys, turn_key, [], verdicts=b"\n", events=[],
                thread=("a", "t"), preconditions=preconditions,
            )
        )  # fmt: skip
        assert opened is not None
        for use in refused:
            del self.model.counted[use.name, use.use]
        for use in ran:
            micro, _ = self.model.counted[use.name, use.use]
            till = self.model.now_ms + use.within_ms
            self.model.counted[use.name, use.use] = (micro, till)

    # Multiples of 20 s: the time that passes on the real clock decides nothing.
    @rule(passes_ms=st.sampled_from([20_000, 40_000, 100_000, 200_000, 3_700_000]))
    def time_passes(self, passes_ms: int) -> None:
        self.model.now_ms += passes_ms
        self._run(self._move_clock(passes_ms))

    async def _move_clock(self, passes_ms: int) -> None:
        for name in LENGTHS:
            key = self._window(name)
            flat = cast(
                "list[bytes]",
                await self.store.conn.command("ZRANGE", key, 0, -1, "WITHSCORES"),
            )
            for use, till in zip(flat[::2], flat[1::2], strict=True):
                await self.store.conn.command("ZADD", key, int(till) - passes_ms, use)

    @invariant()
    def totals_are_as_the_model_says(self) -> None:
        for name in LENGTHS:
            peek = self._use(name, "peek", 0)
            found = self._run(self.store.windows.totals("none", 0, [peek]))
            expected = self.model.total(name)
            if expected <= MAX_MICRO:
                assert found == {name: expected}
            else:
                assert found[name] == pytest.approx(expected, rel=1e-15)

    def _use(self, name: str, call: str, micro: int) -> Use:
        return use_of(
            self._window(name),
            name=name,
            call=call,
            micro=micro,
            within_ms=LENGTHS[name],
        )

    def _window(self, name: str) -> str:
        return self.keys.window(name, KEY)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)


@pytest.mark.slow
def test_no_order_of_turns_and_times_makes_a_sum_wrong(valkey_url: str) -> None:
    Sliding.url = valkey_url
    run_state_machine_as_test(  # pyright: ignore[reportUnknownMemberType] - untyped by hypothesis
        Sliding,
        settings=settings(
            max_examples=examples(50),
            stateful_step_count=20,
            deadline=None,
            # Twenty steps can be read as they are; shrinking them takes minutes.
            phases=(Phase.reuse, Phase.generate),
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


@pytest.mark.parametrize("micro", [-1, MAX_MICRO + 1])
def test_an_amount_that_would_bend_a_sum_is_no_use(micro: int) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        use_of("w", name="w", call="c", micro=micro, within_ms=1)


async def test_a_turn_that_was_evaluated_too_long_is_evaluated_again(
    store: Store,
) -> None:
    keys, turn = store.keys_of_tenant("default"), "sha256:" + "1" * 64
    use = use_of(keys.window("w", "k"), name="w", call="c", micro=5,
                 within_ms=1000)  # fmt: skip
    await store.windows.reserve(keys, turn, [[use]])
    preconditions = Preconditions((), 1, 1, RUN, counted=[use], reserved=[use])
    await store.conn.command("DEL", keys.reservation(turn, windows.as_rows([use])))

    opened = await store.approvals.open_turn(
        keys,
        turn,
        [],
        verdicts=b"\n",
        events=[],
        thread=("a", "t"),
        preconditions=preconditions,
    )

    assert opened is None


async def test_a_turn_with_verdicts_reserves_nothing(store: Store) -> None:
    keys, turn = store.keys_of_tenant("default"), "sha256:" + "1" * 64
    window = keys.window("w", "k")
    use = use_of(window, name="w", call="c", micro=5, within_ms=1000)
    await store.approvals.open_turn(
        keys, turn, [], verdicts=b"\n", events=[], thread=("a", "t"),
        preconditions=Preconditions((), 1, 1, RUN),
    )  # fmt: skip

    assert await store.windows.reserve(keys, turn, [[use]]) is None
    assert await store.conn.command("EXISTS", window) == 0

"""Waiting times are counted in few buckets, and their quantiles are nearly exact."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from keyturn.gateway.metrics.counts import EXPORTED_S, DurationHistogram
from tests.levels import examples

DAY_MS = 86_400_000
times = st.one_of(st.integers(0, 60_000), st.integers(0, 30 * DAY_MS))


def counted(values: list[int]) -> DurationHistogram:
    durations = DurationHistogram()
    for value in values:
        durations.add(value)
    return durations


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(times, min_size=1), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_3_percent_or_a_second_off_at_most(
    values: list[int], share: float
) -> None:
    found = counted(values).quantile_ms(share)

    exact = sorted(values)[max(1, math.ceil(share * len(values))) - 1]
    assert found is not None
    assert abs(found - exact) <= max(1000, 0.03 * exact)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(times))
def test_what_is_exported_is_counted_exactly(values: list[int]) -> None:
    exact = {at: sum(value <= 1000 * at for value in values) for at in EXPORTED_S}

    assert counted(values).up_to() == exact


def test_a_clock_that_went_back_gives_no_time_below_zero() -> None:
    durations = counted([-5])

    assert (durations.quantile_ms(0.5), durations.total_ms) == (0, 0)


def test_a_time_beyond_the_last_bucket_is_counted() -> None:
    year_ms = 365 * DAY_MS

    assert counted([1, year_ms]).quantile_ms(0.99) == year_ms


def test_a_million_times_take_no_more_room_than_a_thousand() -> None:
    durations = counted([7919 * n % (30 * DAY_MS) for n in range(100_000)])

    assert len(durations.buckets) < 400
    assert durations.count == 100_000

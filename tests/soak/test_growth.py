"""Growth under load is reported by name, and waves of load are not."""

from __future__ import annotations

import pytest

from tests.soak.growth import Sample, judge


def _series(*values: float, left_s: float = 0.0) -> list[Sample]:
    """Return a sample every half minute, of keys that live so long."""
    return [
        Sample(30.0 * at, {"keys a": value}, {"keys a": left_s})
        for at, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    "values",
    [
        (100, 500, 100, 500, 100, 500, 100, 500),
        (500, 500, 500, 500, 500, 500, 500, 575),
        (0, 1, 2, 5, 8, 11, 18, 20),
        (900, 800, 700, 600, 500, 400, 300, 200),
        (100, 100, 100, 100, 100, 100, 100, 900, 100, 100, 100, 100),
    ],
    ids=["waves", "one step", "few", "falling", "one peak"],
)
def test_what_is_steady_is_not(values: tuple[float, ...]) -> None:
    judgement = judge(_series(*values))

    assert (judgement.grown, judgement.too_short) == ([], [])


def test_keys_are_judged_after_their_lifetime() -> None:
    """The nonces of requests become more for eleven minutes, and then as many end."""
    filling, full = range(0, 2200, 100), [2200] * 8

    assert judge(_series(*filling, *full)).grown
    judgement = judge(_series(*filling, *full, left_s=660))
    assert (judgement.grown, judgement.too_short) == ([], [])


def test_what_rises_too_slowly_to_leave_the_band_is_named() -> None:
    """A leak of a tenth in an hour, under waves that are as high."""
    rising = _series(*(1000 + at + 30 * (at % 3) for at in range(120)))

    assert judge(rising).grown == ["keys a rises by 120 an hour, around 1,090"]

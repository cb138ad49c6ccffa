"""Growth under load is reported by name, and waves of load are not."""

from __future__ import annotations

import pytest

from tests.soak.growth import Sample, judge, kind_of


def _series(*values: float, left_s: float = 0.0) -> list[Sample]:
    """Return a sample every half minute, of keys that live so long."""
    return [
        Sample(30.0 * at, {"keys a": value}, {"keys a": left_s})
        for at, value in enumerate(values)
    ]


def test_what_grows_beyond_the_first_quarter_is_named() -> None:
    rising = _series(*range(100, 900, 100))

    assert judge(rising).grown == ["keys a grew from at most 200 to 750"]


@pytest.mark.parametrize(
    "values",
    [
        (100, 500, 100, 500, 100, 500, 100, 500),
        (500, 500, 500, 500, 500, 500, 500, 575),
        (0, 1, 2, 5, 8, 11, 18, 20),
        (900, 800, 700, 600, 500, 400, 300, 200),
        (100, 100, 100, 100, 100, 100, 100, 900, 100, 100, 100, 100),
    ],
    ids=["waves", "within the band", "few", "falling", "one peak"],
)
def test_what_is_steady_is_not(values: tuple[float, ...]) -> None:
    judgement = judge(_series(*values))

    assert (judgement.grown, judgement.too_short) == ([], [])


def test_a_kind_that_appears_late_grows() -> None:
    late = [
        Sample(30.0 * at, {"keys a": 1.0} | ({"keys b": 50.0} if at > 5 else {}))
        for at in range(8)
    ]

    assert judge(late).grown == ["keys b grew from at most 0 to 50"]


def test_too_few_samples_show_nothing() -> None:
    judgement = judge(_series(1, 2, 3, 4, 500, 600, 700))

    assert judgement.grown == []
    assert judgement.too_short == [
        "keys a: 7 of 8 samples that it needs were taken after its lifetime of 0 s"
    ]


def test_keys_are_judged_after_their_lifetime() -> None:
    """The nonces of requests become more for eleven minutes, and then as many end."""
    filling, full = range(0, 2200, 100), [2200] * 8

    assert judge(_series(*filling, *full)).grown
    judgement = judge(_series(*filling, *full, left_s=660))
    assert (judgement.grown, judgement.too_short) == ([], [])


def test_keys_that_grow_after_their_lifetime_are_named() -> None:
    assert judge(_series(*range(0, 3000, 100), left_s=660)).grown == [
        "keys a grew from at most 2,300 to 2,850"
    ]


def test_a_run_that_is_too_short_for_a_lifetime_does_not_judge_its_keys() -> None:
    judgement = judge(_series(*range(0, 2900, 100), left_s=660))

    assert judgement.grown == []
    assert judgement.too_short == [
        "keys a: 7 of 8 samples that it needs were taken after its lifetime of 660 s"
    ]


def test_what_rises_too_slowly_to_leave_the_band_is_named() -> None:
    """A leak of a tenth in an hour, under waves that are as high."""
    rising = _series(*(1000 + at + 30 * (at % 3) for at in range(120)))

    assert judge(rising).grown == ["keys a rises by 120 an hour, around 1,090"]


def test_waves_that_end_high_do_not_rise() -> None:
    waves = _series(*(1000 + 100 * (at % 7) for at in range(119)))

    assert judge(waves).grown == []
    assert abs(judge(waves).per_hour["keys a"]) < 20


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("tk:{default}:a:ap_default_00112233445566778899aabbccddeeff", "a"),
        ("tk:{s12}:card:ap_default_0011", "card"),
        ("tk:{default}:ev", "ev"),
        ("tk:{default}:undrawn", "undrawn"),
        ("tk:{default}:tm:default:shop:C1:1.2", "tm"),
    ],
)
def test_the_kind_of_a_key_is_its_name_without_ids(key: str, kind: str) -> None:
    assert kind_of(key) == kind

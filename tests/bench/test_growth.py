"""What grows under load is told by its name, and waves of load are not."""

from __future__ import annotations

import pytest

from bench.growth import growing, kind_of


def _series(*values: float) -> list[dict[str, float]]:
    return [{"keys a": value} for value in values]


def test_what_grows_beyond_the_first_quarter_is_named() -> None:
    rising = _series(*range(100, 900, 100))

    assert growing(rising) == ["keys a grew from at most 200 to 750"]


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
    assert growing(_series(*values)) == []


def test_a_kind_that_appears_late_grows() -> None:
    late = [*[{"keys a": 1.0}] * 6, *[{"keys a": 1.0, "keys b": 50.0}] * 2]

    assert growing(late) == ["keys b grew from at most 0 to 50"]


def test_too_few_samples_show_nothing() -> None:
    assert "fewer than four" in growing(_series(1, 2, 3))[0]


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("tk:{s0}:a:ap_s0_00112233445566778899aabbccddeeff", "a"),
        ("tk:{s12}:card:ap_s0_0011", "card"),
        ("tk:{s0}:ev", "ev"),
        ("tk:{s0}:tm:default:shop:C1:1.2", "tm"),
    ],
)
def test_the_kind_of_a_key_is_its_name_without_ids(key: str, kind: str) -> None:
    assert kind_of(key) == kind

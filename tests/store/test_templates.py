"""A text is learned from two samples, and only where both of them prove it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twokey.gateway.store.templates import (
    Moment,
    NotLearned,
    Samples,
    Template,
    is_plain,
)

FIRST = Moment(1_700_000_000_000, 1_699_999_996_999, "T1", "U1", "One", "sha256:11")
SECOND = Moment(1_700_003_599_999, 1_700_003_592_986, "T2", "U12", "Two", "sha256:22")
SAMPLES = Samples(FIRST, SECOND)


def said(moment: Moment) -> str:
    """Return a text that says all of a moment, among other things."""
    return (
        f'{{"by":"{moment.user}","users":["U1","U12","U3"],"in":"{moment.team}",'
        f'"at":{moment.now_ms},"until":{moment.now_ms + 60_000},"age":7,'
        f'"asked":{moment.asked_ms},"waited":"{moment.now_ms - 1_699_999_000_000}",'
        f'"name":"{moment.name}","request":"{moment.request}"}}'
    )


MOMENTS = st.builds(
    Moment,
    st.integers(1_699_999_000_000, 1_800_000_000_000),
    st.integers(1_600_000_000_000, 1_700_000_000_000),
    st.from_regex(r"\AT[0-9A-Z]{1,9}\Z"),
    st.from_regex(r"\AU[0-9A-Z]{1,9}\Z"),
    st.text(min_size=1),
    st.from_regex(r"\Asha256:[0-9a-f]{64}\Z"),
)


@given(MOMENTS.filter(is_plain))
def test_a_learned_text_says_any_other_moment(moment: Moment) -> None:
    learned = SAMPLES.text(said(FIRST), said(SECOND))

    assert learned.filled(moment) == said(moment)


def test_what_is_the_same_in_both_samples_is_kept_as_it_is() -> None:
    rows: list[object] = [{"users": ["U1"], "n": 0, "is": True, "none": None}]

    assert SAMPLES.learned(rows, [dict(rows[0])]) is rows  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("yes", "no"),
        ("at 5", "at 6"),
        # A person of the other sample, and a number that is as far from neither.
        ("U12", "U1"),
        (f"{FIRST.now_ms}", f"{SECOND.now_ms + 1}"),
        # It would lose its zeros.
        (f"0{FIRST.now_ms}", f"0{SECOND.now_ms}"),
        ("a", "a b"),
        ({"a": 1}, {"b": 1}),
        ([1], [1, 2]),
        (1, "1"),
        (True, FIRST.now_ms),
        (1.5, 2.5),
        (None, "U1"),
    ],
)
def test_a_difference_that_nobody_explains_is_not_learned(
    one: object, other: object
) -> None:
    with pytest.raises(NotLearned):
        SAMPLES.learned(one, other)


def test_members_in_another_order_are_not_learned() -> None:
    with pytest.raises(NotLearned):
        SAMPLES.learned({"a": "U1", "b": 1}, {"b": 1, "a": "U12"})


@pytest.mark.parametrize("name", ["", 'An "a', "back\\slash", "a\nb", "\ud800", "\x7f"])
def test_a_name_that_is_written_otherwise_in_json_is_not_plain(name: str) -> None:
    assert is_plain(FIRST)
    assert is_plain(FIRST._replace(name="José 你好"))
    assert not is_plain(FIRST._replace(name=name))


def test_samples_of_one_moment_prove_nothing() -> None:
    with pytest.raises(ValueError, match="one moment"):
        Samples(FIRST, FIRST)
    with pytest.raises(ValueError, match="one moment"):
        Samples(FIRST, FIRST._replace(now_ms=5 + FIRST.now_ms))


def test_who_alone_may_decide_is_the_same_in_both() -> None:
    """Then nothing says where the text is that person, and where it is a list."""
    alone = Samples(FIRST, SECOND._replace(user="U1"))

    learned = alone.text('["U1"] U1 at T1', '["U1"] U1 at T2')

    assert isinstance(learned, Template)
    assert learned.filled(FIRST._replace(user="U1", team="T7")) == '["U1"] U1 at T7'

"""Templates are filled in by C code as they would be piece by piece, also as JSON."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from tests.store.test_templates import FIRST, MOMENTS, SAMPLES, SECOND, said
from twokey.gateway.store.filling import Filling, Made, Piece, Pieces, json_pieces
from twokey.gateway.store.templates import Later, Moment, Template, is_plain

ODD = st.text(st.sampled_from('%sd(){}"\\\n\x00é名\u2028\x7f1')) | st.text(
    st.characters(exclude_categories=["Cs"])
)
PIECES = st.lists(
    ODD | st.integers(0, 6) | st.builds(Later, st.integers(0, 1), st.integers(-9, 9))
)


def joined(pieces: list[Piece], moment: Moment) -> str:
    """Return the text of some pieces, one after the other."""
    return Template(tuple(pieces)).filled(moment)  # type: ignore[arg-type]


@given(st.lists(PIECES), MOMENTS)
def test_many_templates_are_filled_as_each_alone(
    templates: list[list[Piece]], moment: Moment
) -> None:
    filling = Filling()
    fills = [filling.compiled(pieces) for pieces in templates]

    texts = filling.texts(moment)

    assert [fill(texts) for fill in fills] == [
        joined(pieces, moment) for pieces in templates
    ]


@given(PIECES, MOMENTS, st.lists(ODD, min_size=2, max_size=2))
def test_what_is_made_of_texts_is_filled_in_last(
    pieces: list[Piece], moment: Moment, made: list[str]
) -> None:
    filling = Filling(made=2)
    whole = filling.compiled([Made(1), "%s", *pieces, Made(0)])
    # One that names other moments than those before it.
    late = filling.compiled([Later(0, 77), "-", Made(1)])

    texts = filling.texts(moment)

    assert whole([*texts, *made]) == f"{made[1]}%s{joined(pieces, moment)}{made[0]}"
    assert late([*texts, *made]) == f"{moment.now_ms + 77}-{made[1]}"


@given(MOMENTS.filter(is_plain), ODD, ODD)
def test_json_of_what_was_learned_is_json_of_what_it_says(
    moment: Moment, key: str, odd: str
) -> None:
    def rows(moment: Moment) -> dict[str, object]:
        inner = to_json({"at": moment.now_ms, "by": moment.user, odd: odd}).decode()
        return {
            key: [odd, 1, None, True, 1.5, {}, [], ()],
            "set": [("remind", moment.now_ms), {"until": moment.now_ms + 5}],
            "event": inner,
            "said": f"{odd}{said(moment)}{odd}",
        }

    filling = Filling()
    fill = filling.compiled(json_pieces(SAMPLES.learned(rows(FIRST), rows(SECOND))))

    told = json.loads(fill(filling.texts(moment)))

    assert told == json.loads(to_json(rows(moment)))


def test_a_text_with_what_is_made_is_one_text_of_json() -> None:
    filling = Filling(made=1)
    fill = filling.compiled(json_pieces([Pieces(('"', 3, "\n", Made(0)))]))

    assert json.loads(fill([*filling.texts(FIRST), "seal"])) == ['"U1\nseal']

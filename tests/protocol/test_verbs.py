"""Which decisions need a reason."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from twokey.gateway.protocol.verbs import ReasonFor, Verb

READ = TypeAdapter[tuple[Verb, ...]](ReasonFor)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (True, (Verb.EDIT, Verb.REJECT)),
        (False, ()),
        (["approve"], (Verb.APPROVE,)),
        ([], ()),
    ],
)
def test_short_policies_say_it_by_a_word(said: object, meant: tuple[Verb, ...]) -> None:
    assert READ.validate_python(said) == meant

"""People and times are in the markup by ids and numbers alone."""

from __future__ import annotations

from keyturn.bot.cards.refs import people, places, who
from keyturn.gateway.protocol.records import Person
from tests.bot.samples import ANA


def _person(user: str) -> Person:
    return Person(team="T1", user=user, name="*name*")


def test_a_person_whose_id_is_not_slacks_is_somebody() -> None:
    assert who(_person("<!channel>")).text == "`somebody`"
    assert who(ANA).text == "<@U0ANA>"
    many = [_person(f"U{n}") for n in range(8)]
    assert people(many).text.endswith("<@U4> and 3 more")


def test_channels_are_named_in_one_sentence() -> None:
    long = f"#{'x' * 60}"
    assert places(["C0GENERAL", "#équipe"]).text == "<#C0GENERAL> and #équipe"
    assert places(["#a*b", "<!channel>"]).text == "another channel and another channel"
    assert places([long]).text == f"#{'x' * 38}…"

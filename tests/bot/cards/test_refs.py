"""People and times are in the markup by ids and numbers alone."""

from __future__ import annotations

import pytest

from keyturn.bot.cards.channel_messages import freeze_message
from keyturn.bot.cards.refs import actor, people, places, who
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.protocol.records import Person
from tests.bot.readable import readable
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


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("T0/U0ANA", "<@U0ANA>"),
        ("cli/root", "`cli/root`"),
        ("cli", "`cli`"),
        ("cli/<!channel>", "`somebody`"),
        ("", "`somebody`"),
    ],
)
def test_an_actor_is_a_mention_a_plain_name_or_somebody(name: str, shown: str) -> None:
    assert actor(name).text == shown


def test_everything_is_lifted_by_a_word_of_its_own() -> None:
    event = Event(name=EventName.FREEZE_SET, tenant="acme", actor="cli/root")

    message = freeze_message(event)

    assert readable(message.blocks) == (
        "m:🧊 *Frozen* by `cli/root`.\nEverything\n"
        "~ Nothing starts, not even approved calls. To end the freeze, write: "
        "/approvals unfreeze everything\n"
    )

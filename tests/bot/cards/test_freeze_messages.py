"""A message about a freeze names who set it, and no name is read as markup."""

from __future__ import annotations

import pytest

from keyturn.bot.cards.channel_messages import actor_ref, freeze_message
from keyturn.gateway.approvals.events import Event, EventName
from tests.bot.readable import readable


@pytest.mark.parametrize(
    ("actor", "shown"),
    [
        ("T0/U0ANA", "<@U0ANA>"),
        ("cli/root", "`cli/root`"),
        ("cli", "`cli`"),
        ("cli/<!channel>", "`somebody`"),
        ("", "`somebody`"),
    ],
)
def test_an_actor_is_a_mention_a_plain_name_or_somebody(actor: str, shown: str) -> None:
    assert actor_ref(actor).text == shown


def test_everything_is_lifted_by_a_word_of_its_own() -> None:
    event = Event(name=EventName.FREEZE_SET, tenant="acme", actor="cli/root")

    message = freeze_message(event)

    assert readable(message.blocks) == (
        "m:🧊 *Frozen* by `cli/root`\nEverything\n"
        "~ Nothing starts, not even approved calls. To end the freeze, write: "
        "/approvals unfreeze everything\n"
    )

"""People can do everything that Slack allows, and nothing else."""

from typing import Any

import pytest

from keyturn.sandbox.client import Person, UserActionFailed
from keyturn.sandbox.json_types import JsonObject
from keyturn.sandbox.server import Sandbox
from tests.sandbox.blocks import button, card, options, plain
from tests.sandbox.bolt_app import RunningApp

APPROVALS = "C0APPROVALS"
PICK = {"type": "static_select", "action_id": "pick", "placeholder": plain("Pick")}


async def failure(action: Any) -> str:
    with pytest.raises(UserActionFailed) as caught:
        await action
    return caught.value.error


@pytest.fixture
async def posted(client: Any) -> str:
    answer = await client.chat_postMessage(
        channel=APPROVALS, text="t", blocks=card("one")
    )
    return str(answer["ts"])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"user": "U0NOBODY"}, "user_not_found"),
        ({"user": "U0GONE"}, "account_inactive"),
        ({"user": "U0KEYTURN"}, "account_inactive"),
        ({"type": "shout"}, "unknown_type"),
        ({"channel": "C0NONE"}, "channel_not_found"),
        ({"channel": "C0GENERAL"}, "message_not_found"),
        ({"ts": "1.000000"}, "message_not_found"),
        ({"action_id": "reject"}, "action_not_found"),
        ({"block_id": "elsewhere"}, "action_not_found"),
        ({"values": {"decide": {"approve": {"value": "x"}}}}, "invalid_values"),
        ({"view_id": "V0NONE"}, "view_not_found"),
    ],
)
async def test_an_impossible_click_is_refused(
    ana: Person, posted: str, changes: JsonObject, expected: str
) -> None:
    request = {
        "kind": changes.pop("type", "block_actions"),
        "channel": APPROVALS,
        "ts": posted,
        "action_id": "approve",
        **changes,
    }

    assert await failure(ana.act(**request)) == expected


async def test_a_click_on_old_blocks_arrives(http_app: RunningApp, ana: Person) -> None:
    http_app.note_clicks("approve")

    def blocks(block_id: str, value: str) -> list[JsonObject]:
        buttons = [button("approve", value)]
        return [{"type": "actions", "block_id": block_id, "elements": buttons}]

    client = http_app.client
    posted = await client.chat_postMessage(
        channel=APPROVALS, text="t", blocks=blocks("first", "v1")
    )
    ts = posted["ts"]
    for name in ("second", "third"):
        await client.chat_update(
            channel=APPROVALS, ts=ts, text="t", blocks=blocks(name, "v2")
        )

    await ana.click(APPROVALS, ts, "approve", "first")

    (heard,) = http_app.heard
    action = heard["actions"][0]
    assert (action["block_id"], action["value"]) == ("first", "v1")
    assert heard["message"]["blocks"][0]["block_id"] == "third"
    assert await failure(ana.click(APPROVALS, ts, "approve", "never")) == (
        "action_not_found"
    )


async def test_a_reader_alone_can_act(sandbox: Sandbox, posted: str) -> None:
    guest, stranger = sandbox.person("U0GUEST"), sandbox.person("U0STRANGER")
    sandbox.control.leave(APPROVALS, "U0EVE")
    eve = sandbox.person("U0EVE")

    channels = [c["id"] for c in (await guest.state())["channels"]]
    assert channels == [APPROVALS, "D0GUEST"]
    assert [c["id"] for c in (await stranger.state())["channels"]] == [APPROVALS]
    shown = {c["id"]: c["is_member"] for c in (await eve.state())["channels"]}
    assert shown == {APPROVALS: False, "C0GENERAL": True, "D0EVE": True}
    click = eve.click(APPROVALS, posted, "approve")
    assert await failure(click) == "not_in_channel"
    assert await failure(guest.say("C0GENERAL", "hi")) == "channel_not_found"


async def test_an_ephemeral_message_is_seen_and_clicked_by_one_person(
    sandbox: Sandbox, http_app: RunningApp, ana: Person
) -> None:
    @http_app.on("action", "approve")
    async def approve(ack: Any, body: dict[str, Any], respond: Any) -> None:
        http_app.heard.append(body)
        await ack()
        await respond(text="done", replace_original=True)

    answer = await http_app.client.chat_postEphemeral(
        channel=APPROVALS, user="U0ANA", text="psst", blocks=card("one")
    )
    ts = answer["message_ts"]

    ben = sandbox.person("U0BEN")
    assert await failure(ben.act("block_actions", channel=APPROVALS, ts=ts)) == (
        "message_not_found"
    )
    await ana.click(APPROVALS, ts, "approve")

    assert http_app.heard[0]["container"]["is_ephemeral"] is True
    assert "message" not in http_app.heard[0]
    (message,) = await ana.ephemerals(APPROVALS)
    assert (message["text"], message["blocks"]) == ("done", None)


async def test_an_element_reports_what_was_chosen_and_keeps_it(
    sandbox: Sandbox, http_app: RunningApp, ana: Person
) -> None:
    http_app.note_clicks("pick", "menu", "day", "many")
    select = {**PICK, "options": options("a", "b")}
    elements = [
        select,
        {"type": "overflow", "action_id": "menu", "options": options("x", "y")},
        {"type": "datepicker", "action_id": "day", "initial_date": "2026-11-20"},
        {"type": "checkboxes", "action_id": "many", "options": options("1", "2")},
    ]
    blocks = [{"type": "actions", "block_id": "b", "elements": elements}]
    answer = await http_app.client.chat_postMessage(
        channel=APPROVALS, text="t", blocks=blocks
    )
    ts = answer["ts"]

    await ana.click(APPROVALS, ts, "pick", chosen="b")
    await ana.click(APPROVALS, ts, "menu", chosen="y")
    await ana.click(APPROVALS, ts, "day", chosen="2026-12-24")
    await ana.click(APPROVALS, ts, "many", chosen=["1", "2"])

    actions = [body["actions"][0] for body in http_app.heard]
    assert actions[0]["selected_option"]["value"] == "b"
    assert actions[1]["selected_option"]["value"] == "y"
    assert actions[2]["selected_date"] == "2026-12-24"
    assert [o["value"] for o in actions[3]["selected_options"]] == ["1", "2"]
    values = http_app.heard[3]["state"]["values"]["b"]
    assert values["pick"]["selected_option"]["value"] == "b"
    assert values["day"]["selected_date"] == "2026-12-24"
    assert "menu" not in values
    with pytest.raises(LookupError, match="does not offer 'c'"):
        await ana.click(APPROVALS, ts, "pick", chosen="c")
    for action_id in ("pick", "menu"):
        forged = ana.act(
            "block_actions",
            channel=APPROVALS,
            ts=ts,
            action_id=action_id,
            chosen={"selected_option": {"value": "c"}},
        )
        assert await failure(forged) == "invalid_values"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"channel": APPROVALS, "text": " "}, "no_text"),
        ({"channel": "C0PRIVATE", "text": "hi"}, "channel_not_found"),
        ({"channel": APPROVALS, "text": "hi", "thread_ts": "1.0"}, "message_not_found"),
    ],
)
async def test_an_impossible_message_is_refused(
    sandbox: Sandbox, arguments: JsonObject, expected: str
) -> None:
    assert await failure(sandbox.person("U0EVE").act("message", **arguments)) == (
        expected
    )


async def test_typed_names_become_ids_and_markup_stays_text(ana: Person) -> None:
    await ana.say(APPROVALS, "@ben see #general, not @nobody or a@ben: <!here> & co")

    (message,) = await ana.messages(APPROVALS)
    assert message["text"] == (
        "<@U0BEN> see <#C0GENERAL>, not @nobody or a@ben: &lt;!here&gt; &amp; co"
    )


async def test_a_mention_notifies_when_it_is_posted_and_in_blocks_only_there(
    sandbox: Sandbox, client: Any, ana: Person
) -> None:
    mention = {"type": "mrkdwn", "text": "<!subteam^S0SUPPORT> please"}
    block = {"type": "section", "text": mention}
    plain = {"type": "section", "text": {**mention, "type": "plain_text"}}
    place = {"channel": "C0GENERAL"}

    posted = await client.chat_postMessage(**place, text="hello", blocks=[block])
    await client.chat_postMessage(**place, text="<@U0ANA>", blocks=[plain])
    later = await client.chat_postMessage(**place, text="hello")
    await client.chat_update(**place, ts=later["ts"], text="hello <@U0ANA>")
    await sandbox.person("U0DAN").say("C0GENERAL", "@ana look")

    told = [
        one["text"] for one in await ana.messages("C0GENERAL") if one["mentions_me"]
    ]
    others = await sandbox.person("U0EVE").messages("C0GENERAL")
    assert told == ["hello", "<@U0ANA> look"]
    assert posted["ok"]
    assert not any(one["mentions_me"] for one in others)

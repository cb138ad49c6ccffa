"""A real Bolt app works against the sandbox over both transports."""

from typing import Any

import pytest

from keyturn.sandbox.client import Person, UserActionFailed
from keyturn.sandbox.server import Sandbox
from tests.sandbox.blocks import card, home, modal
from tests.sandbox.bolt_app import RunningApp

APPROVALS = "C0APPROVALS"


async def post_card(app: RunningApp, *action_ids: str) -> str:
    posted = await app.client.chat_postMessage(
        channel=APPROVALS, text="card", blocks=card("please", *action_ids)
    )
    return str(posted["ts"])


def opens_modal(app: RunningApp, view: dict[str, Any]) -> None:
    @app.on("action", "edit")
    async def edit(ack: Any, body: dict[str, Any], client: Any) -> None:
        await client.views_open(trigger_id=body["trigger_id"], view=view)
        await ack()


async def test_a_click_is_acknowledged_and_the_card_is_updated(
    app: RunningApp, ana: Person
) -> None:
    @app.on("action", "approve")
    async def approve(ack: Any, body: dict[str, Any], client: Any) -> None:
        app.heard.append(body)
        await ack()
        await client.chat_update(
            channel=body["channel"]["id"],
            ts=body["message"]["ts"],
            text="approved",
            blocks=card("approved")[:1],
        )

    ts = await post_card(app)

    await ana.click(APPROVALS, ts, "approve")

    changed = await ana.message_with(APPROVALS, lambda m: m["text"] == "approved")
    assert (changed["ts"], len(changed["blocks"])) == (ts, 1)
    assert changed["edited"] is False
    heard = app.heard[0]
    assert heard["user"]["id"] == "U0ANA"
    assert heard["team"]["id"] == heard["user"]["team_id"] == "T0SANDBOX"
    assert heard["actions"][0]["value"] == "v1"
    assert heard["actions"][0]["action_ts"] > ts
    assert heard["container"] == {
        "type": "message",
        "message_ts": ts,
        "channel_id": APPROVALS,
        "is_ephemeral": False,
    }


async def test_a_modal_opens_shows_an_inline_error_and_closes(
    app: RunningApp, ana: Person
) -> None:
    opens_modal(app, modal(private_metadata="ap_1"))

    @app.on("view", "edit")
    async def save(ack: Any, body: dict[str, Any], view: dict[str, Any]) -> None:
        app.heard.append(body)
        amount = view["state"]["values"]["amount"]["value"]["value"]
        if float(amount) > 500:
            await ack(response_action="errors", errors={"amount": "At most 500."})
        else:
            await ack()

    await ana.click(APPROVALS, await post_card(app, "edit"), "edit")
    opened = await ana.view()

    refused = await ana.submit()
    shown = await ana.view()
    accepted = await ana.submit({"amount": "449.50"})

    assert opened is not None
    assert opened["private_metadata"] == "ap_1"
    assert refused == {"amount": "At most 500."}
    assert shown is not None
    assert shown["errors"] == refused
    assert accepted == {}
    assert await ana.view() is None
    assert [h["view"]["id"] for h in app.heard] == [opened["id"]] * 2


async def test_a_submission_may_be_answered_with_another_view(
    app: RunningApp, ana: Person
) -> None:
    opens_modal(app, modal())

    @app.on("view", "edit")
    async def save(ack: Any) -> None:
        view = modal(callback_id="sure", submit={"type": "plain_text", "text": "Yes"})
        await ack(response_action="update", view=view)

    @app.on("view", "sure")
    async def sure(ack: Any) -> None:
        await ack(response_action="push", view=modal(callback_id="really"))

    @app.on("view", "really")
    async def really(ack: Any) -> None:
        await ack(response_action="clear")

    await ana.click(APPROVALS, await post_card(app, "edit"), "edit")
    seen: list[list[str]] = []

    for _ in range(3):
        await ana.submit()
        stack = (await ana.state())["views"]
        seen.append([view["callback_id"] for view in stack])

    assert seen == [["sure"], ["sure", "really"], []]


async def test_a_button_in_a_modal_pushes_a_second_one(
    app: RunningApp, ana: Person
) -> None:
    opens_modal(app, modal(*card("look", "more")))

    @app.on("action", "more")
    async def more(ack: Any, body: dict[str, Any], client: Any) -> None:
        app.heard.append(body)
        await client.views_push(
            trigger_id=body["trigger_id"],
            view=modal(callback_id="details", notify_on_close=True),
        )
        await ack()

    @app.on("view_closed", "details")
    async def closed(ack: Any, body: dict[str, Any]) -> None:
        app.heard.append(body)
        await ack()

    await ana.click(APPROVALS, await post_card(app, "edit"), "edit")
    await ana.act_in_view("more")
    on_top = await ana.view()
    await ana.close_view()

    below = await ana.view()
    assert on_top is not None
    assert below is not None
    assert on_top["callback_id"] == "details"
    assert on_top["previous_view_id"] == below["id"] == on_top["root_view_id"]
    assert "channel" not in app.heard[0]
    assert app.heard[0]["container"] == {"type": "view", "view_id": below["id"]}
    assert app.heard[1]["type"] == "view_closed"
    assert app.heard[1]["is_cleared"] is False


async def test_a_command_answers_in_private_and_may_open_a_modal(
    app: RunningApp, ana: Person, sandbox: Sandbox
) -> None:
    @app.on("command", "/approvals")
    async def approvals(ack: Any, body: dict[str, Any], client: Any) -> None:
        app.heard.append(body)
        await client.views_open(trigger_id=body["trigger_id"], view=modal())
        await ack(text="3 are waiting")

    await ana.command("/approvals", "list @ben <all>", "#general")

    answers = await ana.ephemerals("#general")
    assert [answer["text"] for answer in answers] == ["3 are waiting"]
    assert await sandbox.person("U0BEN").ephemerals("#general") == []
    assert await ana.view() is not None
    assert app.heard[0]["text"] == "list <@U0BEN|ben> &lt;all&gt;"
    assert app.heard[0]["channel_id"] == "C0GENERAL"


async def test_a_mention_reaches_the_app_as_an_event(
    app: RunningApp, sandbox: Sandbox
) -> None:
    @app.on("event", "app_mention")
    async def mentioned(body: dict[str, Any], say: Any) -> None:
        app.heard.append(body)
        await say(text="on it", thread_ts=body["event"]["ts"])

    dan = sandbox.person("U0DAN")

    ts = await dan.say("#agent-approvals", "@keyturn refund A & B")
    await dan.say("#agent-approvals", "nobody is called here")

    reply = await dan.message_with(APPROVALS, lambda m: m["text"] == "on it")
    assert reply["thread_ts"] == ts
    assert len(app.heard) == 1
    assert app.heard[0]["event"]["text"] == "<@U0KEYTURN> refund A &amp; B"
    assert app.heard[0]["authorizations"][0]["user_id"] == "U0KEYTURN"


async def test_opening_the_home_tab_lets_the_app_publish_it(
    app: RunningApp, ana: Person
) -> None:
    @app.on("event", "app_home_opened")
    async def opened(event: dict[str, Any], client: Any) -> None:
        await client.views_publish(user_id=event["user"], view=home())

    @app.on("action", "refresh")
    async def refresh(ack: Any, body: dict[str, Any], client: Any) -> None:
        await client.views_publish(
            user_id=body["user"]["id"], view=home("Again"), hash=body["view"]["hash"]
        )
        await ack()

    await ana.open_home()
    first = await ana.home()
    await ana.act_in_home("refresh")
    second = await ana.home()

    assert first is not None
    assert second is not None
    assert first["id"] == second["id"]
    assert second["blocks"][0]["text"]["text"] == "Again"


async def test_a_direct_message_needs_the_history_scope(
    app: RunningApp, ana: Person, sandbox: Sandbox
) -> None:
    @app.on("event", "message")
    async def message(body: dict[str, Any]) -> None:
        app.heard.append(body)

    scopes = sandbox.workspace.bot_scopes
    sandbox.control.scopes([scope for scope in scopes if scope != "im:history"])
    await ana.say("D0ANA", "hello")
    sandbox.control.scopes(scopes)
    await ana.say("D0ANA", "hello again")

    (notice,) = await ana.notices()
    assert "im:history" in notice["text"]
    assert [h["event"]["text"] for h in app.heard] == ["hello again"]
    assert app.heard[0]["event"]["channel_type"] == "im"


async def test_a_listener_that_does_not_acknowledge_shows_a_warning(
    app: RunningApp, ana: Person, sandbox: Sandbox
) -> None:
    @app.on("action", "approve")
    async def approve(body: dict[str, Any]) -> None:
        app.heard.append(body)
        sandbox.clock.advance(3)

    ts = await post_card(app)

    with pytest.raises(UserActionFailed) as caught:
        await ana.click(APPROVALS, ts, "approve")

    assert caught.value.error == "app_did_not_respond"
    (notice,) = await ana.notices()
    assert notice["level"] == "warning"
    assert len(app.heard) == 1

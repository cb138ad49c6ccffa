"""Triggers, view stacks and Home views follow Slack's rules."""

from typing import Any

import pytest

from keyturn.sandbox.client import Person, UserActionFailed
from keyturn.sandbox.server import Sandbox
from tests.sandbox.blocks import button, card, field, home, modal
from tests.sandbox.bolt_app import RunningApp, error, refusal


def trigger(sandbox: Sandbox, *, from_modal: bool = False) -> str:
    return sandbox.slack.triggers.issue("U0ANA", from_modal=from_modal)


async def opened(sandbox: Sandbox, client: Any, **more: Any) -> dict[str, Any]:
    answer = await client.views_open(trigger_id=trigger(sandbox), view=modal(**more))
    return dict(answer["view"])


async def test_a_trigger_opens_one_view_for_the_person_who_made_it(
    sandbox: Sandbox, client: Any, ana: Person
) -> None:
    trigger_id = trigger(sandbox)

    answer = await client.views_open(trigger_id=trigger_id, view=modal())

    assert answer["view"]["state"]["values"] == {
        "amount": {"value": {"type": "plain_text_input", "value": "899.00"}}
    }
    again = client.views_open(trigger_id=trigger_id, view=modal())
    assert await error(again) == "exchanged_trigger_id"
    assert await sandbox.person("U0BEN").view() is None
    mine = await ana.view()
    assert mine is not None
    assert mine["id"] == answer["view"]["id"]


@pytest.mark.parametrize(
    # The clock goes on in between: on a busy machine the call may come late.
    ("seconds", "expected"),
    [(1.5, None), (3.1, "expired_trigger_id")],
)
async def test_a_trigger_lives_three_seconds(
    sandbox: Sandbox, client: Any, seconds: float, expected: str | None
) -> None:
    trigger_id = trigger(sandbox)
    sandbox.clock.advance(seconds)

    call = client.views_open(trigger_id=trigger_id, view=modal())

    if expected is None:
        assert (await call)["ok"]
    else:
        assert await error(call) == expected


async def test_a_bad_view_spends_no_trigger(sandbox: Sandbox, client: Any) -> None:
    trigger_id = trigger(sandbox)

    answer = await refusal(
        client.views_open(trigger_id=trigger_id, view=modal(title={"type": "mrkdwn"}))
    )

    assert answer["error"] == "invalid_arguments"
    assert "[json-pointer:/view/title" in answer["response_metadata"]["messages"][0]
    assert (await client.views_open(trigger_id=trigger_id, view=modal()))["ok"]


async def test_a_stack_holds_three_views(sandbox: Sandbox, client: Any) -> None:
    root = await opened(sandbox, client)

    roots = set[str]()
    for _ in range(2):
        trigger_id = trigger(sandbox, from_modal=True)
        pushed = await client.views_push(trigger_id=trigger_id, view=modal())
        roots.add(pushed["view"]["root_view_id"])

    assert roots == {root["id"]}
    trigger_id = trigger(sandbox, from_modal=True)
    fourth = client.views_push(trigger_id=trigger_id, view=modal())
    assert await error(fourth) == "push_limit_reached"


async def test_an_old_hash_conflicts(sandbox: Sandbox, client: Any) -> None:
    view = await opened(sandbox, client)

    newer = await client.views_update(
        view_id=view["id"], hash=view["hash"], view=modal()
    )
    stale = client.views_update(view_id=view["id"], hash=view["hash"], view=modal())

    assert newer["view"]["hash"] != view["hash"]
    assert await error(stale) == "hash_conflict"


async def test_what_was_entered_survives_an_update_of_the_view(
    sandbox: Sandbox, client: Any, ana: Person
) -> None:
    amount = field("amount", {"type": "plain_text_input", "initial_value": "1"})
    view = await opened(sandbox, client)
    actions = {"type": "actions", "block_id": "a", "elements": [button("check")]}
    await client.views_update(view_id=view["id"], view=modal(amount, actions))

    with pytest.raises(UserActionFailed):
        await ana.act_in_view("check", values={"amount": "449.50"})
    updated = await client.views_update(
        view_id=view["id"], view=modal(amount, field("why", {"type": "url_text_input"}))
    )

    values = updated["view"]["state"]["values"]
    assert values["amount"]["value"]["value"] == "449.50"
    assert values["why"]["value"]["value"] is None


async def test_a_home_view_has_its_hash(sandbox: Sandbox, client: Any) -> None:
    first = await client.views_publish(user_id="U0ANA", view=home("one"))
    second = await client.views_publish(
        user_id="U0ANA", view=home("two"), hash=first["view"]["hash"]
    )

    stale = client.views_publish(
        user_id="U0ANA", view=home("three"), hash=first["view"]["hash"]
    )
    assert await error(stale) == "hash_conflict"
    assert second["view"]["id"] == first["view"]["id"]
    nobody = client.views_publish(user_id="U0GONE", view=home())
    assert await error(nobody) == "invalid_arguments"
    sandbox.control.enable_home(enabled=False)
    disabled = client.views_publish(user_id="U0ANA", view=home())
    assert await error(disabled) == "not_enabled"


async def test_only_the_view_on_top_can_be_used(
    sandbox: Sandbox, client: Any, ana: Person
) -> None:
    below = await opened(sandbox, client)
    trigger_id = trigger(sandbox, from_modal=True)
    await client.views_push(trigger_id=trigger_id, view=modal(*card("x")))

    with pytest.raises(UserActionFailed) as hidden:
        await ana.act("view_submission", view_id=below["id"], values={})
    with pytest.raises(UserActionFailed) as foreign:
        await sandbox.person("U0BEN").act("view_closed", view_id=below["id"])

    assert hidden.value.error == foreign.value.error == "view_not_found"


async def test_view_closed_is_sent(sandbox: Sandbox, client: Any, ana: Person) -> None:
    await opened(sandbox, client, notify_on_close=True)
    await client.views_push(
        trigger_id=trigger(sandbox, from_modal=True), view=modal(callback_id="quiet")
    )
    sandbox.control.deliver_http(f"{sandbox.url}/nowhere")

    await ana.close_view(clear=True)

    (request,) = sandbox.requests
    assert b"view_closed" in request.body
    assert b"quiet" not in request.body
    assert await ana.view() is None


# An answer to a submission that Slack cannot use is shown and held against the app.


@pytest.fixture(params=["http"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def submitted(
    sandbox: Sandbox, app: RunningApp, ana: Person, answer: dict[str, Any]
) -> dict[str, str]:
    @app.on("view", "edit")
    async def save(ack: Any) -> None:
        await ack(**answer)

    await app.client.views_open(
        trigger_id=sandbox.slack.triggers.issue("U0ANA"), view=modal()
    )
    return await ana.submit()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            {"response_action": "errors", "errors": {"nope": "x"}},
            "errors_name_no_input_block",
        ),
        ({"response_action": "errors", "errors": {"amount": ""}}, "errors_are_empty"),
        ({"response_action": "shout"}, "unknown_response_action"),
        ({"response_action": "update", "view": home()}, "invalid_arguments"),
        (
            {"response_action": "push", "view": modal(*card("x" * 3001))},
            "invalid_arguments",
        ),
    ],
)
async def test_a_bad_answer_keeps_the_view_and_blames_the_app(
    sandbox: Sandbox, app: RunningApp, ana: Person, answer: dict[str, Any], why: str
) -> None:
    with pytest.raises(UserActionFailed) as caught:
        await submitted(sandbox, app, ana, answer)

    assert caught.value.error == "invalid_response"
    assert caught.value.answer["why"] == why
    assert await ana.view() is not None
    assert len(sandbox.problems) == 1
    assert why in sandbox.problems[0]
    (notice,) = await ana.notices()
    assert notice["text"] == "We had some trouble connecting. Try again?"


async def test_what_slacks_client_would_refuse_never_reaches_the_app(
    sandbox: Sandbox, app: RunningApp, ana: Person
) -> None:
    await app.client.views_open(
        trigger_id=sandbox.slack.triggers.issue("U0ANA"), view=modal()
    )

    errors = await ana.submit({"amount": None})

    assert errors == {"amount": "Please complete this required field."}
    assert sandbox.requests == []

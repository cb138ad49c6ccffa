"""An answer to a submission that Slack cannot use is shown and held against the app."""

from typing import Any

import pytest

from keyturn.sandbox.client import Person, UserActionFailed
from keyturn.sandbox.server import Sandbox
from tests.sandbox.blocks import card, home, modal
from tests.sandbox.bolt_app import RunningApp


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

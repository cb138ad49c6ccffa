"""An impossible action is explained in one sentence, where the person looks."""

from __future__ import annotations

import pytest

from keyturn.bot.ids import Action, Input
from keyturn.bot.listeners import choosing as batch
from tests.attacks.attacker import changed, click_payload, deliver, submission_payload
from tests.bot.bot_stack import CHANNEL, REFUND, Stack, says
from tests.bot.signed import post, signed_headers
from tests.bot.tampering import button_value, click_with
from tests.conftest import eventually

LONG = "x" * 30_000


async def test_a_command_in_another_workspace_is_refused_calmly(stack: Stack) -> None:
    async with stack.running() as bot:
        form = (
            b"team_id=T0OTHER&user_id=U0ANA&channel_id=C1&command=%2Fapprovals&text="
            b"&trigger_id=1&response_url=https%3A%2F%2Fx.example"
        )
        headers = signed_headers(stack.sandbox.signing_secret, form)

        status, answer = await post(bot.url, headers, form)

        assert (status, "another workspace" in answer) == (200, True)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("refuse", "expired_trigger_id"),
        ("rate_limit", "no_answer"),
        ("refuse", "token_revoked"),
        ("refuse", "push_limit_reached"),
    ],
)
async def test_a_failed_window_says_why(live: Stack, fault: str, error: str) -> None:
    card = await live.card(await live.refund())
    live.sandbox.faults.plan(fault, "views.open", seconds=7, error=error)

    await live.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.REJECT)

    await live.told("U0ANA", f"Slack says `{error}`")


async def test_a_late_window_says_how_the_call_ended(live: Stack) -> None:
    verdict = await live.refund(note=LONG)
    ana = await live.click(verdict, Action.VIEW_ALL)
    await ana.wait_for_view()
    key = live.keys.view(str((await ana.view() or {})["id"]))
    await live.store.conn.command("DEL", key)

    await ana.act_in_view(Action.PAGE_NEXT)

    await ana.wait_for_view(says("nothing was recorded"))


async def test_an_escalated_call_wants_a_tick_at_the_end(live: Stack) -> None:
    (verdict,) = await live.submit(("wire_money", {"n": 1}))
    ana = await live.click(verdict, Action.VIEW_ALL)
    view = await ana.wait_for_view()
    # A client that lets a person leave the tick out.
    box = {Input.READ_ALL.value: {"value": ""}}
    good = submission_payload(view, {Input.READ_ALL.value: box})
    _, answer = await deliver(live, good)
    assert "tick this box" in answer
    older = changed(good, "view.callback_id", "of an older bot")
    _, answer = await deliver(live, older)
    assert "form is not known any more" in answer

    errors = await ana.submit()
    assert list(errors) == [Input.READ_ALL]
    await ana.submit({Input.READ_ALL: ["yes"]})

    await ana.wait_for_view(says("1 of 2"))
    assert len((await live.item(verdict)).votes) == 1


async def test_a_verb_that_is_not_allowed_opens_no_form(live: Stack) -> None:
    (verdict,) = await live.submit(("no_edits", {"n": 1}))
    card = await live.card(verdict)
    value = button_value(live, await live.approval(verdict), Action.EDIT)

    await click_with(live, card, Action.EDIT, value)

    await live.told("U0ANA", "does not allow this")


async def test_the_home_tab_shows_a_call_without_deciding(live: Stack) -> None:
    verdict = await live.refund()
    approval = await live.approval(verdict)
    await live.card(verdict)
    on_home = {"container": {"type": "view"}, "view": {"id": "V0", "type": "home"}}

    async def clicked(action: Action) -> None:
        value = button_value(live, approval, action)
        button = click_payload("1.000001", action.value, value)
        await deliver(live, {**button, "channel": None, **on_home})

    await clicked(Action.VIEW_ALL)
    calls = live.sandbox.calls
    await eventually(lambda: any(one.method == "views.open" for one in calls))
    await clicked(Action.APPROVE)
    await live.bot_is_quiet()

    assert (await live.approval(verdict)).rev == 1


async def test_a_batch_that_is_not_shown_whole_is_not_approved_whole(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never_whole(*_: object) -> frozenset[int]:
        return frozenset({0})

    monkeypatch.setattr(batch, "decided_alone", never_whole)
    async with stack.running():
        first, _ = await stack.submit(
            ("process_refund", REFUND), ("send_email", {"to": "x"})
        )

        await stack.click(first, Action.APPROVE_ALL)

        await stack.told("U0ANA", "need their own review")

"""Several workspaces install one app; each has its own approvals and people."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from keyturn.bot.ids import Action
from keyturn.bot.web import Slack, SlackBody
from keyturn.gateway.approvals.ending import WORKSPACE_GONE
from keyturn.gateway.approvals.events import BY_GATEWAY, Event, EventName
from keyturn.gateway.approvals.record import approval_of
from keyturn.gateway.approvals.resume_value import answer_for
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import Verdict
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.ports import free_port
from tests.streams import audit_entries
from tests.workspaces_world import Side, World, refreshes, world

pytestmark = [
    pytest.mark.slow,
    # The SDK itself uses aiohttp's BasicAuth, which aiohttp 4 will drop.
    pytest.mark.filterwarnings("ignore:BasicAuth:DeprecationWarning"),
]

ORGANIZATION = "E0BIG"


@pytest.fixture
async def two(tmp_path: Path, store: Store) -> AsyncGenerator[World]:
    async with world(tmp_path, store, "A", "B") as opened:
        yield opened


@pytest.fixture
async def grid(tmp_path: Path, store: Store) -> AsyncGenerator[World]:
    """Give workspace A, and B and C of one organization."""
    async with world(tmp_path, store, "A", "B", "C", enterprise=ORGANIZATION) as opened:
        yield opened


async def reached(side: Side, verdict: Verdict, state: ItemState) -> None:
    async def is_so() -> bool:
        return (await side.item(verdict)).state is state

    await eventually(is_so)


async def installed(world: World, *places: str) -> None:
    for place in places:
        status, page = await world.browser.install(place)
        assert (status, "Thank you!" in page) == (200, True), page


async def events_of_app(store: Store) -> list[Event]:
    entries = await audit_entries(store.conn, store.keys_of_tenant("default"))
    names = {EventName.APP_INSTALLED, EventName.APP_REMOVED}
    return [event for event in entries if event.name in names]


async def test_two_workspaces_install_the_app_and_decide(two: World) -> None:
    a, b = two.sides["A"], two.sides["B"]
    async with two.running():
        await two.serves()
        await installed(two, a.team, b.team)
        await two.serves("A", "B")

        asked = {side.letter: await side.ask() for side in (a, b)}
        for side in (a, b):
            await side.approve(asked[side.letter])
            await reached(side, asked[side.letter], ItemState.AUTHORIZED)
        assert {event.tenant for event in await a.audit()} == {"tenant-a"}
        shown = [str(await side.ana.messages(side.channel)) for side in (a, b)]
    assert "ap_tenant-b" not in shown[0]
    assert "ap_tenant-a" not in shown[1]
    audited = await events_of_app(two.store)
    assert [event.actor for event in audited] == ["T0A/U0ANA", "T0B/U0ANA"]


async def test_a_button_of_one_workspace_decides_nothing_in_another(two: World) -> None:
    a, b = two.sides["A"], two.sides["B"]
    async with two.running():
        await installed(two, a.team, b.team)
        await two.serves("A", "B")
        verdict = await a.ask()
        card = await a.card(verdict)
        # The same message, as if somebody had copied it with its buttons and values.
        original = a.sandbox.workspace.messages[a.channel][str(card["ts"])]
        b.sandbox.workspace.put_message(replace(original, channel=b.channel))

        await b.ana.click(b.channel, original.ts, Action.APPROVE)

        await eventually(lambda: b.ana.ephemerals(b.channel))
        assert (await a.item(verdict)).state is ItemState.PENDING
        for command in (f"show {approval_of(verdict.item_id)[0]}", "list"):
            await b.ana.command("/approvals", command, b.channel)
        await b.ana.open_home()
        await b.ana.wait_for(lambda state: bool(state["home"]))
        assert "process_refund" not in str(await b.ana.ephemerals(b.channel))
        assert "process_refund" not in str(await b.ana.home())
        assert b.sandbox.problems == []
        # The other way round: a person of B signs for the bot of A.
        await a.approve(verdict)
        await reached(a, verdict, ItemState.AUTHORIZED)


async def test_waiting_calls_end_when_the_app_is_removed(two: World) -> None:
    a, b = two.sides["A"], two.sides["B"]
    async with two.running():
        await installed(two, a.team, b.team)
        await two.serves("A", "B")
        waiting, decided = await a.ask("t1"), await a.ask("t2")
        of_b = await b.ask()
        await a.approve(decided)
        await reached(a, decided, ItemState.AUTHORIZED)
        await a.card(waiting)

        await a.sandbox.control.uninstall_app()

        await reached(a, waiting, ItemState.WITHDRAWN)
        await two.serves("B")
        answer = answer_for(await a.item(waiting))
        assert answer
        assert answer.message == (
            "The Slack app was removed from the workspace, and nobody can decide there "
            "any more, so the call did not run."
        )
        # People decided this one, and it may run.
        assert (await a.item(decided)).state is ItemState.AUTHORIZED
        assert (await b.item(of_b)).is_pending
        [ended] = [e for e in await a.audit() if e.name is EventName.ITEM_WITHDRAWN]
        assert (ended.actor, ended.reason) == (BY_GATEWAY, WORKSPACE_GONE)
        removed = (await events_of_app(two.store))[-1]
        assert removed.name is EventName.APP_REMOVED
        assert removed.data["installation"] == a.team

        await installed(two, a.team)
        await two.serves("A", "B")
        again = await a.ask("t3")
        await a.approve(again)
        await reached(a, again, ItemState.AUTHORIZED)


async def test_a_late_event_about_a_replaced_token_removes_nothing(two: World) -> None:
    a = two.sides["A"]
    async with two.running():
        await installed(two, a.team)
        await two.serves("A")
        verdict = await a.ask()
        await a.card(verdict)
        a.sandbox.workspace.events = ()
        await a.sandbox.control.uninstall_app()
        a.sandbox.workspace.events = ("app_uninstalled",)

        await installed(two, a.team)
        await a.sandbox.control.announce("app_uninstalled")

        assert (await a.item(verdict)).is_pending
        await two.serves("A")
        await a.approve(verdict)
        await reached(a, verdict, ItemState.AUTHORIZED)


async def test_an_event_while_a_token_is_renewed_ends_nothing(two: World) -> None:
    a = two.sides["A"]
    async with two.running():
        await installed(two, a.team)
        await two.serves("A")
        verdict = await a.ask()
        await a.card(verdict)
        # Slack does not know the earlier token any more, and the new one is not stored.
        a.sandbox.control.fault("refuse", "auth.test", error="invalid_auth")

        await a.sandbox.control.announce("tokens_revoked", tokens={"bot": ["U0X"]})

        assert (await a.item(verdict)).is_pending
        names = [event.name for event in await events_of_app(two.store)]
        assert names == [EventName.APP_INSTALLED]


async def test_an_organization_has_one_installation(grid: World) -> None:
    a, b, c = grid.sides.values()
    async with grid.running():
        await installed(grid, a.team, ORGANIZATION)
        await grid.serves("A", "B", "C")

        asked = {side.letter: await side.ask() for side in (a, b, c)}
        for side in (a, b, c):
            await side.approve(asked[side.letter])
            await reached(side, asked[side.letter], ItemState.AUTHORIZED)
        # Payloads of views do not name the workspace.
        more = await b.ask("t2")
        card = await b.card(more)
        await b.ana.click(b.channel, str(card["ts"]), Action.REJECT)
        if await b.ana.view():
            await b.ana.submit()
        await reached(b, more, ItemState.REJECTED)
        await b.ana.open_home()
        await b.ana.wait_for(lambda state: bool(state["home"]))
        await b.ana.command("/approvals", "list", b.channel)
        await b.ana.message_with(b.channel, lambda message: message["ephemeral"])
        left = {side.letter: await side.ask("t3") for side in (a, b, c)}

        await c.sandbox.control.uninstall_app()

        for side in (b, c):
            await reached(side, left[side.letter], ItemState.WITHDRAWN)
        await grid.serves("A")
        assert (await a.item(left["A"])).is_pending


async def test_tokens_renew_once(two: World, monkeypatch: pytest.MonkeyPatch) -> None:
    a = two.sides["A"]
    a.sandbox.control.rotate_tokens(enabled=True)
    async with two.running():
        await installed(two, a.team)
        await two.serves("A")
        assert refreshes(two) == 0
    # More than the twelve hours of a token: both renew it at their first look.
    monkeypatch.setattr("keyturn.bot.workspaces.RENEWED_BEFORE_MIN", 13 * 60)
    async with AsyncExitStack() as bots:
        ports = (two.port, free_port())
        for bot in (two.running(port) for port in ports):
            await bots.enter_async_context(bot)

        async def both_serve() -> bool:
            alive = await two.store.processes.read(two.store.keys_of_tenant(a.tenant))
            return len(alive.alive) == len(ports)

        await eventually(both_serve)
        verdict = await a.ask()
        await a.approve(verdict)
        await reached(a, verdict, ItemState.AUTHORIZED)
        assert (await two.readiness())[1].keys() == {"T0B"}
    assert refreshes(two) == 1


async def test_a_bot_that_stops_keeps_a_token_that_slack_renews(
    two: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = two.sides["A"]
    a.sandbox.control.rotate_tokens(enabled=True)
    async with two.running():
        await installed(two, a.team)
        await two.serves("A")
    real, answered, goes_on = Slack.renew, asyncio.Event(), asyncio.Event()

    async def delayed(slack: Slack, **form: str) -> SlackBody:
        reply = await real(slack, **form)
        answered.set()
        await goes_on.wait()
        return reply

    with monkeypatch.context() as patched:
        patched.setattr("keyturn.bot.workspaces.RENEWED_BEFORE_MIN", 13 * 60)
        patched.setattr(Slack, "renew", delayed)
        async with two.running():
            await answered.wait()
            # The bot is stopping by then.
            asyncio.get_running_loop().call_later(0.2, goes_on.set)

    assert refreshes(two) == 1
    async with two.running():
        verdict = await a.ask()
        await a.approve(verdict)
        await reached(a, verdict, ItemState.AUTHORIZED)


async def test_a_refused_renewal_is_visible_until_the_app_is_installed_again(
    two: World, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = two.sides["A"], two.sides["B"]
    a.sandbox.control.rotate_tokens(enabled=True, life_s=3600)
    a.sandbox.control.fault("refuse", "oauth.v2.access", after=1, error="invalid_grant")
    with caplog.at_level(logging.ERROR):
        async with two.running():
            await installed(two, a.team)

            async def is_shown() -> bool:
                return "invalid_grant" in str((await two.readiness())[1].get(a.team))

            await eventually(is_shown)
            status, problems = await two.readiness()
            assert status == 200
            assert f"install the app again at {two.url}/slack/install" in str(
                problems[a.team]
            )
            a.sandbox.control.rotate_tokens(enabled=False)
            await installed(two, a.team, b.team)
            await two.serves("A", "B")
    assert "installation.not_renewed id=T0A error=invalid_grant" in caplog.text


async def test_a_workspace_that_cannot_start_delays_no_other(two: World) -> None:
    a, b = two.sides["A"], two.sides["B"]
    async with two.running():
        await installed(two, a.team)
        await two.serves("A")
    why = "two_factor_setup_required"  # an administrator ends it
    a.sandbox.control.fault("refuse", "auth.test", error=why, calls=1000)
    async with two.running():
        await eventually(lambda: a.sandbox.calls[-1].error == "refuse")
        await installed(two, b.team)
        await two.serves("B")
        assert "waits for Slack" in str((await two.readiness())[1][a.team])


async def test_a_dead_token_leaves_the_others_ready(two: World) -> None:
    a, b = two.sides["A"], two.sides["B"]
    async with two.running():
        await installed(two, a.team, b.team)
        await two.serves("A", "B")
        a.sandbox.workspace.events = ()
        await a.sandbox.control.uninstall_app()
        verdict = await a.ask()

        async def is_shown() -> bool:
            return "'token_revoked'" in str((await two.readiness())[1].get(a.team))

        await eventually(is_shown)
        status, problems = await two.readiness()
        assert status == 200
        assert "install the app again" in str(problems[a.team])
        assert (await a.item(verdict)).is_pending

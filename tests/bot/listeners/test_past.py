"""People find approvals and decisions by command and on Home, and only their own."""

from __future__ import annotations

import pytest

from keyturn.bot.cards.refs import when
from keyturn.bot.ids import Action, Input, View
from keyturn.gateway.approvals.record import short_id
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.protocol.wire import Verdict
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.store import keys
from keyturn.sandbox.json_types import JsonObject
from tests.bot.bot_stack import CHANNEL, POLICY, TEAM, Stack
from tests.bot.listeners.test_review_together import home, home_of, text_of, waiting


async def approved(stack: Stack, count: int) -> list[Verdict]:
    """Approve this many refunds as Ana, one after the other."""
    verdicts = await waiting(stack, count)
    for verdict in verdicts:
        await stack.click(verdict, Action.APPROVE)
    return verdicts


async def answered(stack: Stack, user: str, text: str) -> str:
    """Type a command, and return its whole answer."""
    return text_of(await reply(stack, user, text, CHANNEL))


async def test_history_names_who_decided_what_and_is_searched(live: Stack) -> None:
    await approved(live, 2)
    everything = await answered(live, "U0BEN", "history")
    one = await answered(live, "U0BEN", "history REFUND 78201")
    none = await answered(live, "U0BEN", "history 99999")
    by_ana = await answered(live, "U0ANA", "mine")
    by_ben = await answered(live, "U0BEN", "mine")

    assert everything.count("approved by <@U0ANA>") == 2
    assert everything.index("78201") < everything.index("78200"), "newest first"
    assert "78201" in one
    assert "78200" not in one
    assert "approved by <@U0ANA>" in by_ana
    for nothing in (none, by_ben):
        assert "No decision was found that you may read" in nothing


async def test_an_unreadable_approval_has_no_history(live: Stack) -> None:
    await approved(live, 1)
    chloe = await home(live, "U0CHLOE", shows="Waiting for you: 0")

    await chloe.act_in_home(Action.PAST)

    view = text_of(await chloe.wait_for_view())
    assert "No decision was found that you may read" in view
    assert "78200" not in view


async def test_the_home_tab_searches_a_persons_decisions(live: Stack) -> None:
    await approved(live, 2)
    ana = await home(live, shows="Waiting for you: 0")

    await ana.act_in_home(Action.PAST_MINE)
    view = await ana.wait_for_view(lambda v: v["callback_id"] == View.PAST_MINE)
    assert await ana.submit({Input.SEARCH: "78201"}) == {}
    found = text_of(await ana.wait_for_view())

    assert text_of(view).count("approved by <@U0ANA>") == 2
    assert found.count("approved by <@U0ANA>") == 1


async def test_a_search_finds_nothing_that_the_policy_hides(stack: Stack) -> None:
    described = "    description: "
    stack.put_policy(
        of=POLICY.replace(described, f"    redact: [args.note]\n{described}", 1)
    )
    async with stack.running():
        await stack.click(await stack.refund(note="for Hannelore"), Action.APPROVE)

        hidden = await answered(stack, "U0ANA", "history Hannelore")
        shown = await answered(stack, "U0ANA", "history 78291")

    assert "No decision" in hidden
    assert "78291" in shown


async def test_the_numbers_of_the_week_are_shown_to_a_member(live: Stack) -> None:
    nothing = await answered(live, "U0ANA", "stats")
    await approved(live, 2)
    numbers = await answered(live, "U0ANA", "stats")

    assert "No agent asked for a call in the last 7 days" in nothing
    assert "0 of 2 calls ran without a person" in numbers
    assert "process_refund" in numbers


SAME = "145163ba"


@pytest.fixture
def same_short_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give all approvals the same short id."""
    made = keys.approval_id

    def same(tenant: str, bits: str) -> str:
        return made(tenant, SAME + bits[len(SAME) :])

    monkeypatch.setattr(keys, "approval_id", same)


async def test_a_short_or_whole_id_finds_an_approval(live: Stack) -> None:
    verdict = await live.refund()
    approval = await live.approval(verdict)
    short = short_id(approval.id)

    for typed in (short, short.upper(), f"`{short}`", approval.id, approval.id[:20]):
        told = await answer(live, "U0ANA", f"show {typed}", CHANNEL)
        assert "Tool: `process_refund`." in told
        assert f"`{short}`" in told
        # In the reader's own time zone, as on the card.
        assert when(approval.expires_at_ms).text in told


@pytest.mark.usefixtures("same_short_id")
async def test_an_ambiguous_short_id_names_the_whole_ids(live: Stack) -> None:
    both = [
        (await live.approval(await live.refund(thread=thread))).id
        for thread in ("t1", "t2")
    ]

    told = await answer(live, "U0ANA", f"show {SAME}", CHANNEL)
    one = await answer(live, "U0ANA", f"show {both[1]}", CHANNEL)

    assert told.startswith(f"2 approvals have the id `{SAME}`.")
    assert all(f"`{approval}`" in told for approval in both)
    assert one.startswith("⏳ *Approval needed*.")


@pytest.mark.usefixtures("same_short_id")
async def test_what_a_person_may_not_read_makes_no_id_ambiguous(live: Stack) -> None:
    secret = await live.approval(await private_call(live))
    open_ = await live.approval(await live.refund(thread="other"))
    assert short_id(secret.id) == short_id(open_.id)

    told = await answer(live, "U0EVE", f"show {SAME}", CHANNEL)
    hidden = await answer(live, "U0EVE", f"show {secret.id}", CHANNEL)

    assert "Tool: `process_refund`." in told
    assert "lonely" not in told
    assert "no such approval" in hidden


@pytest.mark.usefixtures("same_short_id")
async def test_another_tenants_approval_is_not_found(stack: Stack) -> None:
    stack.agents = AgentService(stack.store, lambda: stack.policy, tenant="other")
    async with stack.running():
        verdict = await stack.refund()

        short = await answer(stack, "U0ANA", f"show {SAME}", CHANNEL)
        whole = await answer(
            stack, "U0ANA", f"show {verdict.item_id.rpartition('.')[0]}", CHANNEL
        )

        assert "no such approval" in short
        assert "no such approval" in whole


async def test_home_lists_only_what_waits_for_this_person(live: Stack) -> None:
    verdict = await live.refund()
    approval_id = (await live.approval(verdict)).id
    shown = {}
    for user in ("U0ANA", "U0CHLOE", "U0DAN"):
        person = live.actor(user)
        await person.open_home()
        state = await person.wait_for(lambda s: s if s["home"] else None)
        shown[user] = home_of(state)

    assert approval_id in shown["U0ANA"]
    assert "Waiting for you: 1" in shown["U0ANA"]
    assert "Nothing waits for you" in shown["U0CHLOE"]
    assert "Nothing waits for you" in shown["U0DAN"], "the requester decides nothing"
    assert "Waiting for others: 1" in shown["U0DAN"], "and may take it back"
    assert approval_id in shown["U0DAN"]
    assert "Waiting for others" not in shown["U0ANA"] + shown["U0CHLOE"]


async def test_who_has_more_than_one_look_reads_is_told_so(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keyturn.bot.listeners.reading.ENOUGH", 2)
    monkeypatch.setattr("keyturn.bot.listeners.reading.MAX_QUEUE", 2)
    for name in ("t1", "t2", "t3"):
        await stack.refund(thread=name)
    async with stack.running():
        ana = stack.actor("U0ANA")
        await ana.open_home()
        state = await ana.wait_for(lambda s: s if s["home"] else None)
        await ana.command("/approvals", "list", CHANNEL)
        await stack.told("U0ANA", "only the 2 approvals that expire first")

    assert "Waiting for you: 2 or more" in home_of(state)
    assert "only the 2 approvals that expire first were checked" in home_of(state)


async def test_an_unknown_command_is_answered_with_the_known(live: Stack) -> None:
    ana = live.actor("U0ANA")

    await ana.command("/approvals", "allow all", CHANNEL)

    told = await live.told("U0ANA", "I do not know this command")
    assert "/approvals list" in told
    assert "allow all" not in told


# The command and the Home tab show only what the person could read anyway.


GENERAL, PRIVATE = "C0GENERAL", "C0PRIVATE"
SECRET = POLICY.replace(
    "lonely: {tier: approve, channel: C0PRIVATE}",
    "lonely: {tier: approve, channel: C0PRIVATE, needs: senior}",
)


async def private_call(stack: Stack, requester: Person | None = None) -> Verdict:
    """Request a call in a private channel, with Ana and Chloé in it."""
    stack.put_policy(of=SECRET)
    stack.sandbox.control.join(PRIVATE, "U0KEYTURN")
    (verdict,) = await stack.submit(("lonely", {"to": "Jane"}), requester=requester)
    await stack.card(verdict, channel=PRIVATE)
    return verdict


async def reply(stack: Stack, user: str, words: str, channel: str) -> JsonObject:
    """Type a command, and return the message that answers it."""
    person = stack.actor(user)
    before = len(await person.ephemerals(channel))
    await person.command("/approvals", words, channel)

    def newest(state: JsonObject) -> list[JsonObject]:
        shown = next(c for c in state["channels"] if c["id"] == channel)["messages"]
        return [m for m in shown if m["ephemeral"]][before:]

    return (await person.wait_for(newest))[-1]


async def answer(stack: Stack, user: str, words: str, channel: str = GENERAL) -> str:
    return str((await reply(stack, user, words, channel))["text"])


@pytest.mark.parametrize("user", ["U0GUEST", "U0STRANGER"])
async def test_guests_and_strangers_are_refused_calmly(live: Stack, user: str) -> None:
    verdict = await live.refund()
    await live.card(verdict)
    approval = (await live.approval(verdict)).id

    for words in ("list", f"show {approval}"):
        told = await answer(live, user, words, CHANNEL)
        assert told == "Only members of this workspace can do this."


async def test_a_silent_slack_makes_nobody_a_guest(stack: Stack) -> None:
    stack.sandbox.faults.plan("http_500", "users.info", calls=99)
    async with stack.running():
        for words in ("list", "frozen", "delegate off"):
            told = await answer(stack, "U0ANA", words)
            assert told.startswith("Slack did not say who you are. Please try again")


EVE = Person(team=TEAM, user="U0EVE", name="eve")


@pytest.mark.parametrize(
    ("user", "channel", "requester", "reads"),
    [
        ("U0EVE", GENERAL, None, False),
        ("U0ANA", GENERAL, None, False),
        ("U0ANA", PRIVATE, None, True),
        ("U0EVE", GENERAL, EVE, True),
        ("U0CHLOE", GENERAL, None, True),
    ],
    ids=["other", "member elsewhere", "member there", "requester", "reviewer"],
)
async def test_a_call_of_a_private_channel_is_read_there_or_by_its_people(
    live: Stack, user: str, channel: str, requester: Person | None, *, reads: bool
) -> None:
    approval = (await live.approval(await private_call(live, requester))).id

    listed = await answer(live, user, "list", channel)
    shown = await answer(live, user, f"show {approval}", channel)
    unknown = await answer(live, user, f"show ap_default_{'0' * 32}", channel)

    assert (short_id(approval) in listed) is reads
    assert (short_id(approval) in shown) is reads
    assert (shown == unknown) is not reads
    assert "no such approval" in unknown


@pytest.mark.parametrize("field", ["at", "in"])
async def test_a_forged_place_of_a_card_opens_nothing(live: Stack, field: str) -> None:
    verdict, refund = await private_call(live), await live.refund(thread="t2")
    await live.drawn(verdict)
    await live.drawn(refund)
    approval = (await live.approval(verdict)).id
    other = await live.approval(refund)
    conn, keys, at = live.store.conn, live.keys, f"{GENERAL} 1.1"
    await conn.command("HSET", keys.card(other.id), "at", at)
    await conn.command("HDEL", keys.card(approval), "at")
    written = at if field == "at" else other.id
    await conn.command("HSET", keys.card(approval), field, written)

    listed = await answer(live, "U0EVE", "list")
    shown = await answer(live, "U0EVE", f"show {approval}")

    assert short_id(approval) not in listed
    assert "no such approval" in shown


@pytest.mark.parametrize(("named", "fallback"), [("#finance", ""), ("C0GONE", PRIVATE)])
async def test_who_reads_where_the_card_was_posted_reads_it_there(
    stack: Stack, named: str, fallback: str
) -> None:
    stack.put_policy((PRIVATE, f'"{named}"'), of=SECRET)
    stack.sandbox.control.join(PRIVATE, "U0KEYTURN")
    async with stack.running(fallback_channel=fallback):
        (verdict,) = await stack.submit(("lonely", {"to": "Jane"}))
        await stack.card(verdict, channel=PRIVATE)
        await stack.drawn(verdict)
        short = short_id((await stack.approval(verdict)).id)

        assert short in await answer(stack, "U0ANA", "list", PRIVATE)
        assert short not in await answer(stack, "U0EVE", "list", GENERAL)


async def test_a_list_that_may_be_incomplete_says_so(live: Stack) -> None:
    approval = (await live.approval(await private_call(live))).id
    await live.bot_is_quiet()
    live.sandbox.control.advance(61)
    live.sandbox.faults.plan("http_500", "usergroups.users.list", calls=99)

    listed = await answer(live, "U0CHLOE", "list")
    shown = await answer(live, "U0CHLOE", f"show {approval}")
    await live.actor("U0CHLOE").open_home()
    state = await live.actor("U0CHLOE").wait_for(lambda s: s if s["home"] else None)

    for text in (listed, shown, home_of(state)):
        assert "Slack did not say which user groups you are in" in text
        assert short_id(approval) not in text
    assert "Nothing waits for you" not in home_of(state)

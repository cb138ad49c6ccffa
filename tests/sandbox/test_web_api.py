"""The sandbox's Web API refuses what Slack's refuses, by the same names."""

from typing import Any

import aiohttp
import pytest

from keyturn.sandbox.client import Person
from keyturn.sandbox.clock import Clock
from keyturn.sandbox.rate_limits import LIMITS, UNLIMITED, RateLimits
from keyturn.sandbox.server import Sandbox
from keyturn.sandbox.tokens import TokenKind
from keyturn.sandbox.web_api import APP_METHODS, METHODS
from tests.sandbox.blocks import card, section
from tests.sandbox.bolt_app import RunningApp, error, new_client, refusal

APPROVALS = "C0APPROVALS"


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("xoxb-unknown", "invalid_auth"),
        ("revoked", "token_revoked"),
        ("expired", "token_expired"),
        ("app", "not_allowed_token_type"),
    ],
)
async def test_a_token_that_is_not_the_bots_is_refused(
    sandbox: Sandbox, token: str, expected: str
) -> None:
    tokens = sandbox.slack.tokens
    known = {"app": sandbox.app_token, "revoked": tokens.issue(TokenKind.BOT)}
    known["expired"] = tokens.issue(TokenKind.BOT, expires_at=sandbox.clock.now() - 1)
    tokens.revoke(known["revoked"])
    client = new_client(sandbox, known.get(token, token))

    assert await error(client.auth_test()) == expected
    assert sandbox.calls[-1].error == expected


async def test_a_missing_scope_is_named(sandbox: Sandbox, client: Any) -> None:
    sandbox.control.scopes(["chat:write"])

    answers = [
        await refusal(client.users_info(user="U0ANA")),
        await refusal(client.conversations_members(channel=APPROVALS)),
        await refusal(client.usergroups_users_list(usergroup="S0SUPPORT")),
    ]
    token = await client.auth_test()

    assert {answer["error"] for answer in answers} == {"missing_scope"}
    assert {answer["provided"] for answer in answers} == {"chat:write"}
    assert token.headers["X-OAuth-Scopes"] == "chat:write"
    needed = [answer["needed"] for answer in answers]
    assert needed == ["users:read", "channels:read", "usergroups:read"]


@pytest.mark.parametrize(
    ("channel", "expected"),
    [
        ("C0NOWHERE", "channel_not_found"),
        ("#nowhere", "channel_not_found"),
        ("C0PRIVATE", "channel_not_found"),
        ("U0GONE", "channel_not_found"),
        ("C0GENERAL", "not_in_channel"),
        ("C0APPROVALS", "is_archived"),
    ],
)
async def test_the_bot_posts_only_where_it_may(
    sandbox: Sandbox, client: Any, channel: str, expected: str
) -> None:
    sandbox.control.leave("C0GENERAL", "U0KEYTURN")
    sandbox.control.archive(APPROVALS)

    assert await error(client.chat_postMessage(channel=channel, text="hi")) == expected


async def test_a_bad_block_has_a_pointer(client: Any) -> None:
    blocks = [section("x" * 3001)]

    answer = await refusal(
        client.chat_postMessage(channel=APPROVALS, text="t", blocks=blocks)
    )

    assert answer["error"] == "invalid_blocks"
    (line,) = answer["errors"]
    assert line.endswith("[json-pointer:/blocks/0/text/text]")
    assert answer["response_metadata"]["messages"] == [f"[ERROR] {line}"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({}, "no_text"),
        ({"text": "t", "blocks": [section("x" * 2900)] * 5}, "msg_blocks_too_long"),
        ({"text": "t", "blocks": {"type": "divider"}}, "invalid_blocks_format"),
        ({"text": "t", "blocks": "[not json"}, "invalid_blocks_format"),
        ({"text": "", "blocks": ""}, "no_text"),
        ({"text": "t", "metadata": {"event_type": "x"}}, "invalid_metadata_format"),
        ({"text": "t", "markdown_text": "t"}, "markdown_text_conflict"),
        ({"text": "t", "thread_ts": "1.000000"}, "thread_not_found"),
        ({"text": "t", "attachments": [{"text": "old"}]}, "invalid_arguments"),
    ],
)
async def test_a_post_that_slack_would_refuse_is_refused(
    client: Any, content: dict[str, Any], expected: str
) -> None:
    call = client.api_call("chat.postMessage", json={"channel": APPROVALS, **content})

    assert await error(call) == expected


async def test_only_the_bots_own_lasting_messages_can_be_changed(
    sandbox: Sandbox, client: Any, ana: Person
) -> None:
    theirs = await ana.say(APPROVALS, "mine")
    secret = await client.chat_postEphemeral(
        channel=APPROVALS, user="U0ANA", text="only you"
    )

    async def updating(ts: str) -> str:
        return await error(client.chat_update(channel=APPROVALS, ts=ts, text="x"))

    assert await updating(theirs) == "cant_update_message"
    assert await updating("1.000000") == "message_not_found"
    assert await updating(secret["message_ts"]) == "message_not_found"
    deleting = client.chat_delete(channel=APPROVALS, ts=theirs)
    assert await error(deleting) == "cant_delete_message"
    sandbox.control.archive(APPROVALS)
    assert await updating(theirs) == "is_inactive"


async def test_an_update_without_blocks_drops_them(client: Any, ana: Person) -> None:
    posted = await client.chat_postMessage(
        channel=APPROVALS, text="t", blocks=card("one")
    )

    await client.chat_update(channel=APPROVALS, ts=posted["ts"], text="plain")

    (message,) = await ana.messages(APPROVALS)
    assert (message["text"], message["blocks"]) == ("plain", None)
    assert message["edited"] is True


async def test_a_table_stays_with_its_message(client: Any, ana: Person) -> None:
    rows = [[{"type": "raw_text", "text": "1"}]]
    blocks = [section("many"), {"type": "table", "rows": rows}]
    posted = await client.chat_postMessage(channel=APPROVALS, text="t", blocks=blocks)

    async def shown(**more: Any) -> list[str]:
        await client.chat_update(
            channel=APPROVALS, ts=posted["ts"], text="t", blocks=[section("a")], **more
        )
        (message,) = await ana.messages(APPROVALS)
        return [block["type"] for block in message["blocks"]]

    assert await shown() == ["section", "table"]
    assert await shown(attachments=[]) == ["section"]


async def test_a_rich_text_message_stays_one(client: Any) -> None:
    element = {"type": "rich_text_section", "elements": [{"type": "text", "text": "a"}]}
    rich = [{"type": "rich_text", "elements": [element]}]
    posted = await client.chat_postMessage(channel=APPROVALS, text="t", blocks=rich)

    update = client.chat_update(
        channel=APPROVALS, ts=posted["ts"], text="t", blocks=[section("b")]
    )

    assert await error(update) == "block_mismatch"


async def test_a_deleted_message_has_no_permalink(client: Any, ana: Person) -> None:
    posted = await client.chat_postMessage(channel=APPROVALS, text="t")
    link = await client.chat_getPermalink(channel=APPROVALS, message_ts=posted["ts"])

    await client.chat_delete(channel=APPROVALS, ts=posted["ts"])

    assert link["permalink"].endswith("C0APPROVALS/p" + posted["ts"].replace(".", ""))
    assert await ana.messages(APPROVALS) == []
    again = client.chat_getPermalink(channel=APPROVALS, message_ts=posted["ts"])
    assert await error(again) == "message_not_found"


# Calls that come faster than Slack allows are rate limited.


def taken(rates: RateLimits, method: str, calls: int, channel: str = "") -> int:
    """Return how many of so many calls may pass."""
    return sum(rates.take(method, channel) is None for _ in range(calls))


def test_every_method_has_a_limit_or_is_named_unlimited() -> None:
    assert set(LIMITS) | set(UNLIMITED) == set(METHODS) | APP_METHODS


@pytest.mark.parametrize(
    ("method", "allowed"),
    [("usergroups.users.list", 20), ("chat.update", 50), ("views.open", 100)],
)
def test_a_tier_allows_its_figure_in_any_minute(method: str, allowed: int) -> None:
    clock = Clock()
    rates = RateLimits(clock)

    assert taken(rates, method, allowed + 5) == allowed
    clock.advance(30)
    assert taken(rates, method, 5) == 0
    clock.advance(31)
    assert taken(rates, method, allowed + 5) == allowed


def test_posting_is_counted_per_channel_one_a_second_in_bursts_of_ten() -> None:
    clock = Clock()
    rates = RateLimits(clock)

    assert taken(rates, "chat.postMessage", 15, "C1") == 10
    assert taken(rates, "chat.postMessage", 15, "C2") == 10
    passed = 0
    for _ in range(30):
        clock.advance(1)
        passed += taken(rates, "chat.postMessage", 1, "C1")
    assert 20 <= passed <= 30


# A response URL takes five posts in thirty minutes, into one conversation.


@pytest.fixture
async def url(http_app: RunningApp, ana: Person) -> str:
    """Return the response URL of a click on a card."""
    http_app.note_clicks("approve")

    posted = await http_app.client.chat_postMessage(
        channel=APPROVALS, text="card", blocks=card("one")
    )
    await ana.click(APPROVALS, posted["ts"], "approve")
    return str(http_app.heard[0]["response_url"])


async def respond(url: str, **body: Any) -> tuple[int, str | None]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json=body) as response,
    ):
        return response.status, (await response.json()).get("error")


async def test_a_response_is_private(sandbox: Sandbox, ana: Person, url: str) -> None:
    await respond(url, text="for you")
    await respond(url, text="for all", response_type="in_channel")

    ben = sandbox.person("U0BEN")
    mine = [m["text"] for m in await ana.messages(APPROVALS)]
    assert mine == ["card", "for you", "for all"]
    assert [m["text"] for m in await ben.messages(APPROVALS)] == ["card", "for all"]


async def test_a_response_replaces_or_deletes(ana: Person, url: str) -> None:
    await respond(url, text="new", replace_original=True)
    (replaced,) = await ana.messages(APPROVALS)
    await respond(url, delete_original=True)
    again = await respond(url, text="newer", replace_original=True)

    assert (replaced["text"], replaced["blocks"]) == ("new", None)
    assert await ana.messages(APPROVALS) == []
    assert again == (200, None), "it is not said that nothing was replaced"


async def test_a_sixth_or_late_post_is_refused(sandbox: Sandbox, url: str) -> None:
    for _ in range(5):
        assert await respond(url, text="t") == (200, None)

    assert await respond(url, text="t") == (404, "used_url")
    sandbox.clock.advance(30 * 60 + 1)
    assert await respond(url, text="t") == (404, "expired_url")
    unknown = f"{sandbox.url}/response/nope"
    assert await respond(unknown, text="t") == (404, "expired_url")

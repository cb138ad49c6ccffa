"""Text of agents, customers, tools and reviewers through a whole life, on the wire.

The checked text is the one that the bot really sent to Slack, not a builder's output.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from keyturn.bot.ids import COMMAND, Action, View
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.protocol.records import ItemState, Result
from keyturn.gateway.protocol.strict_json import JsonObject as Args
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef, Verdict
from keyturn.sandbox.json_types import JsonObject, as_object, as_objects
from tests.attacks.attacker import (
    click_payload,
    deliver,
    submission_payload,
    value_of,
)
from tests.attacks.test_tampered_store import claim_of
from tests.bot.bot_stack import CHANNEL, POLICY, Stack, has_button
from tests.conftest import eventually

BEGIN, END = "EVIL", "LIVE"
MARKUP = [
    "<!channel> <!here> @here @channel <!subteam^S0SUPPORT>",
    "<@U0ANA> <#C0GENERAL> <https://evil.example|click here>",
    "https://evil.example/pay mailto:a@evil.example www.evil.example",
    "*bold* _it_ ~no~ `code` ```block``` > quote\n> quote :rotating_light:",
    "&lt;!channel&gt; &amp; <<@U0ANA>> </script><b>",
    "{who} {at} {0} %s $(x) {{args.amount}} \\u0041 \x1b[31m",
    "\u202eoverride\u202c \u2066isolate\u2069 \u200bzero\u200d\ufeff \u00a0nbsp\u3164",
    "tag\U000e0041\U000e007f pua\ue000 vs\ufe0f ga\u034f sep\u2028\u2029 nul\x00\x07",
    "zalgo"
    + "\u0301" * 40
    + " \U0001f468\u200d\U0001f469\u200d\U0001f467 \u0440ay\u0440al",
    "\n\n\n\n\n\n\n\n  amount  1.00\n\n" + " " * 200 + "Approve",
]
EVIL = [f"{BEGIN}{number} {text} {END}" for number, text in enumerate(MARKUP)]
SHOWN = {"text", "initial_value", "accessibility_label", "alt_text"}


def evil_policy() -> str:
    """Return the policy with roles and a description that show hostile values."""
    return POLICY.replace(
        "  no_edits:", '  "EVIL~tool~LIVE": {description: "{args.note}"}\n  no_edits:'
    )


@pytest.mark.slow
async def test_no_text_of_strangers_is_markup(stack: Stack, unlimited: None) -> None:
    people = stack.sandbox.workspace
    people.users["U0BEN"] = replace(people.users["U0BEN"], real_name=EVIL[1])
    stack.put_policy(of=evil_policy())
    async with stack.running():
        for number, text in enumerate(EVIL):
            await whole_life(stack, number, text)
        await nothing_is_left(stack)

    sent = [call.arguments for call in stack.sandbox.calls]
    found = [place for arguments in sent for place in texts(arguments)]
    assert sum(BEGIN in text for _, _, text in found) > 100, "the attack came through"
    for kind, key, text in found:
        if BEGIN not in text and END not in text:
            continue
        assert kind in {"plain_text", "text", "raw_text", "input", "button"}, (
            kind,
            text,
        )
        assert key != "fallback", text
        if key != "initial_value":
            assert not hidden_in(text), (kind, text)
        if BEGIN in text and END not in text:
            assert "…" in text or "⟦" in text or key == "initial_value", text
    assert all(call.error in {None, "ratelimited"} for call in stack.sandbox.calls)


async def whole_life(stack: Stack, number: int, text: str) -> None:
    """Put hostile text into every writable place, in every state."""
    thread = f"t{number}"
    args: Args = {"note": text, text: text, "deep": [{text: [text]}], "order_id": text}
    agent = f"support {text}"
    ref = TurnRef(agent=agent, thread=thread, message_id=text)
    names = (f"{BEGIN}~tool~{END}", text, "send_email", "send_email")
    calls = tuple(
        ProposedCall(tool=name, args=args, tool_call_id=f"{text}{place}")
        for place, name in enumerate(names)
    )
    schema: Args = {
        "type": "object",
        "title": text,
        "description": text,
        "properties": {
            "note": {"type": "string", "title": text, "description": text},
            "order_id": {"enum": [text, "b"], "title": text},
        },
    }
    turn = Turn(ref=ref, calls=calls, says=text, schemas=dict.fromkeys(names, schema))
    verdicts = await stack.agents.submit(turn)
    edit, reject, respond, approve = verdicts
    await say_last_words(stack, agent, text)
    await stack.actor("U0BEN").command(COMMAND, f"show {text}", CHANNEL)
    await stack.actor("U0GUEST").say(CHANNEL, f"@keyturn {text}")
    card = await stack.card(edit, timeout_s=30)
    await form(stack, card, edit, Action.EDIT, text)
    await form(stack, card, reject, Action.REJECT, text)
    await form(stack, card, respond, Action.RESPOND, text)
    await form(stack, card, approve, Action.VIEW_ALL, text)
    for verdict in (edit, approve):
        item = (await stack.approval(verdict)).items[index_of(verdict)]
        if item.state is ItemState.AUTHORIZED:
            claim = await stack.agents.claim(await claim_of(stack, verdict))
            assert claim.kind == "new", claim
            result = Result(ok=verdict is edit, summary=text, payload=text)
            await stack.agents.finish(verdict.item_id, claim.fence, result)


async def say_last_words(stack: Stack, agent: str, text: str) -> None:
    """Make an agent end its run, and another auto-approved call run, with this text."""
    outbox = stack.store.outbox(stack.keys, reader="")
    event = Event(name=EventName.RUN_FINISHED, tenant="default", agent=agent)
    data = {"channel": CHANNEL, "text": text}
    await outbox.put(event.with_(thread=text, channel=CHANNEL, data=data))
    ran = event.with_(name=EventName.CALL_RAN, tier="notify", tool=text)
    await outbox.put(ran.with_(thread=text, channel=CHANNEL))
    failed = event.with_(name=EventName.RUN_FAILED, reason=text)
    await outbox.put(failed.with_(thread=text, channel=CHANNEL))


def index_of(verdict: Verdict) -> int:
    return int(verdict.item_id.rpartition(".")[2])


async def form(
    stack: Stack, card: JsonObject, verdict: Verdict, action: Action, text: str
) -> None:
    """Open a form as Ben, and submit hostile words in it."""
    approval, index = await stack.approval(verdict), index_of(verdict)
    value = value_of(stack, approval, action, index)
    await has_read(stack, verdict)
    before = len(stack.sandbox.calls)
    click = click_payload(card["ts"], action, value, user="U0BEN")
    await deliver(stack, {**click, "trigger_id": trigger(stack)})
    opened = [c for c in stack.sandbox.calls[before:] if c.method == "views.open"]
    assert opened, action
    ben = stack.actor("U0BEN")
    view = as_object(await ben.wait_for_view())
    values: JsonObject = {}
    for block in as_objects(view["blocks"]):
        inner = as_object(block.get("element"))
        if inner.get("type") == "plain_text_input":
            values[str(block["block_id"])] = f"{inner.get('initial_value', '')}{text}"
    if view.get("submit"):
        await ben.submit(values)
    if await ben.view():
        await ben.close_view(clear=True)


async def has_read(stack: Stack, verdict: Verdict) -> None:
    """Note that Ben has seen every page, as if he had turned them one by one."""
    approval, index = await stack.approval(verdict), index_of(verdict)
    reader = f"U0BEN {index} {approval.items[index].action_hash}"
    for page in range(20):
        await stack.store.read_pages.opened_page(
            stack.keys, approval.id, reader=reader, page=page, pages=20
        )


def trigger(stack: Stack) -> str:
    return stack.sandbox.slack.triggers.issue("U0BEN")


def texts(arguments: JsonObject) -> Iterator[tuple[str, str, str]]:
    """Yield (type of the object, key, text) of everything that a person may read."""
    if isinstance(arguments.get("text"), str):
        yield "fallback", "fallback", str(arguments["text"])
    for root in ("blocks", "view"):
        yield from walk(arguments.get(root))
    if "metadata" in arguments:
        text = json.dumps(arguments["metadata"], ensure_ascii=False)
        yield "metadata", "fallback", text


def walk(node: object) -> Iterator[tuple[str, str, str]]:
    if isinstance(node, dict):
        members = cast("dict[str, Any]", node)
        kind = str(members.get("type", ""))
        for key, member in members.items():
            if key in SHOWN and isinstance(member, str):
                yield ("input" if key == "initial_value" else kind), key, member
            else:
                yield from walk(member)
    elif isinstance(node, list):
        for each in cast("list[object]", node):
            yield from walk(each)


def hidden_in(text: str) -> str:
    """Return the invisible parts of a text; emoji are visible with all their parts."""
    text = text.replace("\U0001f468\u200d\U0001f469\u200d\U0001f467", "")
    kinds = {"Cc", "Cf", "Co", "Cn", "Zl", "Zp"}
    known = "\n\t\ufe0f"
    blank = "\u00a0\u034f\u115f\u1160\u3164\uffa0"
    return "".join(
        each
        for each in text
        if each not in known and (unicodedata.category(each) in kinds or each in blank)
    )


async def nothing_is_left(stack: Stack) -> None:
    """Wait until the publisher has posted everything."""

    async def is_quiet() -> bool:
        reply = await stack.store.conn.command("XINFO", "GROUPS", stack.keys.outbox)
        for group in cast("list[list[object]]", reply):
            facts = dict(zip(group[::2], group[1::2], strict=True))
            if facts[b"name"] == b"slack:default":
                return facts[b"pending"] == 0 and facts[b"lag"] == 0
        return False

    await eventually(is_quiet, within_s=60)


SIZES = [1, 60, 61, 900, 2_400, 2_900, 3_100, 5_000, 9_100, 30_000, 60_000]


@pytest.mark.slow
async def test_an_approver_saw_every_character(stack: Stack, unlimited: None) -> None:
    """The end of the text differs; a card that hides it offers no Approve."""
    async with stack.running():
        for size in SIZES:
            tail = f"<{size}-tail>"
            note = ("lorem ipsum " * 6_000)[:size] + tail
            (verdict,) = await stack.submit(
                ("send_email", {"note": note}), thread=f"t{size}"
            )
            card = await stack.card(verdict, timeout_s=30)
            shown = str(card["blocks"])
            approval = await stack.approval(verdict)

            if has_button(card, Action.APPROVE):
                assert tail in shown, size
                continue
            # Its seal is secret; even with it the last page has to be read.
            value = value_of(stack, approval, View.DETAILS)
            view = {
                "id": "V0NONE",
                "callback_id": View.DETAILS.value,
                "private_metadata": value,
            }
            await deliver(stack, submission_payload(view, {}))
            assert (await stack.approval(verdict)).rev == 1, size
            assert size > 60


def deep() -> Any:
    """Return an argument that is nested deeper than any reader follows."""
    nested: Any = "x"
    for _ in range(70):
        nested = [nested]
    return nested


@pytest.mark.parametrize(
    "more",
    [
        [],
        [deep(), float("nan"), 2**70, "\ud800"],
    ],
)
async def test_too_large_or_no_json_is_denied(stack: Stack, more: list[Any]) -> None:
    notes: list[Any] = ["x" * 70_000, {"a" * 65_500: 1}, *more]
    async with stack.running():
        verdicts = [
            (await stack.submit(("send_email", {"note": note}), thread=f"t{number}"))[0]
            for number, note in enumerate(notes)
        ]

        assert {verdict.kind for verdict in verdicts} == {"deny"}
        assert not [c for c in stack.sandbox.calls if c.method == "chat.postMessage"]

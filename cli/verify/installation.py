"""Guarantees about the user's own policy, keys, store and Slack workspace.

Those about Slack need a channel, so they are only proven on request. The others change
nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from functools import partial

from pydantic import JsonValue

from keyturn.bot.cards.approval import card
from keyturn.bot.cards.frame import Frame
from keyturn.bot.web import Slack, text_at
from keyturn.cli.verify.guarantee import Check, Proof, expect, guarantee
from keyturn.cli.verify.scratch import Call, Scratch
from keyturn.gateway.client.outgoing import outgoing
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.policy.evaluate import evaluate
from keyturn.gateway.policy.rules import ToolRule
from keyturn.gateway.protocol.records import Tier
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.store.connection.durability import ensure_durable
from keyturn.gateway.trust.key_folder import Keyring, Role

OWN = "Your policy, keys and store"


def examples(rule: ToolRule) -> Iterator[JsonObject]:
    """Return arguments of a tool: none, and each one at the ends of its range."""
    yield {}
    found = (rule.args_schema or {}).get("properties")
    for name, shape in found.items() if isinstance(found, dict) else ():
        ends: list[JsonValue] = [0, 10**12, "a", None]
        if isinstance(shape, dict):
            ends += [shape.get("minimum"), shape.get("maximum")]
        yield from ({name: value} for value in ends)


@guarantee(OWN)
async def no_call_below_its_tier(scratch: Scratch) -> None:
    """No call of a listed tool runs below the tier that your policy lists for it."""
    for place, rule in scratch.policy.tool_rules():
        agent, tool = str(place[1] if place[0] == "agents" else ""), str(place[-1])
        # A run may ask for less only where the policy says so.
        asked = None if rule.overridable else Tier.AUTO
        decide = partial(evaluate, scratch.policy, agent=agent, tool=tool)
        for args in examples(rule):
            found = decide(args=args, requested_tier=asked).tier
            is_low = rule.tier and found.rank < rule.tier.rank
            expect(not is_low, f"{tool} with {args} is {found}.")


@guarantee(OWN)
async def unlisted_tool(scratch: Scratch) -> None:
    """A tool that your policy does not list has at least its default tier."""
    least = scratch.policy.defaults.tier
    for agent in ("", *scratch.policy.agents):
        found = evaluate(scratch.policy, agent=agent, tool=scratch.tenant, args={})
        expect(found.tier.rank >= least.rank, f"It is {found.tier}, not {least}.")


@guarantee(OWN)
async def private_keys(scratch: Scratch) -> None:
    """Only the user of this process can use the signing keys and the sealing secret."""
    scratch.settings.secret_keys()
    for role in Role:
        Keyring.of(scratch.settings).verifying(role)


@guarantee(OWN)
async def durable(scratch: Scratch) -> None:
    """The store's settings keep every decision that it has acknowledged."""
    await ensure_durable(scratch.side().store.conn)


_NOTE = "A test by 'keyturn verify'. This card is deleted in a moment."


def card_in(channel: str, token: str) -> tuple[Proof, Check]:
    """Return the guarantee that a card in a channel can be posted, updated and deleted.

    Raises:
        SettingsError: the settings have no bot token.
    """
    if not token:
        raise SettingsError("--slack needs the bot's token: set SLACK_BOT_TOKEN.")
    sentence = f"A card in {channel} can be posted, updated and deleted."
    proof = Proof(name="slack_card", group="Slack", sentence=sentence)
    return proof, partial(_posted, channel=channel, token=token)


async def _posted(scratch: Scratch, *, channel: str, token: str) -> None:
    call = await scratch.ask(note=_NOTE)
    async with outgoing() as session:
        url = scratch.settings.slack.api_url
        slack = Slack(token, api_url=url, session=session)
        posted = await slack.call(
            "chat.postMessage", channel=channel, **await _card(call)
        )
        place = {"channel": text_at(posted, "channel"), "ts": text_at(posted, "ts")}
        try:
            await call.decide()
            await slack.call("chat.update", **place, **await _card(call))
        finally:
            await slack.call("chat.delete", **place)


async def _card(call: Call) -> dict[str, object]:
    # A random key: no bot accepts a click on this card.
    key, now_ms = secrets.token_bytes(32), await call.scratch.now_ms()
    shown = card(Frame(await call.approval(), key, "T0VERIFY", now_ms))
    return {"text": shown.text, "blocks": [*shown.blocks], "metadata": shown.metadata}

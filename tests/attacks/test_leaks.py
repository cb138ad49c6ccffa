"""Arguments, redacted values and secrets stay where they belong."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from keyturn.bot.ids import Action, Input
from keyturn.cli.main import run
from keyturn.gateway.protocol.records import ItemState, Result
from keyturn.gateway.store.runs.jobs import Job
from keyturn.gateway.store.store import Store
from keyturn.sandbox.json_types import as_object, as_objects
from tests.attacks.attacker import deliver_bytes
from tests.attacks.test_hostile_texts import nothing_is_left
from tests.attacks.test_tampered_store import claim_of
from tests.bot.bot_stack import CHANNEL, POLICY, Stack
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.resume_stack import Stack as Shop
from tests.resume.resume_stack import open_stack
from tests.store_secrets import ENV

CANARY = "CANARY4111111111111111"
HIDDEN = "HIDDEN5500005555555559"
REDACTING = POLICY.replace(
    "  no_edits:",
    """  charge:
    description: "Charge {args.card.number} for {args.note}"
    redact: [args.card.number, args.pins.*, args.token]
    args_schema:
      type: object
      properties:
        note: {type: string, maxLength: 60}
        token: {type: string, pattern: "^H.*9$"}
        card: {type: object, properties: {number: {type: string}}}
        pins: {type: array, items: {type: string}}
        amount: {type: number, maximum: 100}
  no_edits:""",
)
CHARGE: Any = {
    "note": CANARY,
    "token": HIDDEN,
    "card": {"number": HIDDEN},
    "pins": [HIDDEN, HIDDEN],
    "amount": 1,
}


def logged(caplog: pytest.LogCaptureFixture) -> str:
    """Return every line of the log, with its traceback, as an operator would see it."""
    formatter = logging.Formatter("%(name)s %(message)s")
    return "\n".join(formatter.format(record) for record in caplog.records)


async def whole_life(stack: Stack) -> None:
    """Open, misedit, edit, run and fail a call with secrets in it; reject another."""
    (verdict,) = await stack.submit(("charge", CHARGE))
    card = await stack.card(verdict)
    ts, ana = str(card["ts"]), stack.actor("U0ANA")
    await ana.click(CHANNEL, ts, Action.VIEW_ALL)
    await ana.wait_for_view()
    await ana.close_view(clear=True)
    await ana.click(CHANNEL, ts, Action.EDIT)
    view = await ana.wait_for_view()
    amount = field(view, "amount")
    assert await ana.submit({amount: "900"})
    assert await ana.submit({amount: "90", Input.REASON.value: "less"}) == {}
    claim = await stack.agents.claim(await claim_of(stack, verdict))
    assert claim.kind == "new"
    result = Result(ok=False, summary="it failed", payload=json.dumps(CHARGE))
    await stack.agents.finish(verdict.item_id, claim.fence, result)
    (other,) = await stack.submit(("charge", CHARGE), thread="t2")
    second = await stack.card(other)
    await ana.click(CHANNEL, str(second["ts"]), Action.REJECT)
    await ana.wait_for_view()
    await ana.submit({Input.REASON.value: "no"})
    assert (await stack.item(other)).state is ItemState.REJECTED
    await nothing_is_left(stack)


def field(view: Any, name: str) -> str:
    """Return the block id of the input for an argument."""
    for block in as_objects(view["blocks"]):
        label = as_object(block.get("label"))
        if block["type"] == "input" and name in str(label.get("text", "")).lower():
            return str(block["block_id"])
    raise LookupError(name)


@pytest.mark.slow
async def test_no_argument_and_no_secret_reaches_a_log_an_event_or_a_fallback(
    stack: Stack, unlimited: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    stack.put_policy(of=REDACTING)
    async with stack.running() as bot:
        await whole_life(stack)
        await deliver_bytes(stack, b"payload=" + CANARY.encode())
        assert bot.url

    sent = str([call.arguments for call in stack.sandbox.calls])
    assert CANARY in sent, "what is not hidden is shown"
    assert HIDDEN not in sent
    conn, keys = stack.store.conn, stack.keys
    streams = [
        str(await conn.command("XRANGE", stream, "-", "+"))
        for stream in (keys.outbox, keys.audit, keys.jobs)
    ]
    fallbacks = [
        json.dumps([call.arguments.get("text"), call.arguments.get("metadata")])
        for call in stack.sandbox.calls
    ]
    names = str(await conn.command("KEYS", "*"))
    secrets = [stack.sandbox.signing_secret, stack.sandbox.bot_token]
    for secret in (CANARY, HIDDEN):
        assert secret not in logged(caplog)
        assert all(secret not in stream for stream in streams)
        assert all(secret not in fallback for fallback in fallbacks)
        assert secret not in names
    for secret in [*secrets, stack.config.seal_key.hex(), str(stack.config.seal_key)]:
        assert secret not in logged(caplog)
        assert secret not in sent
        assert secret not in repr(stack.config)


@pytest.fixture
async def shop_stack(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Shop]:
    """Open a gateway with the shop's agent, without a worker."""
    monkeypatch.setenv(sample_tools.LEDGER, str(tmp_path / "ledger.txt"))
    async with open_stack(store, tmp_path / "checkpoints.db") as opened:
        yield opened


REFUND = ("refund", {"order": CANARY, "amount": 1.0})


async def stream(stack: Shop, key: str) -> str:
    return str(await stack.store.conn.command("XRANGE", key, "-", "+"))


@pytest.mark.slow
async def test_no_audit_entry_has_words_about_arguments(shop_stack: Shop) -> None:
    """The audit log is kept for ever and cannot be erased; words belong in a blob."""
    async with shop_stack.working():
        await shop_stack.ask(REFUND)
        [item] = await shop_stack.asked()
        await shop_stack.decide(item)
        await shop_stack.words()

    assert CANARY not in await stream(shop_stack, shop_stack.keys.audit)


@pytest.mark.slow
async def test_an_error_that_quotes_arguments_is_logged_without_them(
    shop_stack: Shop,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A provider that refuses a request likes to repeat it in its message."""

    def refuse(results: list[str]) -> str:
        raise ValueError(f"400: cannot use {results}")

    monkeypatch.setattr(sample_tools, "after_tools", refuse)
    async with shop_stack.working():
        await shop_stack.ask(REFUND)
        [item] = await shop_stack.asked()
        await shop_stack.decide(item)
        await eventually(lambda: is_logged(caplog, "run.parked"))

    mine = [r for r in caplog.records if r.name.startswith("keyturn")]
    caplog.records[:] = mine
    assert CANARY not in logged(caplog)


def test_a_record_that_does_not_fit_says_so_without_what_it_holds() -> None:
    """Such errors end in tracebacks in the log, wherever a record is read."""
    with pytest.raises(ValidationError) as raised:
        Job.model_validate_json(json.dumps({"input": CANARY}))

    assert CANARY not in str(raised.value)


async def is_logged(caplog: pytest.LogCaptureFixture, words: str) -> bool:
    await asyncio.sleep(0)
    return any(words in record.getMessage() for record in caplog.records)


# Names and words of agents and reviewers steer no terminal of an operator.

HOSTILE = "x\x1b]0;owned\x07\x9b2J\u202e\u2066\r"


Tell = Callable[..., str]


@pytest.fixture
def tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Tell:
    """Return what a command prints."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keyturn.yml").write_text("policy: {version: 1}\n")

    def told(*words: str, url: str = "") -> str:
        env = {**ENV, "KEYTURN_REDIS_URL": url} if url else {}
        run(words, env)
        return capsys.readouterr().out

    return told


@pytest.mark.parametrize("words", [("frozen",), ("frozen", "--json")])
def test_what_is_frozen_is_listed_without_steering(
    tell: Tell, empty_url: str, words: tuple[str, ...]
) -> None:
    """A tool is frozen by the name that its agent gave it."""
    tell("freeze", "tool", HOSTILE, "--reason", HOSTILE, url=empty_url)

    listed = tell(*words, url=empty_url)

    assert "owned" in listed
    assert listed.replace("\n", "").isprintable()


def test_an_explanation_in_json_steers_nothing(tell: Tell, tmp_path: Path) -> None:
    policy, call = tmp_path / "policy.yml", tmp_path / "call.json"
    policy.write_text("version: 1\ntools: {mail: {description: 'to {args.to}'}}\n")
    call.write_text(json.dumps({"tool": "mail", "args": {"to": HOSTILE}}))

    said = tell("policy", "explain", str(policy), "--call", str(call), "--json")

    assert "owned" in said
    assert said.replace("\n", "").isprintable()

"""Scripts of the demo: act as people over the sandbox's HTTP API, and verify."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import aiohttp
import yaml
from pydantic import JsonValue

from keyturn.bot.delivery.metrics_reports import MetricsReports
from keyturn.bot.ids import Action, Input, View
from keyturn.cli.demo_context import (
    STEP_TIMEOUT_S,
    WAIT_S,
    DemoContext,
    StoryFailed,
    expect,
)
from keyturn.cli.demo_mcp import mcp
from keyturn.cli.demo_stack import (
    CHANNEL,
    QUEUED,
    REQUESTER,
    REVIEWER,
    SENIOR,
    STOCK_REQUEST,
    DemoStack,
)
from keyturn.cli.samples import quiet_policy
from keyturn.connect.coding_agents import CLAUDE_CODE, REQUESTER_HEADER, WAIT_HEADER
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.metrics.report import Selection
from keyturn.gateway.protocol.records import ItemState, Tier
from keyturn.gateway.service.report import audit_reading, audit_writing
from keyturn.gateway.service_settings import MetricsSettings
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.runs.jobs import Job
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.audit_proofs import verify_bundle
from keyturn.sandbox.json_types import JsonObject, as_objects

COUNT = len(QUEUED)

REASON = "Only half of it was damaged."
TOO_LATE = "It has left already."
ANSWER = "Please ask for a photo of the damage first."
QUESTION = "Did the customer send a photo of the damage?"
REPLY = "Yes: the screen is cracked in two places."


async def approve(context: DemoContext) -> None:
    """Ana approves the refund unchanged."""
    ts, approval = await context.ask()
    _, words = await context.decide(ts, approval, Action.APPROVE, ItemState.EXECUTED)
    context.check(words, "899", refunds=[899])


async def edit(context: DemoContext) -> None:
    """Ana halves the refund; the agent reports the change and the reason."""
    ts, approval = await context.ask()
    await context.click(ts, Action.EDIT, approval, 0)
    # An invalid value first: the form has to stay open for a second try.
    errors = await context.submit({"amount": "0"}, approval, 0)
    expect(errors, "An amount of 0 was accepted.")
    await context.fill({"amount": "449.50", Input.REASON: REASON}, approval, 0)
    await context.reached(approval, {0: ItemState.EXECUTED})
    context.check(await context.final_message(), "449.50", REASON, refunds=[449.5])


async def reject(context: DemoContext) -> None:
    """Ana rejects the refund with a reason."""
    ts, approval = await context.ask()
    rejected, values = ItemState.REJECTED, {Input.REASON: REASON}
    _, words = await context.decide(ts, approval, Action.REJECT, rejected, values)
    context.check(words, "rejected", REASON, refunds=[])


async def respond(context: DemoContext) -> None:
    """Ana answers instead of approving the call."""
    ts, approval = await context.ask()
    answered, values = ItemState.ANSWERED, {Input.MESSAGE: ANSWER}
    _, words = await context.decide(ts, approval, Action.RESPOND, answered, values)
    context.check(words, ANSWER, refunds=[])


async def inquiry(context: DemoContext) -> None:
    """Ana asks Dan before she decides; the card stays open and shows his reply."""
    ts, approval = await context.ask()
    await context.click(ts, Action.ASK_REQUESTER, approval, 0)
    await context.fill({Input.QUESTION: QUESTION}, approval, 0)
    await context.card_shows(ts, EventName.APPROVAL_ASKED, approval, QUESTION)
    await context.dan.say(CHANNEL, f"@keyturn {REPLY}", ts)
    await context.card_shows(ts, EventName.APPROVAL_REPLIED, approval, REPLY)
    now = await context.approval(approval.id)
    expect(now.items == approval.items, "A question changed the call.")
    expect(now.expires_at_ms == approval.expires_at_ms, "A question changed its end.")
    _, words = await context.decide(ts, approval, Action.APPROVE, ItemState.EXECUTED)
    context.check(words, refunds=[899])
    # The exchange between people is private; only a decision goes to the model.
    expect(REPLY not in words, "The agent has the reply of a person.")


async def expire(context: DemoContext) -> None:
    """The call expires without a decision."""
    _, approval = await context.ask()
    await context.reached(approval, {0: ItemState.EXPIRED})
    context.check(await context.final_message(), "in time", refunds=[])


async def multi(context: DemoContext) -> None:
    """Three calls in one turn: one is approved, one edited, one rejected."""
    ts, approval = await context.ask(
        "@keyturn refund order 78291 and do everything else"
    )
    # By name, so that the script does not depend on the model's order of calls.
    place = {item.tool: item.index for item in approval.items}
    words, ran = "", ItemState.EXECUTED
    edited = {"amount": "449.50", Input.REASON: REASON}
    for tool, action, state, values in (
        ("change_address", Action.REJECT, ItemState.REJECTED, {Input.REASON: TOO_LATE}),
        ("process_refund", Action.EDIT, ran, edited),
        ("send_email", Action.APPROVE, ran, None),
    ):
        approval, words = await context.decide(
            ts, approval, action, state, values, place[tool]
        )
    tools = sorted(str(effect["tool"]) for effect in context.effects())
    expect(tools == ["process_refund", "send_email"], f"These ran: {tools}.")
    context.check(words, "449.50", "rejected", refunds=[449.5])


async def escalate(context: DemoContext) -> None:
    """A refund over 1,000 takes two people; the second one called is a senior."""
    ts, approval = await context.ask("@keyturn refund order 78420")
    expect(approval.items[0].tier is Tier.ESCALATE, "1,299 does not take two people.")
    await context.called(ts, approval, EventName.APPROVAL_REMINDED)
    await context.click(ts, Action.APPROVE, approval, 0)
    await context.voted(ts, approval, 0, have=1, need=2)
    expect(not context.effects(), "One person was enough.")
    await context.called(ts, approval, EventName.APPROVAL_ESCALATED)
    await context.click(ts, Action.APPROVE, approval, 0, by=SENIOR)
    await context.reached(approval, {0: ItemState.EXECUTED})
    context.check(await context.final_message(), "1299", refunds=[1299])


async def outage(context: DemoContext) -> None:
    """The model is down after the approval; the run waits, and ends when it is back."""
    ts, approval = await context.ask()
    # Not before the card appears: without its model the agent proposes nothing.
    context.outage.touch()
    context.say("model.away")
    await context.click(ts, Action.APPROVE, approval, 0)
    await context.reached(approval, {0: ItemState.EXECUTED})
    waiting = await context.run_shown(EventName.RUN_WAITING, "The run waits")
    context.outage.unlink()
    context.say("model.back")
    ended = await context.run_shown(EventName.RUN_RESUMED, "The run continued")
    expect(waiting == ended, "The outage was reported in more than one message.")
    context.check(await context.final_message(), "899", refunds=[899])


async def queue(context: DemoContext) -> None:
    """20 customers want a refund, each in a separate thread: one modal decides."""
    await context.ask_all()
    await context.ana.open_home()
    await context.home_shows(f"Review {COUNT} together")
    context.say("home.shown", by=REVIEWER, waiting=COUNT)

    await context.ana.act_in_home(Action.REVIEW)
    await context.view(View.CHOOSE)
    await context.confirm()
    await context.view(View.CHOOSE_CONFIRM, f"{COUNT} to approve")
    await context.confirm()
    context.say("reviewer.decided", by=REVIEWER, approved=COUNT)
    await context.home_shows("Waiting for you: 0")
    await context.refunded(COUNT)
    context.say(
        "queue.counted", by=REVIEWER, clicks=3, interactions=3, approved=COUNT,
        cards=COUNT,
    )  # fmt: skip


async def shared(context: DemoContext) -> None:
    """20 customers want a refund, each in a separate thread: one card, one click."""
    await context.ask_all()
    card = await context.message(f"Approve all {COUNT}", WAIT_S)
    ts = str(card["ts"])
    context.say("card.posted", calls=COUNT)

    await context.ana.click(CHANNEL, ts, Action.APPROVE_ALL)
    # Some calls run before the card is drawn, which then never reads "20 approved".
    await context.refunded(COUNT)
    context.say("reviewer.decided", by=REVIEWER, approved=COUNT)
    await context.shows(ts, f"{COUNT} done", WAIT_S)
    context.say(
        "card.counted", by=REVIEWER, interactions=1, clicks=2, approved=COUNT,
        cards=1, card_updates=context.updates(ts),
    )  # fmt: skip


FIRST, SIMILAR, LAST = 79001, (79002, 79003, 79004), 79005
USES = 5


async def similar(context: DemoContext) -> None:
    """A reviewer allows five similar refunds; three run, then she revokes it."""
    ts, approval = await context.ask(f"@keyturn refund order {FIRST}")
    await context.click(ts, Action.ALLOW_SIMILAR, approval, 0)
    await context.view(View.ALLOW_SIMILAR)
    await context.fill({"uses": f"{USES}", "each": "30"}, approval, 0)
    await context.reached(approval, {0: ItemState.EXECUTED})
    live = await context.message(f"{USES} of {USES} calls left")
    context.say("standing.given", by=REVIEWER, uses=USES)

    # Sent without waiting: concurrent uses must all be counted.
    for order in SIMILAR:
        await context.dan.say(CHANNEL, f"@keyturn refund order {order}")
        context.say("agent.asked", by=REQUESTER, order=order)
    await context.refunded(1 + len(SIMILAR))
    await context.message(f"{USES - len(SIMILAR)} of {USES} calls left")

    await context.ana.click(CHANNEL, str(live["ts"]), Action.REVOKE)
    await context.message("*Revoked* by")
    context.say("standing.revoked", by=REVIEWER)
    # From now on a refund has a card again.
    ts, last = await context.ask(f"@keyturn refund order {LAST}")
    await context.decide(ts, last, Action.APPROVE, ItemState.EXECUTED)


_WEEK_MS = 7 * 86_400_000


async def digest(context: DemoContext) -> None:
    """Ana approves one refund and rejects another; the channel gets the numbers."""
    ts, approved = await context.ask()
    await context.decide(ts, approved, Action.APPROVE, ItemState.EXECUTED)
    ts, rejected = await context.ask("@keyturn change the address of order 78304")
    values = {Input.REASON: TOO_LATE}
    await context.decide(ts, rejected, Action.REJECT, ItemState.REJECTED, values)

    has_numbers = await announce_digest(context.demo, rejected.tenant)
    expect(has_numbers, "There are no numbers.")
    shown = await context.ana.message_with(
        CHANNEL,
        lambda one: str(one["text"]).startswith("The week's numbers"),
        STEP_TIMEOUT_S,
    )
    # The digest of a finished week is the same message, from the same code.
    context.say("digest.posted", text=shown["text"], blocks=shown["blocks"])


async def announce_digest(demo: DemoStack, tenant: str) -> bool:
    """Announce the numbers of the last seven days; return False if there are none."""
    service = demo.stack.keyturn.reviews
    settings = MetricsSettings(channel=CHANNEL)
    reports = MetricsReports(service, settings, tenant=tenant, reader="demo")
    now_ms = await service.store.conn.now_ms(
        service.store.keys_of_tenant(tenant).outbox
    )
    week = Selection(since_ms=now_ms - _WEEK_MS, until_ms=now_ms + 1)
    # Each start of the demo may post one.
    return await reports.announce_digest(week, ZoneInfo("UTC"), f"demo {now_ms}")


LAMPS, EDITED, REJECTED = 56, 16, 55
"""The number of refunds, and the indexes of the two that are not simply approved."""


async def batch(context: DemoContext) -> None:
    """56 refunds of one turn: 54 are approved, 1 is edited, 1 is rejected."""
    ts, approval = await context.ask("@keyturn refund every recalled lamp")
    expect(len(approval.items) == LAMPS, "The refunds are not on one card.")

    await context.ana.click(CHANNEL, ts, Action.CHOOSE)
    await context.view(View.CHOOSE)
    # The call with ten times the amount is marked, and first.
    await context.ana.act_in_view(Action.CHOOSE_EDIT, f"choose.edit.{EDITED}")
    await context.view(View.CHOOSE_EDIT)
    await context.fill({"amount": "21.90", Input.REASON: REASON}, approval, EDITED)

    await context.view(View.CHOOSE)
    # Slack allows ten checkboxes in a group; the last one has the last call.
    kept = [f"{index}" for index in range(51, LAMPS) if index != REJECTED]
    await context.confirm({"calls.5": kept, Input.OTHERS: "reject"})
    await context.view(View.CHOOSE_CONFIRM)
    await context.confirm({Input.REASON: "It was refunded before."})

    states = dict.fromkeys(range(LAMPS), ItemState.EXECUTED)
    after = await context.reached(approval, states | {REJECTED: ItemState.REJECTED})
    words = await context.final_message()
    expect(len(context.effects()) == LAMPS - 1, "Not every approved refund ran once.")
    expect("21.9" in words and "rejected" in words, "The agent missed something.")
    rejected = sum(item.state is ItemState.REJECTED for item in after.items)
    edited = sum(item.edit is not None for item in after.items)
    await context.shows(ts, f"{LAMPS - 1} done")
    context.say(
        "batch.counted",
        approval=approval.id,
        by=REVIEWER,
        # Choose; Edit in a row, its form; a box, a radio button, the form; and the
        # confirmation.
        clicks=7,
        interactions=5,
        card_updates=context.updates(ts),
        approved=LAMPS - edited - rejected,
        edited=edited,
        rejected=rejected,
    )


_HOUR_MS = 3_600_000


async def tamper(context: DemoContext) -> None:
    """An attacker writes "authorized" into the store; no call runs, and it is reported.

    The attacker has full access to the store but none of Keyturn's keys.
    """
    _, approval = await context.ask()
    store = context.demo.stack.keyturn.store
    keys = store.keys_of_approval(approval.id)
    if keys is None:
        raise StoryFailed(f"The approval {approval.id!r} has no keys in the store.")
    await _forge(store, keys, approval)
    context.say("store.forged", approval=approval.id, state=ItemState.AUTHORIZED)
    found = await _noticed(context, approval)
    context.say(
        EventName.SECURITY_DETECTED,
        approval=approval.id,
        kind=found.reason,
        about=found.data.get("about", ""),
    )
    await _verify_log(context, store, keys)
    await _verify_bundle(context, store, approval.tenant)
    expect(not context.effects(), "A forged authorization ran.")


async def _forge(store: Store, keys: Keys, approval: Approval) -> None:
    """Authorize a call and wake its agent, as an attacker with the formats would."""
    head, now_ms = keys.head(approval.id), await store.conn.now_ms(keys.head(""))
    write = store.conn.command
    await write("HSET", head, "0:s", "authorized", "0:t", now_ms)
    await write("HSET", head, "0:l", now_ms + _HOUR_MS)
    await write("HINCRBY", head, "rev", 1)
    job = Job.to_resume(approval.tenant, approval.agent, approval.thread)
    await write("XADD", keys.jobs, "*", "j", job.model_dump_json())


async def _noticed(context: DemoContext, approval: Approval) -> Event:
    """Wait for the security event about an approval."""
    found = list[Event]()

    async def is_noticed() -> bool:
        store = context.demo.stack.keyturn.store
        async for event in audit_reading.security_events(store, approval.tenant):
            if approval.id in {event.approval, event.data.get("approval")}:
                found.append(event)
        return bool(found)

    await context.until(is_noticed, "the security event")
    return found[0]


async def _verify_log(context: DemoContext, store: Store, keys: Keys) -> None:
    """Verify the audit log like `keyturn audit verify`, once it is fully signed."""
    writer = audit_writing.AuditWriter(store, keys)

    async def is_signed() -> bool:
        await writer.tick(is_last=True)
        log = await audit_reading.verify_log_of(store, keys.tenant)
        # The gateway may be writing now; then this writer's turn comes later.
        return bool(log.entries and not log.unsigned)

    await context.until(is_signed, "the signatures of the audit log")
    log = await audit_reading.verify_log_of(store, keys.tenant)
    expect(not log.problems, "The audit log does not verify.")
    context.say("audit.verified", entries=log.entries, checkpoints=log.checkpoints)


async def _verify_bundle(context: DemoContext, store: Store, tenant: str) -> None:
    """Export the log, verify it with only public keys, then change one byte."""
    lines = list[bytes]()
    await audit_reading.AuditBundler(store, tenant=tenant).export(lines.append)
    bundle = b"".join(lines).splitlines(keepends=True)
    verified = partial(
        verify_bundle, keys=audit_writing.public_keys(audit_writing.required(store)[0])
    )
    report = verified(bundle)
    expect(report.is_verified, f"The export does not verify: {report.problem}")
    context.say("export.verified", lines=len(bundle))
    at = len(bundle) // 2
    changed = bytearray(bundle[at])
    changed[len(changed) // 2] ^= 1
    report = verified([*bundle[:at], bytes(changed), *bundle[at + 1 :]])
    expect(not report.is_verified, "A changed export verifies.")
    expect(report.bad_index is not None, "The first bad entry is not named.")
    context.say("export.refused", first_bad_index=report.bad_index, why=report.problem)


DONE = ", done "


async def direct(context: DemoContext) -> None:
    """Chloé gets the card and decides on it; the card in the channel shows it."""
    ts, approval = await context.ask("@keyturn refund order 78420")
    chloe = context.demo.sandbox.person(SENIOR)

    async def copy(words: str) -> tuple[str, str]:
        find = partial(_copies_in, ts=ts, approval=approval.id, words=words)
        return (await chloe.wait_for(find, STEP_TIMEOUT_S))[0]

    first = await copy("1299")
    context.say("copy.posted", approval=approval.id, to=SENIOR)
    await context.click(ts, Action.APPROVE, approval, 0)
    await context.voted(ts, approval, 0, have=1, need=2)
    await copy("1 of 2 approvals")
    expect(not context.effects(), "One person was enough.")

    await chloe.click(*first, Action.APPROVE)
    context.say("reviewer.clicked", approval=approval.id, by=SENIOR, on="copy")
    await context.reached(approval, {0: ItemState.EXECUTED})
    # The same message: a second one would leave dead buttons behind.
    expect(await copy(DONE) == first, "Chloé was sent a second copy.")
    await context.shows(ts, DONE)
    context.say("copy.updated", approval=approval.id, to=SENIOR)
    await context.final_message()
    expect(len(context.effects()) == 1, "The refund did not run once.")


def _copies_in(
    state: JsonObject, *, ts: str, approval: str, words: str
) -> list[tuple[str, str]]:
    """Return channel and ts of the person's copies of a card with this text."""
    found = list[tuple[str, str]]()
    for channel in as_objects(state["channels"]):
        for message in as_objects(channel["messages"]):
            shown = json.dumps([message["blocks"], message["metadata"]])
            # Skip the card and the replies in its thread, which also contain the
            # approval's id.
            is_copy = message["ts"] != ts and message["thread_ts"] is None
            if is_copy and approval in shown and words in shown:
                found.append((str(channel["id"]), str(message["ts"])))
    return found


STREET, PLACE = "12 Mill Lane", "CB1 2AB Cambridge"


async def question(context: DemoContext) -> None:
    """The agent asks four questions at once, then for approval of the call."""
    ts, asked = await context.ask("@keyturn move order 78304")
    await context.click(ts, Action.ANSWER, asked, 0, by=REQUESTER)
    await context.dan.wait_for_view(timeout_s=STEP_TIMEOUT_S)
    values: dict[str, object] = {"question.0": STREET, "question.1": PLACE}
    values |= {"question.2": "2", "question.3": ["0", "1"]}
    expect(not await context.dan.submit(values), "The answers were refused.")
    after = await context.reached(asked, {0: ItemState.ANSWERED})
    decision = after.items[0].decision
    answers = [*decision.answers] if decision else []
    context.say("question.answered", approval=asked.id, by=REQUESTER, answers=answers)

    ts, approval = await context.card_after(ts)
    _, words = await context.decide(ts, approval, Action.APPROVE, ItemState.EXECUTED)
    expect(STREET in words and "Cambridge" in words, "The agent omits the address.")


QUIET = "git log --oneline | head -20"
COMMAND, CODE_EDITED = "make deploy", "make deploy ENV=staging"
CODE_REASON = "Try it on staging first."


async def hook(context: DemoContext) -> None:
    """A coding agent reads freely, and its edited deployment is handed over once."""
    headers = {
        "Authorization": f"Bearer {await context.api_key('coder')}",
        REQUESTER_HEADER: REQUESTER,
        # Within this margin the gateway answers immediately.
        WAIT_HEADER: "5",
    }
    async with aiohttp.ClientSession(headers=headers) as session:
        answer = await _asked(context, session, "toolu_1", QUIET)
        expect(not answer, "The gateway decided on a call that only reads.")

        answer = await _asked(context, session, "toolu_2", COMMAND)
        expect(answer.get("permissionDecision") == "deny", "A pending call may run.")
        ts, approval = await context.card_after("0")
        await context.click(ts, Action.EDIT, approval, 0)
        await context.fill(
            {"command": CODE_EDITED, Input.REASON: CODE_REASON}, approval, 0
        )
        await context.reached(approval, {0: ItemState.AUTHORIZED})

        # The model makes the same call again, under another id.
        answer = await _asked(context, session, "toolu_3", COMMAND)
        expect(answer.get("permissionDecision") == "allow", "The edit may not run.")
        expect(
            answer.get("updatedInput") == {"command": CODE_EDITED}, "The edit is lost."
        )
        notice = str(answer.get("additionalContext"))
        expect(CODE_REASON in notice, "The agent did not get the reviewer's reason.")
        await context.reached(approval, {0: ItemState.HANDED_OVER})

        await _asked(context, session, "toolu_3", CODE_EDITED, event="PostToolUse")
        await context.shows(ts, "reports that it ran")
        context.say("card.reported", approval=approval.id, by=CLAUDE_CODE.name)


async def _asked(
    context: DemoContext,
    session: aiohttp.ClientSession,
    call: str,
    command: str,
    *,
    event: str = "PreToolUse",
) -> dict[str, JsonValue]:
    """Send the request of a hook; return the decision in the reply."""
    body = {
        "hook_event_name": event,
        "session_id": "demo",
        "tool_use_id": call,
        "tool_name": "Bash",
        "tool_input": {"command": command},
        "cwd": "/home/dan/app",
    }
    url = f"{context.demo.stack.api_url}{CLAUDE_CODE.url_path}"
    async with session.post(url, json=body) as response:
        response.raise_for_status()
        found: dict[str, dict[str, JsonValue]] = await response.json()
    answer = found.get("hookSpecificOutput", {})
    decision = answer.get("permissionDecision", "none")
    context.say("hook.answered", call=call, hook=event, decision=decision)
    return answer


CAUSE, CAUSE_REASON = "Ordered twice", "That is what the customer wrote."


async def stock(context: DemoContext) -> None:
    """A reviewer edits one call of a stock agent, and rejects the next one."""
    ts, approval = await context.ask(STOCK_REQUEST)
    values = {"cause": CAUSE, Input.REASON: CAUSE_REASON}
    handed = ItemState.HANDED_OVER
    _, words = await context.decide(ts, approval, Action.EDIT, handed, values)
    await context.shows(ts, "which runs it by itself")
    context.say("card.handed_over", approval=approval.id)
    # LangChain tells the model about the change by itself.
    expect(CAUSE in words, "The agent's answer lacks the edited cause.")

    ts, approval = await context.ask(STOCK_REQUEST)
    values = {Input.REASON: TOO_LATE}
    rejected = ItemState.REJECTED
    _, words = await context.decide(ts, approval, Action.REJECT, rejected, values)
    expect(TOO_LATE in words, "The agent's answer lacks the reviewer's reason.")

    ran = [effect["args"] for effect in context.effects()]
    wanted = [{"order_id": "78304", "cause": CAUSE}]
    expect(ran == wanted, f"{wanted} was expected; {ran} ran.")


SCRIPTS: dict[str, Callable[[DemoContext], Awaitable[None]]] = {
    script.__name__: script
    for script in (
        *(approve, edit, reject, respond, inquiry, expire, multi, escalate, outage),
        *(batch, digest, direct, hook, mcp, queue, question, shared, similar, stock),
        tamper,
    )
}


_SHORT_EXPIRY = "2s"


def policy_for(config: Path, script: str, folder: Path) -> Path | None:
    """Write a copy of the policy with a script's changes.

    Args:
        config: the settings file with the key ``policy``.
        script: its name; the result is None for one that needs no change.
        folder: the folder of the new policy.
    """
    change = _CHANGES.get(script)
    if change is None:
        return None
    # Not the policy loader: the file is written back in its original form.
    policy: dict[str, Any] = yaml.safe_load(config.read_text(encoding="utf-8"))[
        "policy"
    ]
    change(policy)
    path = folder / "policy.yml"
    path.write_text(yaml.safe_dump(policy, sort_keys=False), encoding="utf-8")
    return path


def _expire(policy: dict[str, Any]) -> None:
    """Let every call expire after two seconds."""
    policy["defaults"]["expires_in"] = _SHORT_EXPIRY
    for tool in policy.get("tools", {}).values():
        # A tool's own time would override the default.
        tool.pop("expires_in", None)


def _escalate(policy: dict[str, Any]) -> None:
    """Remind after two seconds, call the senior after four."""
    rule = policy["tiers"]["escalate"]
    # With 100 seconds, percentages are seconds.
    rule |= {"expires_in": "100s", "remind_at": "2%", "escalate_at": "4%"}


def _share(policy: dict[str, Any]) -> None:
    """Let the refunds of twenty customers share one card."""
    rule = {"by": "window", "within": "2m", "up_to": len(QUEUED)}
    policy["tools"]["process_refund"]["batch"] = rule


def _code(policy: dict[str, Any]) -> None:
    """Add the rules that `keyturn hooks --policy` prints for coding agents."""
    policy["tools"] |= yaml.safe_load(quiet_policy())["tools"]


_CHANGES = {"expire": _expire, "escalate": _escalate, "hook": _code, "shared": _share}

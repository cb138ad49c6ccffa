"""Make approvals in every state of their life, for the tests of cards and modals."""

from __future__ import annotations

from typing import Any

from keyturn.bot.cards.frame import Frame
from keyturn.gateway.approvals import editing
from keyturn.gateway.approvals.record import (
    Approval,
    Context,
    DecisionRecord,
    HandOver,
    Item,
)
from keyturn.gateway.approvals.requirement import Requirement, Role, Vote
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import (
    EditRecord,
    ItemState,
    Person,
    Result,
    Tier,
    Verb,
)
from keyturn.gateway.protocol.strict_json import JsonObject

KEY = b"k" * 32
TEAM = "T0KEYTURN"
LISTED = "The policy lists this tool as approve."
NOW = 1_795_255_200_000  # 2026-11-21 10:00:00 UTC
LATER = NOW + 3_600_000

ANA = Person(team=TEAM, user="U0ANA", name="Ana")
BEN = Person(team=TEAM, user="U0BEN", name="Ben")
KIM = Person(team=TEAM, user="U0KIM", name="Kim")

SUPPORT = Role(name="support", usergroups=("S0SUPPORT",))
SENIOR = Role(name="senior", users=("U0BEN",))
ONE_SENIOR = Requirement(approvals=1, of=(SENIOR,))
ONE = Requirement(approvals=1, of=(SUPPORT,))
TWO = Requirement(approvals=2, of=(SUPPORT, SENIOR), also=(ONE_SENIOR,))

REFUND: JsonObject = {
    "amount": 899.0,
    "currency": "GBP",
    "order_id": "78291",
    "reason": "arrived broken",
}
REFUND_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "order_id": {"type": "string"},
        "amount": {"type": "number", "exclusiveMinimum": 0, "maximum": 2000},
        "currency": {"enum": ["GBP", "EUR", "USD"]},
        "reason": {"type": "string", "maxLength": 500},
    },
    "required": ["order_id", "amount", "currency"],
}

Json = Any


def an_item(
    args: JsonObject | None = None,
    *,
    tool: str = "process_refund",
    index: int = 0,
    approval: str = "ap_7f3k",
    **changes: Any,
) -> Item:
    """Return a pending item; ``changes`` are fields of `Item`."""
    ctx = Context(
        tenant="acme",
        agent="support-agent",
        thread="th_1",
        ns="",
        message_id="msg_1",
        tool_call_id=f"call_{index}",
    )
    document = digest.action_document(
        tool=tool,
        args=REFUND if args is None else args,
        ctx=ctx.as_dict(),
        salt=f"{index:032x}",
    )
    item = Item(
        id=f"{approval}.{index}",
        index=index,
        ctx=ctx,
        tool=tool,
        tier=Tier.APPROVE,
        allow=tuple(Verb),
        requirement=ONE,
        requested=document,
        action=document,
    )
    return item.with_(**changes)


def a_refund(**changes: Any) -> Item:
    """Return the refund of the sample agent."""
    return an_item(
        description="Refund 899.00 for order 78291",
        reasons=(LISTED,),
        args_schema=REFUND_SCHEMA,
    ).with_(**changes)


def an_approval(*items: Item, **changes: Any) -> Approval:
    """Return an open approval; ``changes`` are fields of `Approval`."""
    approval = Approval(
        id="ap_7f3k",
        tenant="acme",
        agent="support-agent",
        thread="th_1",
        message_id="msg_1",
        channel="C0APPROVALS",
        created_at_ms=NOW,
        expires_at_ms=LATER,
        ttl_ms=LATER - NOW,
        requester=KIM,
        principals=(KIM,),
        policy_digest="sha256:" + "0" * 64,
        says="The customer wrote that the kettle arrived broken.",
        items=items or (a_refund(),),
    )
    return approval.with_(**changes)


def a_vote(item: Item, by: Person, *roles: str) -> Vote:
    """Return a person's vote for an item in its current version."""
    return Vote(
        by=by, roles=roles or ("support",), action_hash=item.action_hash, at_ms=NOW
    )


def edited(item: Item, args: JsonObject, *, by: Person = ANA, reason: str = "") -> Item:
    """Return the item as if this person had edited it; the policy describes refunds."""
    document = editing.edited_document(item, args)
    record = editing.edit_record(item, document, by=by, at_ms=NOW, reason=reason)
    assert isinstance(record, EditRecord)
    amount, order = args.get("amount"), args.get("order_id")
    is_refund = bool(item.description and amount and order)
    text = f"Refund {amount} for order {order}" if is_refund else ""
    return item.with_(action=document, edit=record, votes=(), description=text)


def in_state(
    item: Item,
    state: ItemState,
    *,
    by: Person = ANA,
    text: str = "",
    result: Result | None = None,
) -> Item:
    """Return the item in a later state, as the gateway would have left it."""
    verbs = {
        ItemState.REJECTED: Verb.REJECT,
        ItemState.ANSWERED: Verb.RESPOND,
    }
    asked = {
        ItemState.EXPIRED,
        ItemState.SUPERSEDED,
        ItemState.WITHDRAWN,
        ItemState.PENDING,
    }
    verb = verbs.get(state, Verb.EDIT if item.edit else Verb.APPROVE)
    approves = verb in {Verb.APPROVE, Verb.EDIT}
    decision = DecisionRecord(verb=verb, by=by, at_ms=NOW + 60_000, text=text)
    votes = item.votes or (a_vote(item, by),) if approves else item.votes
    return item.with_(
        state=state,
        changed_at_ms=NOW + 60_000,
        decision=None if state in asked else decision,
        votes=item.votes if state in asked else votes,
        result=result,
    )


def handed(item: Item, state: ItemState, **known: Any) -> Item:
    """Return a call that another program runs, in a state of its hand-over."""
    named = item.with_(handed_to="Claude Code", handed=HandOver(**known))
    return named if state is ItemState.PENDING else in_state(named, state)


def frame(approval: Approval, *, now_ms: int = NOW) -> Frame:
    """Return what a card or modal of an approval is made with."""
    return Frame(approval, KEY, TEAM, now_ms)

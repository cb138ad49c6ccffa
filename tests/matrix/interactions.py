"""Decide as a person does: click the buttons of a card, fill in and submit its forms.

A person whom the sandbox itself would stop (a bot, a deactivated person) acts all the
same: the payload that Slack would send for them is built, signed and delivered. So are
the payloads that the sandbox would not build.
"""

from __future__ import annotations

from dataclasses import replace

from keyturn.bot.ids import Action, Input, View, unseal
from keyturn.bot.ids import chosen as option_choice
from keyturn.gateway.protocol.records import Verb
from keyturn.sandbox import inputs, payloads, view_responses
from keyturn.sandbox.delivery import Ack, Envelope
from keyturn.sandbox.elements import PlacedElement, find, placed_elements
from keyturn.sandbox.json_types import JsonObject, as_object, as_objects
from keyturn.sandbox.payloads import Interaction
from keyturn.sandbox.records import User
from keyturn.sandbox.records import View as Shown
from keyturn.sandbox.samples import OTHER_TEAM
from keyturn.sandbox.server import Sandbox
from keyturn.sandbox.state_values import entered
from tests.matrix.matrix_stack import MatrixStack, Table
from tests.matrix.people import Kind

BUTTONS = {
    Verb.APPROVE: Action.APPROVE,
    Verb.EDIT: Action.EDIT,
    Verb.REJECT: Action.REJECT,
    Verb.RESPOND: Action.RESPOND,
}
_ODD = {Kind.OTHER_WORKSPACE, Kind.OTHER_TEAM}


async def click(stack: MatrixStack, table: Table, verb: Verb, user_id: str) -> None:
    """Click the button of a decision on a card; a form of it may be open then."""
    sandbox, card = stack.demo.sandbox, stack.card(table)
    user = sandbox.workspace.user(user_id)
    is_odd = user_id == table.person and table.cell.kind in _ODD
    placed, chosen = _offered(list(card.blocks or ()), BUTTONS[verb])
    if not (user.deleted or user.is_bot or is_odd):
        await sandbox.person(user_id).act(
            "block_actions",
            channel=table.channel,
            ts=card.ts,
            action_id=placed.action_id,
            block_id=placed.block_id,
            chosen=chosen,
        )
        return
    action: JsonObject = {
        **(chosen or {"type": "button", "value": placed.element.get("value")}),
        "action_id": placed.action_id,
        "block_id": placed.block_id,
        "action_ts": sandbox.clock.next_ts(),
    }
    envelope = payloads.on_message(
        sandbox.slack, _interaction(sandbox, user), card, action, {}
    )
    if is_odd:
        _make_odd(envelope.payload, table.cell.kind)
    await _delivered(sandbox, envelope)


def _offered(
    blocks: list[JsonObject], act: Action
) -> tuple[PlacedElement, JsonObject | None]:
    """Return the button of an act, or the menu that has it and what to choose there."""
    for placed in placed_elements(blocks):
        if placed.action_id == act:
            return placed, None
        for option in as_objects(placed.element.get("options")):
            if option_choice(str(option["value"]))[0] == act:
                return placed, {"type": "overflow", "selected_option": option}
    raise AssertionError(f"{act} is not on the card.")


def _make_odd(payload: JsonObject, kind: Kind) -> None:
    """Mark a click as made elsewhere, or omit the home team of its account."""
    if kind is Kind.OTHER_WORKSPACE:
        payload["team"] = {"id": OTHER_TEAM, "domain": "other"}
    else:
        del payload["user"]["team_id"]


def version_shown(stack: MatrixStack, table: Table) -> int:
    """Return the version that the buttons of a card are for."""
    placed = find(list(stack.card(table).blocks or ()), Action.APPROVE)
    return unseal(str(placed.element["value"])).version if placed else 0


def form(stack: MatrixStack, user_id: str) -> Shown | None:
    """Return the form that a person sees, None when there is none."""
    modals = stack.demo.sandbox.workspace.modals[user_id]
    return modals[-1] if modals else None


def close_forms(stack: MatrixStack, user_id: str) -> None:
    """Close all modals of a person."""
    stack.demo.sandbox.workspace.modals[user_id].clear()


async def submit(
    stack: MatrixStack, verb: Verb, user_id: str, *, amount: int = 13
) -> None:
    """Fill in the form that is open, validly, and submit it."""
    sandbox, view = stack.demo.sandbox, form(stack, user_id)
    assert view is not None
    values = entered(view.blocks, _filled(view, verb, amount))
    user = sandbox.workspace.user(user_id)
    if user.deleted:
        values = inputs.merged(view.blocks, view.values, values)
        typed = replace(view, values=values)
        envelope = payloads.view_submission(
            sandbox.slack, _interaction(sandbox, user), typed
        )
        answer = await _delivered(sandbox, envelope)
        answered = view_responses.apply(sandbox.slack, typed, answer.body)
    else:
        answered = await sandbox.person(user_id).act(
            "view_submission", view_id=view.id, values=values
        )
    assert not answered.get("errors"), answered


def is_warned(view: Shown | None) -> bool:
    """Return whether a form warns that the change needs more people."""
    return view is not None and view.document.get("callback_id") == View.EDIT_RAISED


def notice(view: Shown | None) -> str:
    """Return the one sentence of a modal that has nothing else, "" for a form."""
    if view is None or view.document.get("callback_id") != View.NOTICE:
        return ""
    (block,) = view.blocks
    return str(as_object(block["text"])["text"])


def _filled(view: Shown, verb: Verb, amount: int) -> dict[str, object]:
    match verb:
        case Verb.EDIT:
            return {_block_of(view, "amount"): amount, Input.REASON: "So much."}
        case Verb.REJECT:
            return {Input.REASON: "Not this one."}
        case _:
            return {Input.MESSAGE: "Offer a voucher."}


def _block_of(view: Shown, name: str) -> str:
    for block in view.blocks:
        if block["type"] == "input" and name in str(as_object(block["label"])["text"]):
            return str(block["block_id"])
    raise AssertionError(f"no input {name!r} in {as_objects(view.blocks)!r}")


def _interaction(sandbox: Sandbox, user: User) -> Interaction:
    return Interaction(user, sandbox.slack.triggers.issue(user.id))


async def _delivered(sandbox: Sandbox, envelope: Envelope) -> Ack:
    answer = await sandbox.control.delivery.deliver(envelope)
    assert isinstance(answer, Ack), answer
    return answer

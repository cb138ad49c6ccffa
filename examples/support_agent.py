"""Support agent of a small shop whose refunds need a person's approval.

The graph has no checkpointer: `keyturn run` (or `Keyturn(...)`) attaches one. Without a
real model, a scripted one plays the agent. It really reads its messages, so its last
message depends on the decisions. Settings, all optional:

- ``KEYTURN_DEMO_MODEL``: a real chat model for `init_chat_model`, such as
  ``anthropic:claude-sonnet-4-5``.
- ``KEYTURN_DEMO_LEDGER``: a file that gets one JSON line for every effect of a tool.
- ``KEYTURN_DEMO_OUTAGE``: a file; while it exists, the scripted model is unreachable,
  like a provider's model in an outage.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from langchain.agents import create_agent
from langchain.chat_models import init_chat_model
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    ToolCall,
    ToolMessage,
)
from langchain_core.tools import BaseTool, tool
from pydantic import Field

from keyturn.agent import ApprovalMiddleware, ask_user, grant, guarded
from keyturn.agent.scripted_model import ScriptedModel

ORDERS = {
    "78291": {"customer_id": "C-1207", "item": "standing desk", "amount": 899.00},
    "78304": {"customer_id": "C-1207", "item": "desk lamp", "amount": 49.90},
    "78377": {"customer_id": "C-2044", "item": "desk chair", "amount": 312.50},
    "78420": {"customer_id": "C-3310", "item": "dining table", "amount": 1299.00},
}
DEFAULT_ORDER = "78291"
RECALLED = [
    {"order_id": f"{79001 + n}", "customer_id": f"C-{4001 + n}", "amount": 19.9 + n % 5}
    for n in range(56)
]
RECALLED[16]["amount"] = 219.0
"""Orders of a recalled lamp; all of them are refunded in one turn.

One customer paid ten times as much, which a reviewer should notice.
"""
ORDERS |= {str(row["order_id"]): {"item": "desk lamp", **row} for row in RECALLED}
MANY = 6

SYSTEM_PROMPT = (
    "You are the support agent of a small furniture shop. Look an order up before you "
    "refund it. Tell the customer plainly what was done, what was not, and what a "
    "reviewer changed."
)


def record_effect(name: str, **args: object) -> None:
    """Append one line to the ledger: the effect and its idempotency key."""
    ledger = os.environ.get("KEYTURN_DEMO_LEDGER")
    if not ledger:
        return
    row = {"tool": name, "args": args, "idempotency_key": grant().idempotency_key}
    with Path(ledger).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


@tool
def look_up_order(order_id: str) -> str:
    """Look up an order by its number."""
    order = ORDERS.get(order_id)
    if order is None:
        return f"There is no order {order_id}."
    return json.dumps({"order_id": order_id, **order})


@guarded
@tool
def process_refund(
    order_id: str,
    customer_id: str,
    amount: Annotated[float, Field(gt=0, le=10_000, description="In euros")],
    cause: Annotated[str, Field(description="Why the customer gets money back")],
) -> str:
    """Pay money back to a customer."""
    record_effect(
        "process_refund",
        order_id=order_id,
        customer_id=customer_id,
        amount=amount,
        cause=cause,
    )
    return f"Refunded {amount:.2f} for order {order_id}."


@guarded
@tool
def change_address(
    order_id: str,
    street: str,
    city: str,
    postcode: str,
    country: Literal["DE", "FR", "GB", "NL", "US"],
) -> str:
    """Change the delivery address of an order."""
    record_effect(
        "change_address",
        order_id=order_id,
        street=street,
        city=city,
        postcode=postcode,
        country=country,
    )
    return f"Order {order_id} now goes to {street}, {postcode} {city}, {country}."


@guarded
@tool
def send_email(
    to: str,
    subject: str,
    body: Annotated[str, Field(description="Plain text, several lines")],
) -> str:
    """Send an e-mail to a customer."""
    record_effect("send_email", to=to, subject=subject, body=body)
    return f"Sent {subject!r} to {to}."


TOOLS: list[BaseTool] = [
    look_up_order,
    process_refund,
    change_address,
    send_email,
    ask_user,
]


def play(messages: list[BaseMessage]) -> AIMessage:
    """Play the model; during the outage, raise a provider's error.

    It is deterministic and uses only the messages: a refund's amount comes from the
    order lookup, the last message from the results.
    """
    outage = os.environ.get("KEYTURN_DEMO_OUTAGE")
    if outage and Path(outage).exists():
        raise ConnectionError("The model's provider cannot be reached.")
    return next_message(messages)


def next_message(messages: Sequence[BaseMessage]) -> AIMessage:
    """Return the agent's next message, given its messages."""
    at = max(i for i, m in enumerate(messages) if isinstance(m, HumanMessage))
    request = str(messages[at].text).lower()
    since = messages[at + 1 :]
    number = re.search(r"\d{5}", request)
    order_id = number.group() if number else DEFAULT_ORDER
    if not since:
        return _first_step(request, order_id, seed=len(messages))
    results = [message for message in since if isinstance(message, ToolMessage)]
    if not results:
        return AIMessage("What else can I do for you?")
    if results[-1].name == "ask_user":
        return _moved(order_id, str(results[-1].text), len(messages))
    results = [message for message in results if message.name != "ask_user"]
    looked_up = [m for m in results if m.name == "look_up_order"]
    is_fresh = bool(looked_up) and results[-1] is looked_up[-1]
    if is_fresh and "refund" in request:
        return _gated_step(request, order_id, str(looked_up[-1].text), len(messages))
    plain = [message for message in results if str(message.text).startswith("Refunded")]
    if len(plain) > MANY:
        others = [final_message(message) for message in results if message not in plain]
        return AIMessage(" ".join([f"{len(plain)} refunds are done.", *others]))
    return AIMessage(" ".join(final_message(message) for message in results))


def _first_step(request: str, order_id: str, seed: int) -> AIMessage:
    if "recall" in request:
        return _recall(seed)
    if "move" in request:
        return _question(order_id, seed)
    if "refund" in request or "look" in request:
        calls = [_call("look_up_order", seed, order_id=order_id)]
        return AIMessage(f"Let me look at order {order_id}.", tool_calls=calls)
    calls = _further_calls(request, order_id, seed)
    if calls:
        return AIMessage("I will do that now.", tool_calls=calls)
    return AIMessage(
        "I can look up an order, refund it, change its address, or send an e-mail. "
        "Try: refund order 78291."
    )


def _recall(seed: int) -> AIMessage:
    calls = [
        _call("process_refund", seed, **order, cause="The lamp is recalled")
        | {"id": f"call_recall_{seed}_{number}"}
        for number, order in enumerate(RECALLED)
    ]
    text = f"{len(calls)} customers bought the recalled lamp, so I refund them all."
    return AIMessage(text, tool_calls=calls)


def _question(order_id: str, seed: int) -> AIMessage:
    questions = [
        {"question": "Which street and house number is the new address?"},
        {"question": "Which postcode and town, such as CB1 2AB Cambridge?"},
        {
            "question": "Which country does it go to?",
            "type": "multiple_choice",
            "choices": ["DE", "FR", "GB", "NL", "US"],
        },
        {
            "question": "How shall I tell the customer?",
            "type": "multi_select",
            "choices": ["E-mail", "Text message", "Phone"],
            "required": False,
            "default": "E-mail",
        },
    ]
    call = _call("ask_user", seed, questions=questions)
    text = f"I need the new address of order {order_id}."
    return AIMessage(text, tool_calls=[call])


def _moved(order_id: str, answered: str, seed: int) -> AIMessage:
    answers = [line[3:] for line in answered.splitlines() if line.startswith("A: ")]
    if not answered.startswith("Q: "):
        return AIMessage(f"I moved nothing, because I got no address. {answered}")
    street, place, country, told = answers
    postcode, _, city = place.rpartition(" ")
    call = _call(
        "change_address",
        seed,
        order_id=order_id,
        street=street,
        city=city,
        postcode=postcode,
        country=country,
    )
    text = f"I change the address, and tell the customer by: {told}."
    return AIMessage(text, tool_calls=[call])


def _gated_step(request: str, order_id: str, found: str, seed: int) -> AIMessage:
    try:
        order = json.loads(found)
    except ValueError:
        return AIMessage(f"{found} So there is nothing to refund.")
    refund = _call(
        "process_refund",
        seed,
        order_id=order_id,
        customer_id=order["customer_id"],
        amount=order["amount"],
        cause=f"The {order['item']} arrived damaged",
    )
    further = _further_calls(request, order_id, seed)
    text = f"Order {order_id} is a {order['item']} for {order['amount']:.2f}; it"
    return AIMessage(
        f"{text} arrived damaged, so I refund it.", tool_calls=[refund, *further]
    )


def _further_calls(request: str, order_id: str, seed: int) -> list[ToolCall]:
    calls: list[ToolCall] = []
    is_everything = "several" in request or "everything" in request
    if "address" in request or is_everything:
        calls.append(
            _call(
                "change_address",
                seed,
                order_id=order_id,
                street="12 Mill Lane",
                city="Cambridge",
                postcode="CB1 2AB",
                country="GB",
            )
        )
    if "mail" in request or is_everything:
        calls.append(
            _call(
                "send_email",
                seed,
                to="sam@example.com",
                subject=f"Your order {order_id}",
                body="Hello Sam,\n\nwe have taken care of your request.\n\nThe shop",
            )
        )
    return calls


def _call(name: str, seed: int, **args: object) -> ToolCall:
    return ToolCall(name=name, args=args, id=f"call_{name}_{seed}", type="tool_call")


def final_message(result: ToolMessage) -> str:
    """Describe one result for the customer, as a model would."""
    text = str(result.text)
    what = _WHAT.get(str(result.name), str(result.name))
    requested = _json_after(text, "Requested arguments: ")
    executed = _json_after(text, "Executed arguments: ")
    if isinstance(requested, dict) and isinstance(executed, dict):
        words = _edited_words(what, text, requested, executed)
    elif "rejected this call" in text:
        reason = _json_after(text, "Their reason: ") or "no reason given"
        words = f"A reviewer rejected {what}, so it was not done: {_stop(reason)}"
    elif "answered it instead" in text:
        words = f"A reviewer answered about {what}: {_json_after(text, 'instead: ')}"
    elif "in time" in text:
        words = f"There was no decision in time about {what}, so it was not done."
    elif result.status == "error":
        words = f"I could not do {what}: {text}"
    else:
        words = _order_words(text) if result.name == "look_up_order" else text
    return words


_WHAT = {
    "process_refund": "the refund",
    "change_address": "the change of address",
    "send_email": "the e-mail",
}


def _order_words(text: str) -> str:
    try:
        order = json.loads(text)
    except ValueError:
        return text
    return f"Order {order['order_id']} is a {order['item']} for {order['amount']:.2f}."


def _edited_words(
    what: str, text: str, requested: dict[str, Any], executed: dict[str, Any]
) -> str:
    changes = ", ".join(
        f"the {name} is {_shown(name, executed)} instead of {_shown(name, requested)}"
        for name, value in requested.items()
        if executed.get(name) != value
    )
    who = _json_after(text, "Changed by: ")
    why = _json_after(text, "Their reason: ")
    because = f", because: {why}" if why else ""
    outcome = text.rpartition("\n\n")[2]
    return _stop(f"{outcome} A reviewer ({who}) changed {what}: {changes}{because}")


def _stop(sentence: str) -> str:
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."


def _shown(name: str, args: dict[str, Any]) -> str:
    value = args.get(name, "not given")
    return f"{value:.2f}" if name == "amount" else str(value)


def _json_after(text: str, label: str) -> Any:  # noqa: ANN401 - JSON
    _, found, rest = text.partition(label)
    if not found:
        return None
    try:
        return json.JSONDecoder().raw_decode(rest)[0]
    except ValueError:
        return None


def _model() -> BaseChatModel:
    name = os.environ.get("KEYTURN_DEMO_MODEL")
    return init_chat_model(name) if name else ScriptedModel(reply=play)


graph = create_agent(
    _model(),
    TOOLS,
    system_prompt=SYSTEM_PROMPT,
    middleware=[ApprovalMiddleware("support")],
    name="support",
)

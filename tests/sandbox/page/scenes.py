"""Canned states: a workspace, an approval card, every block, modals, App Home."""

import time
from typing import Any

from tests.sandbox.page.fake_slack import Json

NOW = time.time()  # noqa: TID251 - the page shows real moments, "today" among them
BOT = "U0KEYTURN"
CHANNEL = "C0APPROVALS"

ARGUMENTS = """\
order_id     "78291"
customer_id  "cus_4Q7"
amount       899.00
currency     "GBP"
reason       "Envelope arrived with a cracked screen; customer sent photos.\""""


def ts(minutes_ago: float, n: int = 1) -> str:
    """Return a message ts in the past; `n` keeps two of them apart."""
    return f"{int(NOW - minutes_ago * 60)}.{n:06d}"


def plain(text: str, *, emoji: bool | None = None) -> Json:
    """Return a plain_text object."""
    given = {} if emoji is None else {"emoji": emoji}
    return {"type": "plain_text", "text": text, **given}


def mrkdwn(text: str) -> Json:
    """Return a mrkdwn object."""
    return {"type": "mrkdwn", "text": text}


def option(text: str, value: str, description: str | None = None) -> Json:
    """Return an option for selects, checkboxes, radio buttons and overflows."""
    made: Json = {"text": plain(text), "value": value}
    return made if description is None else {**made, "description": plain(description)}


def button(text: str, action_id: str, **more: Any) -> Json:
    """Return a button."""
    return {"type": "button", "text": plain(text), "action_id": action_id, **more}


def input_block(block_id: str, label: str, kind: str, **element: Any) -> Json:
    """Return an input block; its element's action_id is `value`."""
    optional = element.pop("optional", False)
    hint = element.pop("hint", None)
    block: Json = {
        "type": "input",
        "block_id": block_id,
        "label": plain(label),
        "optional": optional,
        "element": {"type": kind, "action_id": "value", **element},
    }
    return block if hint is None else {**block, "hint": plain(hint)}


def preformatted(text: str) -> Json:
    """Return a rich_text block with one preformatted part."""
    part = {
        "type": "rich_text_preformatted",
        "elements": [{"type": "text", "text": text}],
    }
    return {"type": "rich_text", "block_id": "arguments", "elements": [part]}


def card_buttons() -> Json:
    """Return the row of buttons under an approval card."""
    return {
        "type": "actions",
        "block_id": "ap_7F3K:1",
        "elements": [
            button(
                "Approve",
                "approve",
                style="primary",
                accessibility_label="Approve the refund of 899.00",
            ),
            button("Edit", "edit"),
            button("Reject", "reject", style="danger"),
            button("Respond", "respond"),
            button("View all", "view_all"),
        ],
    }


def approval_card(arguments: str = ARGUMENTS) -> list[Json]:
    """Return the blocks of an approval card that waits."""
    expiry = f"<!date^{int(NOW + 2700)}^{{time}}|soon>"
    return [
        {
            "type": "header",
            "block_id": "head",
            "text": plain("process_refund needs an approval"),
        },
        preformatted(arguments),
        {
            "type": "context",
            "block_id": "why",
            "elements": [mrkdwn("*Approve* · rule “refunds over 500 need a person”")],
        },
        {
            "type": "context",
            "block_id": "who",
            "elements": [
                mrkdwn(
                    f"Asked by <@U0DAN> through support-agent · expires at {expiry}"
                ),
                plain("sha256:9f2c41d0"),
            ],
        },
        card_buttons(),
    ]


def answered_card() -> list[Json]:
    """Return a card after an edit was approved."""
    rows = [
        ["argument", "asked for", "runs with"],
        ["amount", "120.00", "60.00"],
        ["reason", "late delivery", "late delivery, half refunded"],
    ]
    cells = [[{"type": "raw_text", "text": text} for text in row] for row in rows]
    return [
        {
            "type": "header",
            "block_id": "head2",
            "text": plain("process_refund was edited and approved"),
        },
        {"type": "table", "block_id": "diff", "rows": cells},
        {
            "type": "context",
            "block_id": "by",
            "elements": [
                mrkdwn("Edited and approved by <@U0BEN> · executed at 09:41"),
                plain("sha256:11aa07ce"),
            ],
        },
    ]


def message(at: str, user: str, text: str, **more: Any) -> Json:
    """Return a message as it is in the state."""
    return {
        "ts": at,
        "user": user,
        "bot": user == BOT,
        "text": text,
        "blocks": None,
        "thread_ts": None,
        "edited": False,
        "ephemeral": False,
        "metadata": None,
        **more,
    }


CARD_TS = ts(3)
ANSWERED_TS = ts(41)


def approvals_messages() -> list[Json]:
    """Return the texts of the approvals channel."""
    said = "Keyturn: process_refund was edited and approved."
    waiting = "Keyturn: process_refund waits for an approval (ap_7F3K)."
    return [
        message(ts(1500), "U0BEN", "I am on refunds *today*, back at 14:00."),
        message(ANSWERED_TS, BOT, said, blocks=answered_card(), thread_ts=ANSWERED_TS),
        message(ts(40), BOT, "<@U0BEN> changed `amount`.", thread_ts=ANSWERED_TS),
        message(ts(39), "U0BEN", "Half is fair here.", thread_ts=ANSWERED_TS),
        message(ts(8), "U0DAN", "Customer of 78291 wrote again, please have a look."),
        message(ts(8, 2), "U0DAN", "She sent photos: https://example.com/p/1"),
        message(CARD_TS, BOT, waiting, blocks=approval_card()),
        message(
            ts(1),
            BOT,
            "You asked for this, so someone else has to approve it.",
            ephemeral=True,
        ),
    ]


def channel(channel_id: str, name: str, messages: list[Json], **more: Any) -> Json:
    """Return a channel as it is in the state."""
    return {
        "id": channel_id,
        "name": name,
        "is_im": False,
        "is_member": True,
        "bot_is_member": True,
        "messages": messages,
        **more,
    }


def user(user_id: str, name: str, real_name: str, color: str, **more: Any) -> Json:
    """Return a user as it is in the state."""
    return {
        "id": user_id,
        "name": name,
        "real_name": real_name,
        "color": color,
        "is_bot": False,
        **more,
    }


def users() -> list[Json]:
    """Return the people of the workspace."""
    return [
        user("U0ANA", "ana", "Ana Alves", "b0413e"),
        user("U0BEN", "ben", "Ben Boer", "2a6f97"),
        user("U0CHLOE", "chloe", "Chloé Chen", "6a4c93"),
        user("U0DAN", "dan", "Dan Díaz", "2d7d46"),
        user("U0SAM", "sam", "Sam Stranger", "9c2c77", is_stranger=True),
        user(BOT, "keyturn", "Keyturn", "1f4e5f", is_bot=True),
    ]


def suggestions() -> list[Json]:
    """Return what one can ask the agent to do."""
    asks = [
        ("refund order 78291", "Please refund order 78291."),
        ("e-mail a customer", "Write to cus_4Q7 that the envelope is late."),
    ]
    return [
        {"label": a, "text": b, "channel": "C0GENERAL", "user": ""} for a, b in asks
    ]


def workspace(messages: list[Json] | None = None) -> Json:
    """Return the state of a small workspace, as Ana sees it."""
    hello = message(ts(200), BOT, "Hello, I bring what agents want to do.")
    general = message(ts(90), "U0CHLOE", "Good morning :wave:")
    return {
        "seq": 1,
        "now": NOW,
        "team": {"id": "T0SANDBOX", "name": "Harbour Support"},
        "me": users()[0],
        "users": users(),
        "bot": {"user_id": BOT, "name": "Keyturn", "connected": True},
        "usergroups": [
            {
                "id": "S0SUPPORT",
                "handle": "support",
                "name": "Support",
                "users": ["U0ANA", "U0BEN"],
            }
        ],
        "channels": [
            channel(
                CHANNEL,
                "agent-approvals",
                approvals_messages() if messages is None else messages,
            ),
            channel("C0GENERAL", "general", [general]),
            channel("C0OPEN", "launch", [], is_member=False, bot_is_member=False),
            channel("D0ANA", "Keyturn", [hello], is_im=True),
        ],
        "views": [],
        "home": None,
        "notices": [],
        "suggestions": suggestions(),
        "commands": ["/approvals", "/agents"],
    }


def view(view_id: str, blocks: list[Json], **more: Any) -> Json:
    """Return a modal as it is in the state."""
    return {
        "id": view_id,
        "type": "modal",
        "callback_id": "edit",
        "title": plain("Edit the call"),
        "submit": plain("Approve as edited"),
        "close": plain("Cancel"),
        "blocks": blocks,
        "hash": f"{view_id}.1",
        "state": {"values": {}},
        "errors": {},
        **more,
    }

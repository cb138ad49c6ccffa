"""Define action ids and callback ids, and sign the values of buttons (HMAC).

A seal is the ``value`` of a button or the ``private_metadata`` of a modal. It contains
the approval, its version and the item in plain text, and a short MAC. The MAC covers
these and the state they refer to (team, action hash or batch digest, purpose). The
server reads the record again and recomputes the MAC. It refuses a value made for
another approval, item, version, team or button, and one with a flipped bit (threat
T11). Versions differ after an edit: compare them first to report that the card is old.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydantic import JsonValue

from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.errors import BadJson
from keyturn.gateway.protocol import digest


class Action(StrEnum):
    """Every ``action_id`` of the bot's buttons and menus."""

    APPROVE = "approve"
    APPROVE_ALL = "approve_all"
    REJECT_ALL = "reject_all"
    CHOOSE = "choose"
    CHOOSE_EDIT = "choose_edit"
    CHOOSE_ORDER = "choose_order"
    EDIT = "edit"
    REJECT = "reject"
    RESPOND = "respond"
    ANSWER = "answer"
    SKIP = "skip"
    VIEW_ALL = "view_all"
    MORE = "more"
    TAKE = "take"
    SNOOZE = "snooze"
    SNOOZE_OVERNIGHT = "snooze_overnight"
    EXTEND = "extend"
    RECONCILE_EXECUTED = "reconcile_executed"
    RECONCILE_RERUN = "reconcile_rerun"
    RECONCILE_SKIP = "reconcile_skip"
    RECONCILE_NOTE = "reconcile_note"
    PAGE_BACK = "page_back"
    PAGE_NEXT = "page_next"
    FREEZE_TOOL = "freeze_tool"
    FREEZE_AGENT = "freeze_agent"
    TRY_AGAIN = "try_again"
    REPORT = "report"
    REFRESH = "refresh"
    APPROVE_ROW = "approve_row"
    REVIEW = "review_together"
    FILTER_TOOL = "filter_tool"
    FILTER_AGENT = "filter_agent"
    FILTER_TIER = "filter_tier"
    HOME_BACK = "home_back"
    HOME_NEXT = "home_next"
    CHECK_RIGHT = "check_right"
    CHECK_WRONG = "check_wrong"
    PAST = "past"
    PAST_MINE = "past_mine"
    EDIT_WORDS = "edit_words"
    REJECT_WORDS = "reject_words"
    RESPOND_WORDS = "respond_words"
    ALLOW_SIMILAR = "allow_similar"
    ASK_REQUESTER = "ask_requester"
    ASK_AGAIN = "ask_again"
    REVOKE = "revoke_standing"
    USES = "uses"


class View(StrEnum):
    """Every ``callback_id`` of the bot's modals and tabs."""

    APPROVE = "approve_modal"
    EDIT = "edit_modal"
    EDIT_RAISED = "edit_raised_modal"
    REJECT = "reject_modal"
    REJECT_ALL = "reject_all_modal"
    CHOOSE = "choose_modal"
    CHOOSE_EDIT = "choose_edit_modal"
    CHOOSE_CONFIRM = "choose_confirm_modal"
    RESPOND = "respond_modal"
    ANSWER = "answer_modal"
    RECONCILE = "reconcile_modal"
    DETAILS = "details_modal"
    NOTICE = "notice_modal"
    REPORT = "report_modal"
    PAST = "past_modal"
    PAST_MINE = "past_mine_modal"
    HOME = "home_tab"
    ALLOW_SIMILAR = "allow_similar_modal"
    ASK_REQUESTER = "ask_requester_modal"
    USES = "uses_modal"


class Input(StrEnum):
    """Every fixed ``block_id`` of an input in a modal; ``action_id`` is the same."""

    REASON = "reason"
    PRESET = "preset"
    MESSAGE = "message"
    QUESTION = "question"
    READ_ALL = "read_all"
    OTHERS = "others"
    REMARK = "remark"
    FINDING = "finding"
    NOTE = "note"
    SEARCH = "search"
    LASTING = "lasting"
    USES = "uses"
    EACH = "each"
    TOTAL = "total"


VALUE = "value"
"""The ``action_id`` of every input that the edit form makes from a schema."""

COMMAND = "/approvals"
"""Default name of the slash command."""

CARD_EVENT = "keyturn_card"
"""``event_type`` of a card's message metadata; its payload contains ids only."""

PAGE = "page"
"""The purpose of a seal that opens one page of the details."""

OF_WAITING = frozenset(
    {
        Action.APPROVE_ALL,
        Action.REJECT_ALL,
        Action.CHOOSE,
        View.REJECT_ALL,
        View.CHOOSE,
        View.CHOOSE_CONFIRM,
    }
)
"""Purposes about all pending calls, whose seals include the list of these calls.

The batch digest covers the calls and not their states. Without the list, a click on a
card would apply to fewer calls than its reviewer saw if one was decided in the
meantime.
"""

# 128 bits: a forger has one try per click, and each is logged. The value stays short,
# since every card has some twenty of them.
MAC_BYTES = 16
_KEY_ID_TAG, _KEY_ID_DIGITS = b"keyturn/v1/seal-key-id", 12
_SEAL_TAG = "keyturn/v1/seal"
_NAME_TAG = "keyturn/v1/seal/name"
_WHOLE = "all"
_MAX_SEAL = 255
_MAC = re.compile(r"[A-Za-z0-9_-]{21}[AQgw]", re.ASCII)


class BadSeal(ValueError):
    """A string does not have the form of a signed value; no part of it was trusted."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """The unverified parts of a seal; `verify` checks its MAC.

    Attributes:
        approval: id of the approval.
        version: the approval's version when the seal was made.
        index: the item, or None for the batch as a whole.
        mac: 16 bytes.
        page: the page of the details to open, from 1; 0 for none.
    """

    approval: str
    version: int
    index: int | None
    mac: bytes
    page: int = 0


def seal(
    approval: Approval,
    index: int | None,
    *,
    key: bytes,
    team: str,
    purpose: str,
    page: int = 0,
) -> str:
    """Return the opaque text for a button's value or a modal's private metadata.

    Args:
        approval: the record as the card or modal shows it.
        index: the item, or None for the batch as a whole.
        key: the bot's sealing key.
        team: the workspace of the card.
        purpose: the only valid use: an `Action`, a `View`, or `PAGE`.
        page: the page of the details to open, from 1.
    """
    # The MAC covers the purpose, but the text does not contain it: a value made for one
    # button is refused at every other one, and does not reveal its button.
    mac = _mac(approval, index, key=key, team=team, purpose=purpose, page=page)
    where = _WHOLE if index is None else str(index)
    if page:
        where = f"{where}.{page}"
    return f"{approval.id}:{approval.version}:{where}:{_encoded(mac)}"


def choice(action: str, sealed: str) -> str:
    """Return the value of an option in a menu: the action, and its button's value."""
    return f"{action} {sealed}"


def chosen(text: str) -> tuple[str, str]:
    """Return the action chosen in a menu, and the value of its button."""
    action, _, sealed = text.partition(" ")
    return action, sealed


def unseal(text: str) -> Sealed:
    """Read the parts of a seal without trusting them.

    Raises:
        BadSeal: the text does not have the form that `seal` writes.
    """
    parts = text.rsplit(":", 3)
    # 255 characters are far less than Slack allows in a value; a longer text is not a
    # seal and is not worth parsing. `rsplit`: an id may contain colons, the last three
    # parts never do.
    if len(text) > _MAX_SEAL or len(parts) != 4 or not parts[0]:  # noqa: PLR2004 - approval, version, item, MAC
        raise BadSeal(f"{text[:80]!r} is not a seal of ours.")
    approval, version, where, mac = parts
    index, dot, page = where.partition(".")
    # "No page" has one spelling, without a dot: a MAC is valid for one text only.
    if dot and page == "0":
        raise BadSeal(f"{text[:80]!r} is not a seal of ours.")
    return Sealed(
        approval=approval,
        version=_counted(version),
        index=None if index == _WHOLE else _counted(index),
        mac=_decoded(mac),
        page=_counted(page) if dot else 0,
    )


def verify(
    sealed: Sealed, approval: Approval, *, key: bytes, team: str, purpose: str
) -> bool:
    """Return whether the bot made a seal for this record, team and purpose.

    The MAC is computed from the stored record and compared in constant time.
    """
    if (sealed.approval, sealed.version) != (approval.id, approval.version):
        return False
    # The index is not verified yet; without this check a forged one would raise
    # IndexError instead of being refused.
    if sealed.index is not None and sealed.index >= len(approval.items):
        return False
    wanted = _mac(
        approval, sealed.index, key=key, team=team, purpose=purpose, page=sealed.page
    )
    return hmac.compare_digest(wanted, sealed.mac)


def seal_name(name: str, *, key: bytes, team: str, purpose: str) -> str:
    """Return the opaque text for a button on a message that belongs to no card.

    Args:
        name: of a run's outage, or of an agent.
        key: the bot's sealing key.
        team: the workspace of the message.
        purpose: the only valid use: an `Action`.
    """
    mac = _mac_of([_NAME_TAG, team, name, str(purpose)], key)
    return f"{name}:{_encoded(mac)}"


def name_in(text: str, *, keys: Sequence[bytes], team: str, purpose: str) -> str:
    """Return the name in a button's value; "" unless the bot sealed it for this."""
    name, _, _ = text.rpartition(":")
    try:
        wanted = [seal_name(name, key=key, team=team, purpose=purpose) for key in keys]
    except BadJson:  # half of a surrogate pair, which no seal contains
        return ""
    given = text.encode(errors="replace")
    is_sealed = any(hmac.compare_digest(one.encode(), given) for one in wanted)
    return name if is_sealed else ""


def key_id(key: bytes) -> str:
    """Return the id of a sealing key, which reveals nothing about the key."""
    # With a separate tag, so that this id, which is logged and stored, can never be the
    # MAC of a seal.
    return hmac.new(key, _KEY_ID_TAG, hashlib.sha256).hexdigest()[:_KEY_ID_DIGITS]


def _mac(
    approval: Approval,
    index: int | None,
    *,
    key: bytes,
    team: str,
    purpose: str,
    page: int,
) -> bytes:
    # The MAC covers the approved action as well as the version: a record restored from
    # an older copy may have the same version and other arguments.
    bound = approval.digest if index is None else approval.items[index].action_hash
    of_all: list[JsonValue] = []
    if purpose in OF_WAITING:
        of_all.append([item.index for item in approval.items if item.is_pending])
    place: list[JsonValue] = [approval.id, approval.version, index, page]
    return _mac_of([_SEAL_TAG, team, *place, bound, *of_all, str(purpose)], key)


def _mac_of(parts: list[JsonValue], key: bytes) -> bytes:
    document = digest.canonical(parts)
    return hmac.digest(key, document, "sha256")[:MAC_BYTES]


def _counted(text: str) -> int:
    # `isdigit` accepts digits of other alphabets, and int() leading zeros: one number
    # must have one spelling, as one MAC has.
    if not (text.isascii() and text.isdigit() and str(int(text)) == text):
        raise BadSeal(f"{text[:80]!r} is not a number in a seal.")
    return int(text)


def _decoded(text: str) -> bytes:
    """Return the MAC; one MAC has one spelling, so no character can be altered."""
    # The last digit has two bits of the MAC: if the others could vary, many texts would
    # be one MAC.
    if not _MAC.fullmatch(text):
        raise BadSeal(f"{text[:80]!r} is not a MAC in a seal.")
    return base64.urlsafe_b64decode(f"{text}==")


def _encoded(mac: bytes) -> str:
    return base64.urlsafe_b64encode(mac).rstrip(b"=").decode("ascii")

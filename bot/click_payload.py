"""Read of a click on a message only what decides; all else of its payload is skipped.

Slack sends the whole message with each click. To make Python objects of it takes longer
than to decide. What is not of the plain shape is left to `twokey.bot.payload`, which
also says what is wrong with it: where both read a click, they read the same.
"""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from twokey.bot.payload import BlockAction

_Text = Annotated[str, Field(min_length=1)]


class _Named(TypedDict):
    id: _Text


class _User(TypedDict):
    id: _Text
    team_id: NotRequired[str | None]


class _Container(TypedDict):
    message_ts: _Text


class _Action(TypedDict):
    action_id: _Text
    block_id: _Text
    value: _Text


class _Click(TypedDict):
    type: Literal["block_actions"]
    user: _User
    team: _Named
    channel: _Named
    container: _Container
    actions: tuple[_Action]
    trigger_id: _Text
    response_url: NotRequired[str | None]
    view: NotRequired[None]


_CLICK = TypeAdapter(_Click)


def click_on_message(document: bytes) -> BlockAction | None:
    """Return what `payload.block_action` returns of a click on a message.

    None for all that is anything else, or nothing that can be read here.
    """
    try:
        found = _CLICK.validate_json(document, strict=True)
    except ValidationError:
        return None
    user, team, [action] = found["user"], found["team"]["id"], found["actions"]
    return BlockAction(
        team=team,
        user=user["id"],
        user_team=user.get("team_id") or team,
        channel=found["channel"]["id"],
        message_ts=found["container"]["message_ts"],
        action_id=action["action_id"],
        block_id=action["block_id"],
        value=action["value"],
        trigger_id=found["trigger_id"],
        response_url=found.get("response_url") or "",
    )

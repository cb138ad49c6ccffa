"""Post, update and delete messages under Slack's rules."""

from dataclasses import replace

from keyturn.sandbox.api_errors import ApiError
from keyturn.sandbox.elements import with_ids
from keyturn.sandbox.fake_slack import FakeSlack
from keyturn.sandbox.json_types import JsonObject, as_object, as_objects
from keyturn.sandbox.mentions import notified
from keyturn.sandbox.records import Channel, Message
from keyturn.sandbox.validation import check_message
from keyturn.sandbox.workspace import Workspace


def reachable(workspace: Workspace, reference: object) -> Channel:
    """Return the channel for an id, a #name or a person's id.

    Raises:
        ApiError: `channel_not_found`, also for channels hidden from the bot.
    """
    wanted = str(reference or "")
    if wanted.startswith("U") and wanted in workspace.users:
        user = workspace.users[wanted]
        if user.deleted or user.is_bot:
            raise ApiError("channel_not_found")
        return workspace.direct_message(wanted)
    name = wanted.removeprefix("#")
    for channel in workspace.channels.values():
        if wanted == channel.id or (name == channel.name and not channel.is_im):
            # As if it did not exist: private channels are hidden from the bot.
            if channel.is_private and workspace.app.bot_user not in channel.members:
                break
            return channel
    raise ApiError("channel_not_found")


def postable(workspace: Workspace, reference: object) -> Channel:
    """Return a channel that the bot may post to.

    Raises:
        ApiError: `channel_not_found`, `is_archived` or `not_in_channel`.
    """
    channel = reachable(workspace, reference)
    if channel.is_archived:
        raise ApiError("is_archived")
    if workspace.app.bot_user in channel.members:
        return channel
    # Only public channels: a private one without the bot was not found above.
    if "chat:write.public" in workspace.bot_scopes:
        return channel
    raise ApiError("not_in_channel")


def post(
    slack: FakeSlack,
    channel: Channel,
    content: JsonObject,
    *,
    ephemeral_to: str | None = None,
) -> Message:
    """Store a new message of the bot.

    `content` contains `text`, `blocks`, `thread_ts` and `metadata` in Slack's format.
    """
    text, blocks = content.get("text"), content.get("blocks") or None
    check_message(blocks, text)
    thread_ts = content.get("thread_ts") or None
    if thread_ts is not None:
        thread_ts = _thread(slack.workspace, channel, str(thread_ts))
    made = tuple(with_ids(as_objects(blocks))) or None
    message = Message(
        channel=channel.id,
        ts=slack.clock.next_ts(),
        user=slack.workspace.app.bot_user,
        text=str(text or ""),
        is_bot=True,
        blocks=made,
        notified=notified(slack.workspace, channel, str(text or ""), made),
        thread_ts=thread_ts,
        ephemeral_to=ephemeral_to,
        metadata=check_metadata(content.get("metadata")),
    )
    slack.workspace.put_message(message)
    return message


def change(slack: FakeSlack, message: Message, content: JsonObject) -> Message:
    """Replace a message's text and blocks; text without blocks removes the blocks.

    Raises:
        ApiError: for bad blocks, `edit_window_closed` or `block_mismatch`.
    """
    window = slack.workspace.edit_window_s
    if window is not None and slack.clock.now() - float(message.ts) > window:
        raise ApiError("edit_window_closed")
    text, blocks = content.get("text"), content.get("blocks")
    check_message(blocks or None, text, update=True)
    kept = tuple(with_ids(as_objects(blocks))) or None
    # A message from Slack's composer is only rich text, and must stay so.
    if kept and _only_rich_text(message.blocks) and not _only_rich_text(kept):
        raise ApiError("block_mismatch")
    # Slack stores a table as an attachment, and keeps attachments until a change names
    # them: https://docs.slack.dev/reference/methods/chat.update
    shown = kept or ()
    if content.get("attachments") is None and not any(map(_is_table, shown)):
        shown += tuple(filter(_is_table, message.blocks or ()))
    changed = replace(
        message,
        text=str(text or ""),
        blocks=shown or None,
        edited=message.edited or kept is None,
        metadata=_new_metadata(message.metadata, content.get("metadata")),
    )
    slack.workspace.put_message(changed)
    return changed


def _is_table(block: JsonObject) -> bool:
    return block.get("type") == "table"


def remove(slack: FakeSlack, message: Message) -> Message | None:
    """Delete a message; return the tombstone that remains if it has replies."""
    replies = [
        other
        for other in slack.workspace.messages[message.channel].values()
        if other.thread_ts == message.ts != other.ts
    ]
    if not replies:
        slack.workspace.drop_message(message)
        return None
    tombstone = replace(
        message,
        text="This message was deleted.",
        blocks=None,
        metadata=None,
        edited=False,
        is_tombstone=True,
    )
    slack.workspace.put_message(tombstone)
    return tombstone


def _thread(workspace: Workspace, channel: Channel, ts: str) -> str | None:
    """Return the thread of a reply; None if its message was deleted.

    Slack then silently posts the reply into the channel (slack-go#1571).
    """
    parent = workspace.messages[channel.id].get(ts)
    if parent is not None:
        return parent.thread_ts or parent.ts
    if (channel.id, ts) not in workspace.deleted:
        raise ApiError("thread_not_found")
    return None


def own_message(
    slack: FakeSlack, channel: Channel, ts: object, refusal: str
) -> Message:
    """Return a permanent message of the bot.

    Raises:
        ApiError: `message_not_found` (ephemeral messages are never found), or `refusal`
            if another user wrote it.
    """
    message = slack.workspace.messages[channel.id].get(str(ts or ""))
    if message is None:
        raise ApiError("message_not_found")
    if message.is_tombstone:
        raise ApiError("message_not_found")
    if message.user != slack.workspace.app.bot_user:
        raise ApiError(refusal)
    return message


def check_metadata(metadata: object) -> JsonObject | None:
    """Return valid message metadata; refuse other formats."""
    if metadata is None:
        return None
    document = as_object(metadata)
    if not isinstance(document.get("event_type"), str) or not isinstance(
        document.get("event_payload"), dict
    ):
        raise ApiError("invalid_metadata_format")
    return {
        "event_type": document["event_type"],
        "event_payload": document["event_payload"],
    }


def _new_metadata(before: JsonObject | None, given: object) -> JsonObject | None:
    """Keep metadata that an update omits; `{}` removes it."""
    if given is None:
        return before
    return None if given == {} else check_metadata(given)


def wire(slack: FakeSlack, message: Message) -> JsonObject:
    """Return a message in the format of Slack's API and payloads."""
    app, team_id = slack.workspace.app, slack.workspace.team_id
    shown: JsonObject = {
        "type": "message",
        "user": message.user,
        "ts": message.ts,
        "text": message.text,
        "team": team_id,
    }
    if message.is_bot:
        shown["bot_id"] = app.bot_id
        shown["app_id"] = app.id
        shown["bot_profile"] = {
            "id": app.bot_id,
            "app_id": app.id,
            "name": app.name,
            "team_id": team_id,
            "deleted": False,
        }
    if message.blocks is not None:
        shown["blocks"] = list(message.blocks)
    if message.thread_ts is not None:
        shown["thread_ts"] = message.thread_ts
        above = slack.workspace.messages[message.channel].get(message.thread_ts)
        if above is not None and above.ts != message.ts:
            shown["parent_user_id"] = above.user
    if message.metadata is not None:
        shown["metadata"] = message.metadata
    if message.edited:
        edited_ts = message.edited_ts or message.ts
        shown["edited"] = {"user": message.user, "ts": edited_ts}
    if message.is_tombstone:
        shown |= {"subtype": "tombstone", "user": "USLACKBOT", "hidden": True}
    return shown


def _only_rich_text(blocks: tuple[JsonObject, ...] | None) -> bool:
    kinds = {block.get("type") for block in blocks or ()}
    return kinds == {"rich_text"}

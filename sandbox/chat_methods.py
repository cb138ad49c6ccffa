"""Web API methods ``chat.*``."""

from collections.abc import Callable

from keyturn.sandbox import messages
from keyturn.sandbox.api_errors import ApiError
from keyturn.sandbox.arguments import message_content, optional, required
from keyturn.sandbox.fake_slack import FakeSlack
from keyturn.sandbox.json_types import JsonObject
from keyturn.sandbox.records import Channel, Message


def post_message(slack: FakeSlack, arguments: JsonObject) -> JsonObject:
    """Post a message to a channel or a person."""
    channel = messages.postable(slack.workspace, arguments.get("channel"))
    message = messages.post(slack, channel, message_content(arguments))
    return {
        "channel": channel.id,
        "ts": message.ts,
        "message": messages.wire(slack, message),
    }


def post_ephemeral(slack: FakeSlack, arguments: JsonObject) -> JsonObject:
    """Show a message to one member of a channel."""
    channel = messages.postable(slack.workspace, arguments.get("channel"))
    user = required(arguments, "user")
    if user not in channel.members:
        raise ApiError("user_not_in_channel")
    content = message_content(arguments)
    message = messages.post(slack, channel, content, ephemeral_to=user)
    return {"message_ts": message.ts}


def update(slack: FakeSlack, arguments: JsonObject) -> JsonObject:
    """Replace one of the bot's messages."""
    channel, message = _changeable(slack, arguments, "cant_update_message")
    changed = messages.change(slack, message, message_content(arguments))
    return {
        "channel": channel.id,
        "ts": changed.ts,
        "text": changed.text,
        "message": messages.wire(slack, changed),
    }


def delete(slack: FakeSlack, arguments: JsonObject) -> JsonObject:
    """Remove one of the bot's messages."""
    channel, message = _changeable(slack, arguments, "cant_delete_message")
    messages.remove(slack, message)
    return {"channel": channel.id, "ts": message.ts}


def get_permalink(slack: FakeSlack, arguments: JsonObject) -> JsonObject:
    """Return a message's address on the sandbox's page."""
    channel = messages.reachable(slack.workspace, arguments.get("channel"))
    ts = optional(arguments, "message_ts")
    if ts not in slack.workspace.messages[channel.id]:
        raise ApiError("message_not_found")
    place = f"{channel.id}/p{ts.replace('.', '')}"
    return {"channel": channel.id, "permalink": f"{slack.base_url}/archives/{place}"}


def _changeable(
    slack: FakeSlack, arguments: JsonObject, refusal: str
) -> tuple[Channel, Message]:
    workspace = slack.workspace
    channel = messages.reachable(workspace, arguments.get("channel"))
    if channel.is_archived:
        raise ApiError("is_inactive")
    messages.postable(workspace, channel.id)
    return channel, messages.own_message(slack, channel, arguments.get("ts"), refusal)


METHODS: dict[str, Callable[[FakeSlack, JsonObject], JsonObject]] = {
    "chat.delete": delete,
    "chat.getPermalink": get_permalink,
    "chat.postEphemeral": post_ephemeral,
    "chat.postMessage": post_message,
    "chat.update": update,
}

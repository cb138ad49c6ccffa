"""Apply the app's posts to a ``response_url`` and its answers to commands."""

from keyturn.sandbox import messages
from keyturn.sandbox.api_errors import ApiError
from keyturn.sandbox.fake_slack import FakeSlack
from keyturn.sandbox.json_types import JsonObject, as_object
from keyturn.sandbox.response_urls import ResponseUrl


def respond(slack: FakeSlack, place: ResponseUrl, body: JsonObject) -> None:
    """Post, replace or delete a message, according to the body.

    A new message is ephemeral unless `response_type` is `in_channel`. If the original
    is gone, the request is ignored without an error: Slack does not document its
    answer, and an app that relies on an error would fail unnoticed.

    Raises:
        ApiError: for blocks Slack refuses.
    """
    channel = slack.workspace.channels[place.channel]
    if body.get("delete_original") or body.get("replace_original"):
        try:
            original = slack.workspace.message(
                channel.id, place.message_ts or "", place.user
            )
        except ApiError:
            return
        if original.is_tombstone:
            return
        if body.get("delete_original"):
            slack.workspace.drop_message(original)
        else:
            messages.change(slack, original, body)
        return
    ephemeral = body.get("response_type", "ephemeral") != "in_channel"
    content = {**body, "thread_ts": body.get("thread_ts") or place.thread_ts}
    messages.post(
        slack, channel, content, ephemeral_to=place.user if ephemeral else None
    )


def command_answer(body: object) -> JsonObject | None:
    """Return the message in a command's acknowledgement, None if it is empty."""
    if isinstance(body, str):
        return {"text": body} if body.strip() else None
    return as_object(body) or None

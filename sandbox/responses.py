"""Apply what the app posts to a ``response_url`` or answers to a command."""

from keyturn.sandbox import messages
from keyturn.sandbox.api_errors import ApiError
from keyturn.sandbox.fake_slack import FakeSlack
from keyturn.sandbox.json_types import JsonObject, as_object
from keyturn.sandbox.response_urls import ResponseUrl


def respond(slack: FakeSlack, place: ResponseUrl, body: JsonObject) -> None:
    """Post, replace or delete a message as the body says.

    A new message is ephemeral unless `response_type` is `in_channel`. Where the
    original is gone, nothing happens, and nothing is refused: what Slack answers then
    is in no documentation, and an app that relies on a refusal would not notice.

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
    """Return the message in a command's acknowledgement, None when it is empty."""
    if isinstance(body, str):
        return {"text": body} if body.strip() else None
    return as_object(body) or None

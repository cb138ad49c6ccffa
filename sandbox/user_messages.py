"""Post, edit and delete messages as a person, and send the app Slack's events.

An edited message that mentions the bot is sent as `app_mention` again: with a new event
id, the `ts` of the message and an `edited` member (bolt-js#960, slack-go#1256). New,
edited and deleted messages in the bot's direct messages are sent as `message`. Edits
and deletions in a channel send no other event: that requires `channels:history`.
"""

from dataclasses import replace

from keyturn.sandbox import messages, payloads
from keyturn.sandbox.api_errors import ApiError
from keyturn.sandbox.delivery import Delivery
from keyturn.sandbox.fake_slack import FakeSlack
from keyturn.sandbox.json_types import JsonObject, as_text
from keyturn.sandbox.mentions import escaped, mentions_bot, notified
from keyturn.sandbox.records import Channel, Message, User
from keyturn.sandbox.workspace import Workspace


class UserMessages:
    """A person's actions on their messages."""

    def __init__(self, slack: FakeSlack, delivery: Delivery) -> None:
        self._slack = slack
        self._delivery = delivery

    async def say(self, user: User, request: JsonObject) -> JsonObject:
        """Post a message; `thread_ts` puts it into a thread."""
        workspace = self._slack.workspace
        channel = self._writable(user, request)
        text = escaped(workspace, _text(request))
        thread_ts = request.get("thread_ts") or None
        if thread_ts is not None:
            parent = workspace.message(channel.id, str(thread_ts), user.id)
            thread_ts = parent.thread_ts or parent.ts
        message = Message(
            channel=channel.id,
            ts=self._slack.clock.next_ts(),
            user=user.id,
            text=text,
            thread_ts=thread_ts,
            notified=notified(workspace, channel, text, None) - {user.id},
        )
        workspace.put_message(message)
        if channel.is_im:
            await self._deliver_direct(user, channel, self._message_event(message))
        else:
            await self._deliver_mention(user, channel, message)
        return {"ok": True, "ts": message.ts}

    async def edit(self, user: User, request: JsonObject) -> JsonObject:
        """Replace the text of one of the person's messages."""
        channel = self._writable(user, request)
        before = self._own(user, channel, request, "cant_update_message")
        text = escaped(self._slack.workspace, _text(request))
        if text == before.text:
            return {"ok": True, "ts": before.ts}
        after = replace(
            before, text=text, edited=True, edited_ts=self._slack.clock.next_ts()
        )
        self._slack.workspace.put_message(after)
        if channel.is_im:
            await self._deliver_direct(user, channel, self._changed(after, before))
        else:
            await self._deliver_mention(user, channel, after)
        return {"ok": True, "ts": after.ts}

    async def delete(self, user: User, request: JsonObject) -> JsonObject:
        """Delete one of the person's messages."""
        channel = self._writable(user, request)
        gone = self._own(user, channel, request, "cant_delete_message")
        tombstone = messages.remove(self._slack, gone)
        if channel.is_im:
            body = self._changed(tombstone, gone) if tombstone else self._deleted(gone)
            await self._deliver_direct(user, channel, body)
        return {"ok": True, "ts": gone.ts}

    def _writable(self, user: User, request: JsonObject) -> Channel:
        workspace = self._slack.workspace
        channel = channel_of(workspace, user, request, member=True)
        if channel.is_archived:
            raise ApiError("is_archived")
        return channel

    def _own(
        self, user: User, channel: Channel, request: JsonObject, refusal: str
    ) -> Message:
        ts = as_text(request.get("ts"))
        found = self._slack.workspace.messages[channel.id].get(ts)
        if found is None or found.is_tombstone:
            raise ApiError("message_not_found")
        if found.user != user.id:
            raise ApiError(refusal)
        return found

    async def _deliver_mention(
        self, user: User, channel: Channel, message: Message
    ) -> None:
        workspace = self._slack.workspace
        if not mentions_bot(workspace, message.text):
            return
        if workspace.app.bot_user not in channel.members:
            text = f"{workspace.app.name} is not in this channel; invite it first."
            self._slack.notify(user.id, text, "info")
        elif (
            "app_mention" in workspace.events
            and "app_mentions:read" in workspace.bot_scopes
        ):
            await self._deliver_event(
                {**self._message_event(message), "type": "app_mention"}
            )

    async def _deliver_direct(
        self, user: User, channel: Channel, body: JsonObject
    ) -> None:
        workspace = self._slack.workspace
        if "message.im" in workspace.events and "im:history" in workspace.bot_scopes:
            await self._deliver_event(
                body | {"channel": channel.id, "channel_type": "im"}
            )
        else:
            name = workspace.app.name
            text = (
                f"{name} cannot read direct messages: it needs the event message.im "
                "and the scope im:history."
            )
            self._slack.notify(user.id, text, "info")

    async def _deliver_event(self, body: JsonObject) -> None:
        await self._delivery.deliver(payloads.event(self._slack, body))

    def _message_event(self, message: Message) -> JsonObject:
        return {
            **messages.wire(self._slack, message),
            "team": self._slack.workspace.users[message.user].team_id,
            "channel": message.channel,
            "event_ts": message.ts,
        }

    def _changed(self, after: Message, before: Message) -> JsonObject:
        at = self._slack.clock.next_ts()
        return {
            "type": "message",
            "subtype": "message_changed",
            "hidden": True,
            "message": messages.wire(self._slack, after),
            "previous_message": messages.wire(self._slack, before),
            "ts": at,
            "event_ts": at,
        }

    def _deleted(self, gone: Message) -> JsonObject:
        at = self._slack.clock.next_ts()
        return {
            "type": "message",
            "subtype": "message_deleted",
            "hidden": True,
            "deleted_ts": gone.ts,
            "previous_message": messages.wire(self._slack, gone),
            "ts": at,
            "event_ts": at,
        }


def channel_of(
    workspace: Workspace, user: User, request: JsonObject, *, member: bool = False
) -> Channel:
    """Return the requested channel if the person can see it.

    Raises:
        ApiError: `channel_not_found`; with `member`, `not_in_channel` too.
    """
    channel = workspace.channels.get(as_text(request.get("channel")))
    if channel is None or not workspace.can_see(user, channel):
        raise ApiError("channel_not_found")
    if member and user.id not in channel.members:
        raise ApiError("not_in_channel")
    return channel


def _text(request: JsonObject) -> str:
    text = as_text(request.get("text")).strip()
    if not text:
        raise ApiError("no_text")
    return text

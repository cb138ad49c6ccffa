"""Build Slack's payloads: events, block actions, view submissions, commands.

Source: https://docs.slack.dev/reference/interaction-payloads and, for the exact
members, the payloads recorded in the tests of slack_sdk and bolt.
"""

import secrets
from typing import NamedTuple

from keyturn.sandbox import messages, views
from keyturn.sandbox.delivery import Envelope, EnvelopeKind
from keyturn.sandbox.fake_slack import FakeSlack
from keyturn.sandbox.json_types import JsonObject
from keyturn.sandbox.records import Channel, Message, User, View

LEGACY_TOKEN = "sandbox-verification"  # noqa: S105 - Slack's deprecated member


class Interaction(NamedTuple):
    """The acting user, and the interaction's trigger id ("" for none)."""

    user: User
    trigger_id: str = ""


def on_message(
    slack: FakeSlack,
    interaction: Interaction,
    message: Message,
    action: JsonObject,
    values: JsonObject,
) -> Envelope:
    """Build `block_actions` for an element of a message."""
    channel = slack.workspace.channels[message.channel]
    container: JsonObject = {
        "type": "message",
        "message_ts": message.ts,
        "channel_id": channel.id,
        "is_ephemeral": message.ephemeral_to is not None,
    }
    if message.thread_ts is not None:
        container["thread_ts"] = message.thread_ts
    payload = _payload(slack, "block_actions", interaction)
    payload |= {
        "container": container,
        "channel": {"id": channel.id, "name": channel_name(channel)},
        "state": {"values": values},
        "response_url": response_url(slack, channel, interaction.user, message),
        "actions": [action],
    }
    if message.ephemeral_to is None:
        payload["message"] = messages.wire(slack, message)
    return Envelope(EnvelopeKind.INTERACTIVE, payload)


def on_view(
    slack: FakeSlack, interaction: Interaction, view: View, action: JsonObject
) -> Envelope:
    """Build `block_actions` for an element of a modal or Home view."""
    payload = _payload_of_view(slack, "block_actions", interaction)
    payload |= {
        "container": {"type": "view", "view_id": view.id},
        "view": views.wire(slack, view),
        "actions": [action],
    }
    return Envelope(EnvelopeKind.INTERACTIVE, payload)


def view_submission(slack: FakeSlack, interaction: Interaction, view: View) -> Envelope:
    """Build `view_submission`; the view contains the input."""
    payload = _payload_of_view(slack, "view_submission", interaction)
    payload |= {"view": views.wire(slack, view), "response_urls": []}
    return Envelope(EnvelopeKind.INTERACTIVE, payload)


def view_closed(
    slack: FakeSlack, interaction: Interaction, view: View, *, is_cleared: bool = False
) -> Envelope:
    """Build `view_closed`, sent only for views that requested it."""
    payload = _payload_of_view(slack, "view_closed", interaction)
    payload |= {"view": views.wire(slack, view), "is_cleared": is_cleared}
    return Envelope(EnvelopeKind.INTERACTIVE, payload)


def slash_command(
    slack: FakeSlack,
    interaction: Interaction,
    channel: Channel,
    command: str,
    text: str,
) -> Envelope:
    """Build a slash command; every value is a string, as in Slack's form."""
    workspace, user = slack.workspace, interaction.user
    payload: JsonObject = {
        "token": LEGACY_TOKEN,
        "team_id": workspace.team_id,
        "team_domain": team_domain(slack),
        "channel_id": channel.id,
        "channel_name": channel_name(channel),
        "user_id": user.id,
        "user_name": user.name,
        "command": command,
        "text": text,
        "api_app_id": workspace.app.id,
        "is_enterprise_install": str(workspace.is_enterprise_install).lower(),
        "response_url": response_url(slack, channel, user),
        "trigger_id": interaction.trigger_id,
    }
    return Envelope(EnvelopeKind.COMMAND, payload)


def event(slack: FakeSlack, body: JsonObject) -> Envelope:
    """Wrap an event in `event_callback`, with the bot's authorization.

    In a channel shared by another workspace, `team_id` is that workspace, and only the
    authorization names the one where the app is installed (java-slack-sdk#629).
    """
    workspace = slack.workspace
    if body["type"] in {"app_uninstalled", "tokens_revoked"}:
        return Envelope(EnvelopeKind.EVENT, _removal(slack, body))
    channel = workspace.channels.get(str(body.get("channel")))
    host = channel.host if channel else ""
    payload: JsonObject = {
        "token": LEGACY_TOKEN,
        "team_id": host or workspace.team_id,
        "api_app_id": workspace.app.id,
        "event": body,
        "type": "event_callback",
        "event_id": f"Ev{secrets.token_hex(5).upper()}",
        "event_time": int(slack.clock.now()),
        "authorizations": [
            {
                "enterprise_id": workspace.enterprise_id or None,
                "team_id": workspace.team_id,
                "user_id": workspace.app.bot_user,
                "is_bot": True,
                "is_enterprise_install": workspace.is_enterprise_install,
            }
        ],
        "is_ext_shared_channel": bool(host),
        "event_context": secrets.token_hex(12),
    }
    return Envelope(EnvelopeKind.EVENT, payload)


def _removal(slack: FakeSlack, body: JsonObject) -> JsonObject:
    """Build the event about a removed installation: it has no authorizations.

    Source: https://docs.slack.dev/reference/events/app_uninstalled
    """
    workspace = slack.workspace
    # As for other events of an organization:
    # https://docs.slack.dev/reference/events/team_access_revoked
    place: JsonObject = {"team_id": workspace.team_id}
    if workspace.is_enterprise_install:
        place = {"team_id": None, "enterprise_id": workspace.enterprise_id}
    return {
        "token": LEGACY_TOKEN,
        **place,
        "api_app_id": workspace.app.id,
        "event": body,
        "type": "event_callback",
        "event_id": f"Ev{secrets.token_hex(5).upper()}",
        "event_time": int(slack.clock.now()),
    }


def response_url(
    slack: FakeSlack, channel: Channel, user: User, message: Message | None = None
) -> str:
    """Return a new response URL for this conversation."""
    url_id = slack.response_urls.issue(
        channel.id,
        user.id,
        message.ts if message else None,
        message.thread_ts if message else None,
    )
    return f"{slack.base_url}/response/{url_id}"


def channel_name(channel: Channel) -> str:
    """Return a channel's name as in payloads."""
    return "privategroup" if channel.is_private else channel.name


def team_domain(slack: FakeSlack) -> str:
    """Return the workspace's name as in its address."""
    return slack.workspace.team_name.lower().replace(" ", "-")


def _payload(slack: FakeSlack, kind: str, interaction: Interaction) -> JsonObject:
    workspace, user = slack.workspace, interaction.user
    payload: JsonObject = {
        "type": kind,
        "team": {"id": workspace.team_id, "domain": team_domain(slack)},
        "user": {
            "id": user.id,
            "username": user.name,
            "name": user.name,
            "team_id": user.team_id,
        },
        "api_app_id": workspace.app.id,
        "token": LEGACY_TOKEN,
        "enterprise": None,
        "is_enterprise_install": workspace.is_enterprise_install,
    }
    if workspace.enterprise_id:
        payload["enterprise"] = {"id": workspace.enterprise_id, "name": "Org"}
    if interaction.trigger_id:
        payload["trigger_id"] = interaction.trigger_id
    return payload


def _payload_of_view(
    slack: FakeSlack, kind: str, interaction: Interaction
) -> JsonObject:
    """Build the common members for a view; an organization's app may get no team.

    Source: https://docs.slack.dev/reference/interaction-payloads/block_actions-payload
    """
    payload = _payload(slack, kind, interaction)
    is_org = slack.workspace.is_enterprise_install
    return payload | ({"team": None} if is_org else {})

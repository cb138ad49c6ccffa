"""Generate the Slack app manifest, and check an existing one.

``manifest.yml`` at the root is `render()` as YAML; a test compares them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from urllib.parse import quote

import yaml
from pydantic import JsonValue

from keyturn.bot import ids
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.protocol.strict_json import JsonObject

SCOPES = (
    "app_mentions:read",
    "channels:history",
    "chat:write",
    "commands",
    "groups:history",
    "im:history",
    "im:write",
    "users:read",
    "usergroups:read",
)
"""The bot scopes that the bot's calls need, and no others."""

DIRECT_MESSAGES = "im:write"
"""The scope that only ``notify: dm`` needs; without it people are mentioned instead."""

OPTIONAL = {
    DIRECT_MESSAGES: "bot.no_direct_messages",
    "channels:history": "bot.cannot_look_for_cards",
    "groups:history": "bot.cannot_look_for_cards",
}
"""Scopes that older apps may lack, with the log event for their absence.

With the history scopes the bot finds a card whose post was interrupted; without them it
posts the card again.
"""

EVENTS = (
    "app_home_opened",
    "app_mention",
    "app_uninstalled",
    "message.im",
    "tokens_revoked",
)
"""The events that have a listener."""

EVENTS_PATH = "/slack/events"
"""Path of all requests from Slack in HTTP mode."""

INSTALL_PATH = "/slack/install"
"""Path of the page on which people install the app in their workspace."""

REDIRECT_PATH = "/slack/oauth_redirect"
"""Path to which Slack redirects the browser after the consent."""

_HEADER = """\
# The Slack app of Keyturn in Socket Mode: no public address is needed.
# Paste it at https://api.slack.com/apps → Create New App → From a manifest.
# `keyturn manifest --link` prints a link that does so; `--http URL` prints the form
# for an app that Slack reaches by HTTPS.
"""
_NEW_APP = "https://api.slack.com/apps?new_app=1&manifest_json="
_REDIRECTS = "oauth_config.redirect_urls"
_ANY_HOST = "https://bot.example.com"
_ADDRESS = re.compile(
    r"https://([\w.-]+|\[[0-9A-Fa-f:.]+\])(:[1-9][0-9]*)?(/[^\s?#]*)?"
)
_FREE = frozenset(
    {
        "always_online",
        "background_color",
        "description",
        "display_information",
        "display_name",
        "usage_hint",
    }
)
"""Keys whose values `check_manifest` does not compare."""


def render(
    request_url: str = "", *, command: str = ids.COMMAND, distribute: bool = False
) -> JsonObject:
    """Return the manifest: for Socket Mode, or for HTTP if an address is given.

    Args:
        request_url: the bot's public address, such as ``https://bot.example.com``.
        command: the slash command; no other app of the workspace may use it.
        distribute: of an app that several workspaces and organizations install.

    Raises:
        SettingsError: Slack cannot deliver to the address, or redirect people to it.
    """
    if distribute and not request_url:
        raise SettingsError(
            "Slack redirects people who install the app to the bot; add its public "
            "address with --http."
        )
    oauth: JsonObject = {"scopes": {"bot": list(SCOPES)}}
    if distribute:
        oauth["redirect_urls"] = [public_address(request_url) + REDIRECT_PATH]
    url = public_address(request_url) + EVENTS_PATH if request_url else ""
    reached: JsonObject = {"request_url": url} if url else {}
    slash_command: JsonObject = {
        "command": command,
        "description": "List approvals, freeze an agent or a tool, delegate decisions.",
        "usage_hint": (
            "[list | show ID | delegate @WHO 4h | freeze tool NAME | unfreeze tool "
            "NAME | frozen | help]"
        ),
        "should_escape": True,
    }
    return {
        "display_information": {
            "name": "Keyturn",
            "description": "An agent turns one key, a person turns the other.",
            "background_color": "#1d1c1d",
        },
        "features": {
            "app_home": {
                "home_tab_enabled": True,
                "messages_tab_enabled": True,
                "messages_tab_read_only_enabled": False,
            },
            "bot_user": {"display_name": "Keyturn", "always_online": True},
            "slash_commands": [slash_command | ({"url": url} if url else {})],
        },
        "oauth_config": oauth,
        "settings": {
            "event_subscriptions": {**reached, "bot_events": list(EVENTS)},
            "interactivity": {"is_enabled": True, **reached},
            "org_deploy_enabled": distribute,
            "socket_mode_enabled": not url,
            "token_rotation_enabled": distribute,
        },
    }


def public_address(given: str) -> str:
    """Return the bot's public address, without a slash at its end.

    Raises:
        SettingsError: names the problem; a password in the address is not repeated.
    """
    address = given.rstrip("/")
    if not _ADDRESS.fullmatch(given):
        shown = "" if "@" in given else f": {given!r}"
        raise SettingsError(
            f"This cannot be the public address of the bot{shown}. Slack needs one "
            "such as https://bot.example.com: https, a host, and no user, password, "
            "'?' or '#'."
        )
    if address.endswith(EVENTS_PATH):
        raise SettingsError(
            f"{given!r} ends with {EVENTS_PATH}, which is added by itself; give "
            f"{address.removesuffix(EVENTS_PATH)!r}."
        )
    return address


def as_yaml(manifest: JsonObject) -> str:
    """Return a manifest as the text of ``manifest.yml``."""
    # In the order of `render`, so that people can compare the files.
    body = yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True, width=88)
    return f"{_HEADER if _is_socket(manifest) else ''}{body}"


def as_json(manifest: JsonObject) -> str:
    """Return a manifest as the text of a ``manifest.json``."""
    return json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"


def install_link(manifest: JsonObject) -> str:
    """Return the address that opens Slack's page for a new app with this manifest."""
    return _NEW_APP + quote(json.dumps(manifest, separators=(",", ":")), safe="")


def check_manifest(given: JsonValue, *, command: str = ids.COMMAND) -> list[str]:
    """Return the differences between a manifest and the bot's needs, as sentences.

    It is compared with `render`, for its own mode: Socket Mode, HTTP, or HTTP for
    several workspaces. Names and descriptions of the app are free, and Slack's page
    reports what Slack refuses.
    """
    found = [*_facts(given)]
    url = "" if _is_socket(given) else _ANY_HOST
    distribute = bool(url) and any(place == _REDIRECTS for place, _ in found)
    needed = [*_facts(render(url, command=command, distribute=distribute))]
    places = {place for place, _ in needed}
    missing = [one for one in needed if one[1] and one not in found]
    # Places that `render` does not have are free, except addresses.
    extra = [
        one
        for one in found
        if one[1] and one not in needed and (one[0] in places or _is_address(one[0]))
    ]
    return [
        *(
            f"{place}: {value} is missing; the bot needs it."
            for place, value in missing
        ),
        *(f"{place}: {value} has to be removed." for place, value in extra),
    ]


def _facts(node: JsonValue, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield the place and the value of each switch, name and address.

    The value of a switch that is off is "", because it may be absent as well.
    """
    if isinstance(node, dict):
        for key, value in node.items():
            if key not in _FREE:
                yield from _facts(value, f"{place}.{key}".lstrip("."))
    elif isinstance(node, list):
        for one in node:
            yield from _facts(one, place)
    elif _is_address(place) and str(node).startswith("https://"):
        yield place, "an https:// address"
    else:
        yield place, json.dumps(node) if node else ""


def _is_address(place: str) -> bool:
    return place.endswith(("url", "request_url")) or place == _REDIRECTS


def _is_socket(manifest: JsonValue) -> bool:
    settings = manifest.get("settings") if isinstance(manifest, dict) else None
    mode = settings.get("socket_mode_enabled") if isinstance(settings, dict) else None
    return mode is not False

"""Generate the Slack app manifest, and check an existing one.

``manifest.yml`` at the root is `render()` as YAML, and a test holds it to that. Slack's
own schema lets much through that its server or our bot would refuse (a typo in a scope,
neither Socket Mode nor a request URL), so the cross-checks here go further.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import cast
from urllib.parse import quote, urlsplit

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from pydantic import JsonValue

from twokey.bot import ids
from twokey.gateway.errors import SettingsError
from twokey.gateway.protocol.strict_json import JsonObject, parse_object

SCOPES = (
    "app_mentions:read",
    "chat:write",
    "commands",
    "im:history",
    "im:write",
    "users:read",
    "usergroups:read",
)
"""The bot scopes that our calls need, and no other."""

DIRECT_MESSAGES = "im:write"
"""The scope that only ``notify: dm`` needs; without it people are mentioned instead."""

EVENTS = (
    "app_home_opened",
    "app_mention",
    "app_uninstalled",
    "message.im",
    "tokens_revoked",
)
"""The events that a listener of ours handles."""

COMMANDS = (ids.COMMAND,)
"""The slash commands that a listener of ours handles."""

EVENTS_PATH = "/slack/events"
"""Where the bot takes everything from Slack in HTTP mode."""

_HEADER = """\
# The Slack app of Twokey in Socket Mode: no public address is needed.
# Paste it at https://api.slack.com/apps → Create New App → From a manifest.
# `twokey manifest --link` prints a link that does so; `--http URL` prints the form
# for an app that Slack reaches by HTTPS.
"""
_NEW_APP = "https://api.slack.com/apps?new_app=1&manifest_json="
_SCHEMA = parse_object((files("twokey.bot") / "manifest_schema.json").read_bytes())


def render(request_url: str = "", *, command: str = ids.COMMAND) -> JsonObject:
    """Return the manifest: for Socket Mode, or for HTTP when an address is given.

    Args:
        request_url: the bot's public address, such as ``https://bot.example.com``.
        command: the slash command, which no other app of the workspace may have.

    Raises:
        SettingsError: the address is none that Slack can deliver to.
    """
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
            "name": "Twokey",
            "description": "An agent turns one key, a person turns the other.",
            "background_color": "#1d1c1d",
        },
        "features": {
            "app_home": {
                "home_tab_enabled": True,
                "messages_tab_enabled": True,
                "messages_tab_read_only_enabled": False,
            },
            "bot_user": {"display_name": "Twokey", "always_online": True},
            "slash_commands": [slash_command | ({"url": url} if url else {})],
        },
        "oauth_config": {"scopes": {"bot": list(SCOPES)}},
        "settings": {
            "event_subscriptions": {**reached, "bot_events": list(EVENTS)},
            "interactivity": {"is_enabled": True, **reached},
            "org_deploy_enabled": False,
            "socket_mode_enabled": not url,
            "token_rotation_enabled": False,
        },
    }


def public_address(given: str) -> str:
    """Return the bot's public address, without a slash at its end.

    Raises:
        SettingsError: says what is wrong with it; a password in it is not repeated.
    """
    try:
        parts = urlsplit(given)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _no_address("it is not an address") from None
    # Before any sentence that repeats the address: a password must not get into a log.
    if parts.username is not None or parts.password is not None:
        raise _no_address("Slack sends no user and password; leave them out")
    shown = f"{given!r} "
    if parts.scheme != "https":
        raise _no_address(f"{shown}does not begin with https://, and Slack needs that")
    if not host or port == 0 or any(part.isspace() for part in given):
        raise _no_address(f"{shown}names no host")
    if parts.query or parts.fragment or given.endswith(("?", "#")):
        raise _no_address(f"{shown}has a part after '?' or '#'; leave it out")
    address = given.rstrip("/")
    if address.endswith(EVENTS_PATH):
        raise _no_address(
            f"{shown}ends with {EVENTS_PATH}, which is added by itself; give "
            f"{address.removesuffix(EVENTS_PATH)!r}"
        )
    return address


def _no_address(why: str) -> SettingsError:
    return SettingsError(
        f"This cannot be the public address of the bot: {why}. It looks like "
        "https://bot.example.com."
    )


def as_yaml(manifest: JsonObject) -> str:
    """Return a manifest as the text of ``manifest.yml``."""
    # In the order of `render`, so that a person can compare a file with ours.
    body = yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True, width=88)
    is_socket = _at(manifest, "settings", "socket_mode_enabled") is True
    return f"{_HEADER if is_socket else ''}{body}"


def as_json(manifest: JsonObject) -> str:
    """Return a manifest as the text of a ``manifest.json``."""
    return json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"


def install_link(manifest: JsonObject) -> str:
    """Return the address that opens Slack's page for a new app with this manifest."""
    return _NEW_APP + quote(json.dumps(manifest, separators=(",", ":")), safe="")


def check_manifest(
    manifest: JsonValue,
    *,
    commands: Sequence[str] = COMMANDS,
) -> list[str]:
    """Return what Slack or our bot would refuse, a sentence each; none when all fits.

    Args:
        manifest: the parsed document.
        commands: slash commands that have a listener.
    """
    problems = [_broken(error) for error in _schema_errors(manifest)]
    # The checks below expect the shape that the schema proves.
    if not isinstance(manifest, dict) or problems:
        return problems
    asked = _texts(manifest, "oauth_config", "scopes", "bot")
    subscribed = _texts(manifest, "settings", "event_subscriptions", "bot_events")
    listed = [_text(command, "command") for command in _commands(manifest)]
    return [
        *_compared("scope", asked, SCOPES, "no call of ours needs it"),
        *_compared("event", subscribed, EVENTS, "no listener handles it"),
        *_compared("command", listed, commands, "no listener handles it"),
        *_doubled(asked, listed),
        *_delivery_problems(manifest),
        *_other_problems(manifest, subscribed),
    ]


def _schema_errors(manifest: JsonValue) -> Iterator[ValidationError]:
    validator = Draft202012Validator(_SCHEMA)
    yield from cast(
        "Iterator[ValidationError]",
        validator.iter_errors(manifest),  # pyright: ignore[reportUnknownMemberType] - jsonschema ships partial types
    )


def _broken(error: ValidationError) -> str:
    place = error.json_path.removeprefix("$").removeprefix(".") or "The manifest"
    return f"{place}: {error.message[:200]}."


def _compared(
    kind: str, given: Sequence[str], known: Sequence[str], why: str
) -> Iterator[str]:
    for name in known:
        if name not in given:
            yield f"The {kind} {name!r} is missing; the bot needs it."
    for name in given:
        if name not in known:
            yield f"The {kind} {name!r} is too much: {why}; remove it."


def _doubled(*lists: Sequence[str]) -> Iterator[str]:
    for names in lists:
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield f"{name!r} is listed twice; remove one."


def _delivery_problems(manifest: JsonObject) -> Iterator[str]:
    """Socket Mode or a request URL, everywhere the same, and never both."""
    is_socket = _at(manifest, "settings", "socket_mode_enabled") is True
    urls = {
        "settings.event_subscriptions.request_url": _at(
            manifest, "settings", "event_subscriptions", "request_url"
        ),
        "settings.interactivity.request_url": _at(
            manifest, "settings", "interactivity", "request_url"
        ),
        **{
            f"features.slash_commands[{index}].url": _at(command, "url")
            for index, command in enumerate(_commands(manifest))
        },
    }
    for place, url in urls.items():
        if is_socket and url is not None:
            yield f"{place} is set and so is Socket Mode; Slack takes one of them."
        elif not is_socket and url is None:
            yield f"{place} is missing; set it, or switch Socket Mode on."
        elif isinstance(url, str) and urlsplit(url).scheme != "https":
            yield f"{place} is {url!r}; Slack delivers to https:// only."


def _other_problems(manifest: JsonObject, subscribed: Sequence[str]) -> Iterator[str]:
    if _at(manifest, "settings", "interactivity", "is_enabled") is not True:
        yield "settings.interactivity.is_enabled is off, so no button would work."
    for command in _commands(manifest):
        if _at(command, "should_escape") is not True:
            name = _text(command, "command")
            yield f"{name} needs should_escape: true, so that names come as ids."
    is_home = _at(manifest, "features", "app_home", "home_tab_enabled") is True
    if "app_home_opened" in subscribed and not is_home:
        yield "features.app_home.home_tab_enabled is off, so the Home tab stays empty."
    takes = _at(manifest, "features", "app_home", "messages_tab_enabled") is True
    is_closed = _at(manifest, "features", "app_home", "messages_tab_read_only_enabled")
    if "message.im" in subscribed and (not takes or is_closed is True):
        yield (
            "features.app_home.messages_tab_enabled has to be true and "
            "messages_tab_read_only_enabled false, or nobody can write to the bot."
        )
    needs_redirect = _at(manifest, "settings", "token_rotation_enabled") is True
    if needs_redirect and not _at(manifest, "oauth_config", "redirect_urls"):
        yield "Token rotation is on, so oauth_config.redirect_urls has to name an URL."


def _at(node: JsonValue, *path: str) -> JsonValue:
    for key in path:
        node = node.get(key) if isinstance(node, dict) else None
    return node


def _text(node: JsonValue, *path: str) -> str:
    found = _at(node, *path)
    return found if isinstance(found, str) else ""


def _texts(node: JsonValue, *path: str) -> list[str]:
    found = _at(node, *path)
    return (
        [text for text in found if isinstance(text, str)]
        if isinstance(found, list)
        else []
    )


def _commands(manifest: JsonObject) -> list[JsonValue]:
    found = _at(manifest, "features", "slash_commands")
    return found if isinstance(found, list) else []

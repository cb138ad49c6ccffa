"""The manifest is what Slack takes and asks for exactly what the bot uses."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from keyturn.bot.manifest import (
    EVENTS,
    as_yaml,
    check_manifest,
    install_link,
    render,
)
from keyturn.gateway.errors import SettingsError

ROOT = Path(__file__).parents[2]
HTTP = "https://bot.example.com"


def changed(path: str, value: object, *, request_url: str = "") -> Any:
    """Return a rendered manifest with one place set; None removes it."""
    manifest: Any = copy.deepcopy(render(request_url))
    *parents, last = (int(key) if key.isdigit() else key for key in path.split("/"))
    node = manifest
    for key in parents:
        node = node[key]
    if value is None:
        del node[last]
    else:
        node[last] = value
    return manifest


def test_manifest_yml_is_the_socket_mode_variant() -> None:
    text = (ROOT / "manifest.yml").read_text(encoding="utf-8")

    assert text == as_yaml(render())
    assert yaml.safe_load(text) == render()


@pytest.mark.parametrize("request_url", ["", HTTP, f"{HTTP}/"])
def test_both_variants_pass_every_check(request_url: str) -> None:
    assert check_manifest(render(request_url)) == []


def test_an_app_for_several_workspaces_leads_back_and_renews_tokens() -> None:
    manifest: Any = render(HTTP, distribute=True)

    assert manifest["oauth_config"]["redirect_urls"] == [f"{HTTP}/slack/oauth_redirect"]
    assert manifest["settings"]["token_rotation_enabled"] is True
    assert manifest["settings"]["org_deploy_enabled"] is True
    assert check_manifest(manifest) == []
    manifest["settings"]["token_rotation_enabled"] = False
    assert check_manifest(manifest) == [
        "settings.token_rotation_enabled: true is missing; the bot needs it."
    ]
    with pytest.raises(SettingsError, match="add its public address with --http"):
        render(distribute=True)


def test_http_sends_everything_to_the_place_where_the_bot_listens() -> None:
    manifest: Any = render(HTTP)

    assert {
        manifest["settings"]["event_subscriptions"]["request_url"],
        manifest["settings"]["interactivity"]["request_url"],
        manifest["features"]["slash_commands"][0]["url"],
    } == {f"{HTTP}/slack/events"}


def test_the_command_is_the_one_that_the_settings_name() -> None:
    manifest: Any = render(command="/refund-approvals")

    (listed,) = manifest["features"]["slash_commands"]
    assert listed["command"] == "/refund-approvals"
    assert check_manifest(manifest, command="/refund-approvals") == []
    place = "features.slash_commands.command"
    assert check_manifest(manifest) == [
        f'{place}: "/approvals" is missing; the bot needs it.',
        f'{place}: "/refund-approvals" has to be removed.',
    ]


@pytest.mark.parametrize(
    "given",
    [
        f"{HTTP}/?team=1",
        "https://user:hunter2@bot.example.com",
        "http://bot.example.com",
        "bot.example.com",
        "https://",
        "https:///slack",
        "https://bot.example.com:x",
        "https://bot example.com",
    ],
)
def test_an_address_that_slack_cannot_deliver_to_is_refused(given: str) -> None:
    with pytest.raises(SettingsError) as caught:
        render(given)

    assert "such as https://bot.example.com" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert ":." not in str(caught.value)


def test_the_install_link_carries_the_whole_manifest() -> None:
    link = install_link(render())

    parts = urlsplit(link)
    query = parse_qs(parts.query)
    assert (parts.scheme, parts.netloc, parts.path) == (
        "https",
        "api.slack.com",
        "/apps",
    )
    assert query["new_app"] == ["1"]
    assert json.loads(query["manifest_json"][0]) == render()
    assert len(link) < 2000


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("features", None, 'command: "/approvals" is missing'),
        ("settings/socket_mode_enabled", "yes", "socket_mode_enabled: true is missing"),
        (
            "oauth_config/scopes/bot/0",
            "app_mention:read",
            '"app_mentions:read" is missing',
        ),
        ("oauth_config/scopes/bot/0", "admin", '"admin" has to be removed'),
        ("settings/event_subscriptions/bot_events", [], '"app_mention" is missing'),
        (
            "settings/event_subscriptions/bot_events",
            [*EVENTS, "team_join"],
            '"team_join" has to be removed',
        ),
        ("features/slash_commands/0/command", "/other", '"/approvals" is missing'),
        (
            "features/slash_commands/0/should_escape",
            False,
            "should_escape: true is missing",
        ),
        (
            "features/slash_commands/0/url",
            HTTP,
            "an https:// address has to be removed",
        ),
        (
            "settings/interactivity/request_url",
            HTTP,
            "an https:// address has to be removed",
        ),
        ("settings/socket_mode_enabled", False, "an https:// address is missing"),
        (
            "features/app_home/home_tab_enabled",
            False,
            "home_tab_enabled: true is missing",
        ),
    ],
)
def test_a_refused_setting_is_named(path: str, value: object, problem: str) -> None:
    problems = check_manifest(changed(path, value))

    assert any(problem in found for found in problems), problems


@pytest.mark.parametrize(
    "path",
    [
        "settings/event_subscriptions/request_url",
        "settings/interactivity/request_url",
        "features/slash_commands/0/url",
    ],
)
def test_http_needs_https_everywhere(path: str) -> None:
    missing = check_manifest(changed(path, None, request_url=HTTP))
    plain = check_manifest(changed(path, "http://h/slack/events", request_url=HTTP))

    assert len(missing) == 1
    assert "an https:// address is missing" in missing[0]
    assert missing[0] in plain


@pytest.mark.parametrize("manifest", [None, [], "text", 5, {}])
def test_what_is_no_manifest_at_all_is_said(manifest: Any) -> None:
    assert check_manifest(manifest)

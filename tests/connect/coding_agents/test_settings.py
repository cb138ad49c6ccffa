"""The printed settings ask about every call; others are refused with a next step."""

from __future__ import annotations

import copy
import json
import tomllib
from typing import Any

import pytest

from keyturn.connect.claude_settings import claude_settings, codex_settings, problems

URL = "https://gateway.example"


def hook_of(settings: Any) -> Any:
    """Return the hook that asks before a call."""
    return settings["hooks"]["PreToolUse"][0]["hooks"][0]


def changed(**changes: Any) -> dict[str, Any]:
    """Return printed settings whose hook differs; None removes a member."""
    settings = dict[str, Any](copy.deepcopy(claude_settings(URL)))
    hook = hook_of(settings)
    for name, value in changes.items():
        hook.pop(name, None)
        if value is not None:
            hook[name] = value
    return settings


def grouped(**changes: Any) -> dict[str, Any]:
    """Return printed settings whose group of hooks differs."""
    settings = changed()
    settings["hooks"]["PreToolUse"][0] |= changes
    return settings


@pytest.mark.parametrize(
    "settings",
    [
        claude_settings(URL),
        claude_settings("http://127.0.0.1:8780"),
        claude_settings(f"{URL}/", reports=True, defers=True, requester="U0DAN"),
        grouped(matcher=""),
        changed(headers={"authorization": "Bearer ${KEYTURN_API_KEY}"}),
        changed(
            timeout=20,
            headers={
                "Authorization": "Bearer $KEYTURN_API_KEY",
                "Keyturn-Hook-Wait": "20",
            },
        ),
    ],
)
def test_settings_that_ask_about_every_call_are_good(settings: dict[str, Any]) -> None:
    assert problems(settings) == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "No 'http' hook"),
        ({"hooks": {"PostToolUse": []}}, "No 'http' hook"),
        ({"hooks": []}, "No 'http' hook"),
        (changed(url="https://gateway.example/v1/hooks/claude"), "No 'http' hook"),
        (changed(url="https://["), "No 'http' hook"),
        (changed(type="command"), "No 'http' hook"),
        ({**changed(), "disableAllHooks": True}, "'disableAllHooks' is set"),
        (changed(onFailure=None), "'onFailure' is not \"block\""),
        (changed(onFailure="continue"), "'onFailure' is not \"block\""),
        (changed(timeout=30), "'timeout' is shorter than the wait"),
        (changed(timeout=None), "'timeout' is shorter than the wait"),
        (changed(timeout="60"), "'timeout' is shorter than the wait"),
        (
            changed(
                timeout=30,
                headers={
                    "Authorization": "Bearer $KEYTURN_API_KEY",
                    "Keyturn-Hook-Wait": "soon",
                },
            ),
            "'timeout' is shorter than the wait",
        ),
        (changed(allowedEnvVars=None), "add KEYTURN_API_KEY"),
        (changed(allowedEnvVars=["KEY"]), "add KEYTURN_API_KEY"),
        (changed(headers=None), "'Authorization' is missing"),
        (changed(headers={"Authorization": "x"}), "'Authorization' is missing"),
        (changed(headers={"Authorization": "Bearer tk_1"}), "written into the file"),
        (grouped(matcher="Bash"), "'matcher' or 'if' skips tools"),
        (grouped(matcher="Bash|Write"), "'matcher' or 'if' skips tools"),
        (changed(**{"if": "Bash(rm *)"}), "'matcher' or 'if' skips tools"),
        (changed(once=True), "'once' removes the hook"),
        (
            changed(url="http://gateway.example/v1/hooks/claude-code"),
            "in the clear",
        ),
        (
            changed(url="https://10.1.2.3/v1/hooks/claude-code"),
            "no hook to a private address",
        ),
    ],
)
def test_unsafe_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    [problem] = problems(settings)

    assert words in problem


def test_a_second_hook_for_something_else_does_no_harm() -> None:
    settings = grouped()
    settings["hooks"]["PreToolUse"].insert(
        0, {"matcher": "Bash", "hooks": [{"type": "command", "command": "true"}]}
    )

    assert problems(settings) == []


def test_the_reports_never_block() -> None:
    settings: Any = claude_settings(URL, reports=True)

    for event in ("PostToolUse", "PostToolUseFailure"):
        [group] = settings["hooks"][event]
        assert "onFailure" not in group["hooks"][0]


def test_the_settings_name_the_key_and_never_contain_it() -> None:
    text = json.dumps(claude_settings(URL))

    assert "$KEYTURN_API_KEY" in text
    assert "tk_" not in text


@pytest.mark.parametrize("is_managed", [True, False])
def test_codex_blocks_without_the_program(*, is_managed: bool) -> None:
    settings = tomllib.loads(codex_settings(is_managed=is_managed))
    [group] = settings.pop("hooks")["PreToolUse"]
    [hook] = group["hooks"]

    assert settings == ({"allow_managed_hooks_only": True} if is_managed else {})

    assert "matcher" not in group
    assert hook["command"].endswith("|| exit 2")
    # Codex runs a call whose hook is too slow.
    assert hook["timeout"] > 60

"""Names and words of agents and reviewers steer no terminal of an operator."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from keyturn.cli.main import run
from tests.store_secrets import ENV

HOSTILE = "x\x1b]0;owned\x07\x9b2J\u202e\u2066\r"


Tell = Callable[..., str]


@pytest.fixture
def tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Tell:
    """Return what a command prints."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keyturn.yml").write_text("policy: {version: 1}\n")

    def told(*words: str, url: str = "") -> str:
        env = {**ENV, "KEYTURN_REDIS_URL": url} if url else {}
        run(words, env)
        return capsys.readouterr().out

    return told


@pytest.mark.parametrize("words", [("frozen",), ("frozen", "--json")])
def test_what_is_frozen_is_listed_without_steering(
    tell: Tell, empty_url: str, words: tuple[str, ...]
) -> None:
    """A tool is frozen by the name that its agent gave it."""
    tell("freeze", "tool", HOSTILE, "--reason", HOSTILE, url=empty_url)

    listed = tell(*words, url=empty_url)

    assert "owned" in listed
    assert listed.replace("\n", "").isprintable()


def test_a_call_is_explained_in_json_without_steering(
    tell: Tell, tmp_path: Path
) -> None:
    policy, call = tmp_path / "policy.yml", tmp_path / "call.json"
    policy.write_text("version: 1\ntools: {mail: {description: 'to {args.to}'}}\n")
    call.write_text(json.dumps({"tool": "mail", "args": {"to": HOSTILE}}))

    said = tell("policy", "explain", str(policy), "--call", str(call), "--json")

    assert "owned" in said
    assert said.replace("\n", "").isprintable()

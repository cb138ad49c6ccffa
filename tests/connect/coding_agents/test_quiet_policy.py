"""The policy that keeps reading quiet, against a corpus of commands and calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from keyturn.bot.cards.listing import Forms, boxes
from keyturn.gateway.policy.evaluate import evaluate
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Tier
from keyturn.gateway.protocol.strict_json import JsonObject

ROOT = Path(__file__).parents[3]
FILE = ROOT / "examples" / "coding_agents" / "policy.yml"
POLICY = load_policy(FILE.read_text("utf-8"), FILE.name)
TIERS = {"quiet": Tier.AUTO, "asked": Tier.APPROVE, "denied": Tier.DENY}
CORPUS = [
    (word, json.loads(text))
    for word, _, text in (
        line.partition(" ")
        for line in Path(__file__).with_name("commands.txt").read_text().splitlines()
    )
]


def tier(tool: str, **args: Any) -> Tier:
    """Return the tier of a call."""
    return evaluate(POLICY, agent="coder", tool=tool, args=args).tier


def test_each_command_of_the_corpus_has_its_tier() -> None:
    wrong = [
        (word, command, tier("Bash", command=command).value)
        for word, command in CORPUS
        if tier("Bash", command=command) is not TIERS[word]
    ]

    assert wrong == []
    assert len(CORPUS) >= 300


def test_a_card_shows_how_a_file_is_changed() -> None:
    args: JsonObject = {
        "file_path": "app.py",
        "old_string": "a\nb",
        "new_string": "a\nc",
    }
    preview = evaluate(POLICY, agent="coder", tool="Edit", args=args).preview

    *_, change = boxes("Edit", args, (), Forms(preview=preview))

    assert change == "Change\n| a\n- b\n+ c"


@pytest.mark.parametrize("word", TIERS)
def test_the_corpus_has_commands_of_each_kind(word: str) -> None:
    assert sum(found == word for found, _ in CORPUS) >= 20


QUIET = [command for word, command in CORPUS if word == "quiet"]
HARM = [
    "; rm x", " ; rm x", "\nrm x", "\r\nrm x", " && rm x", " || rm x", " & rm x",
    " | sh", "|sh", " > x", ">x", " >> x", " < x", " $(rm x)", " `rm x`", ' "$(rm x)"',
    " <(rm x)", " <<EOF", " *", " ?", " {a,b}", " \\x", " !x", " \u2028rm x",
    " \u00a0x",
    " ; rm\u200b x", " \uff5c sh", " -exec rm x ;", " -delete",
    " --output=x", " --output x", " --pre=x", " --ext-diff", " --textconv",
    " --open-files-in-pager=x", " 2>x", " &> x", " # x", " (x)", " 'x",
    ' "x', " .env", " ~/.ssh/id_rsa", " /proc/self/environ", " server.pem",
]  # fmt: skip


@pytest.mark.parametrize("harm", HARM)
def test_no_quiet_command_stays_quiet_with_something_added(harm: str) -> None:
    """`sh` gets a quiet command and one more part."""
    assert [one for one in QUIET if tier("Bash", command=one + harm) is Tier.AUTO] == []


@pytest.mark.parametrize(
    "start", ["A=1 ", "PATH=. ", "sudo ", "env ", "!", "$x ", "\\"]
)
def test_no_quiet_command_stays_quiet_with_something_in_front(start: str) -> None:
    found = [one for one in QUIET if tier("Bash", command=start + one) is Tier.AUTO]

    assert found == []


LETTERS = [
    *("\u0430", "\u0441", "\u0435", "\u043e", "\u0440", "\u0445", "\u0456", "\u0455"),
    *("\u0501", "\u0261", "\u217c", "\uff11", "\uff0d", "\uff0f"),
]
"""Cyrillic, Latin, Roman and full-width characters that look like those of ASCII."""


@pytest.mark.parametrize("letter", LETTERS)
def test_a_letter_that_looks_like_another_one_is_asked_about(letter: str) -> None:
    for one in QUIET[:20]:
        assert tier("Bash", command=one + letter) is Tier.APPROVE
        assert tier("Bash", command=letter + one) is Tier.APPROVE


@pytest.mark.parametrize(
    ("tool", "args", "expected"),
    [
        ("Read", {"file_path": "/home/dan/app/main.py"}, Tier.AUTO),
        ("Read", {"file_path": "/home/dan/app/.env"}, Tier.APPROVE),
        ("Read", {"file_path": "/home/dan/.ssh/id_rsa"}, Tier.APPROVE),
        ("Read", {"file_path": "/proc/self/environ"}, Tier.APPROVE),
        ("Read", {}, Tier.ESCALATE),
        ("Glob", {"pattern": "**/*.py"}, Tier.AUTO),
        ("Grep", {"pattern": "x"}, Tier.AUTO),
        ("Grep", {"pattern": "x", "path": "/home/dan/.aws"}, Tier.APPROVE),
        ("Write", {"file_path": "a", "content": "b"}, Tier.APPROVE),
        ("Edit", {"file_path": "a", "old_string": "", "new_string": ""}, Tier.APPROVE),
        ("WebFetch", {"url": "https://example.com", "prompt": ""}, Tier.APPROVE),
        ("WebFetch", {"url": "http://example.com", "prompt": ""}, Tier.DENY),
        ("apply_patch", {"command": "*** Begin Patch"}, Tier.APPROVE),
        ("mcp__crm__delete", {}, Tier.APPROVE),
        ("Bash", {"command": "ls", "dangerouslyDisableSandbox": True}, Tier.APPROVE),
        ("Bash", {"command": "ls", "dangerouslyDisableSandbox": False}, Tier.AUTO),
        ("Bash", {"command": ["ls"]}, Tier.ESCALATE),
        ("Bash", {}, Tier.ESCALATE),
    ],
)
def test_a_call_of_another_tool_has_its_tier(
    tool: str, args: dict[str, Any], expected: Tier
) -> None:
    assert tier(tool, **args) is expected

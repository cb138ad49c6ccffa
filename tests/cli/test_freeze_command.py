"""'keyturn freeze' stops an agent, and lists who stopped what and why."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Shell


@pytest.fixture
def shell(operator: Shell) -> Shell:
    """Give a shell with a policy that names a tool and an agent."""
    tools = "tools: {pay: {tier: auto}}, agents: {bills: {}}"
    operator.write(f"policy: {{version: 1, {tools}}}\n")
    return operator


@pytest.mark.parametrize("verb", ["freeze", "unfreeze"])
@pytest.mark.parametrize(("kind", "name"), [("tool", "payy"), ("agent", "bill")])
def test_a_misspelled_name_is_refused_and_changes_nothing(
    shell: Shell, verb: str, kind: str, name: str
) -> None:
    assert f"no {kind} '{name}'; did you mean" in shell.refused(verb, kind, name)
    assert "Nothing is frozen" in shell.said("frozen")
    assert "is frozen" in shell.said("freeze", kind, name, "--unlisted")
    assert "may run again" in shell.said("unfreeze", kind, name)


def test_freezing_twice_is_freezing_once(shell: Shell) -> None:
    first = shell.said("freeze", "tool", "refund", "--reason", "wrong", "--by", "ana")
    again = shell.said("freeze", "tool", "refund", "--by", "ben")

    listed = shell.said("frozen")
    assert "The tool 'refund' is frozen" in first
    assert "frozen already" in again
    assert "tool refund: frozen by ana since " in listed
    assert listed.strip().endswith(": wrong")


def test_what_nothing_here_names_is_frozen_with_a_note(shell: Shell) -> None:
    note = "please check its name."

    tool = shell.said("freeze", "tool", "refund")
    agent = shell.said("freeze", "agent", "shop")

    assert f"The policy does not name this tool; {note}" in tool
    assert f"Neither the settings nor the policy names this agent; {note}" in agent
    for known in (["tool", "pay"], ["agent", "bills"], ["everything"]):
        assert note not in shell.said("freeze", *known)


def test_a_freeze_needs_no_policy(shell: Shell) -> None:
    shell.write("policy: {version: 2}\n")

    assert shell.said("freeze", "tool", "payy").count("\n") == 1


def test_lifting_says_whether_there_was_anything_to_lift(shell: Shell) -> None:
    shell("freeze", "everything")

    assert "Everything may run again" in shell.said("unfreeze", "everything")
    assert "was not frozen" in shell.said("unfreeze", "everything")
    assert "Nothing is frozen" in shell.said("frozen")


def test_lists_and_the_audit_log_name_the_command_line(shell: Shell) -> None:
    shell("freeze", "agent", "support")
    [row] = shell.found("frozen")
    shell("unfreeze", "agent", "support")

    assert row["scope"] == {"kind": "agent", "name": "support"}
    assert row["by"].startswith("cli/")
    exported = shell.said("audit", "export").splitlines()
    found = [(one["name"], one["data"]["gesture"]) for one in map(json.loads, exported)]
    assert found == [("freeze.set", "cli"), ("freeze.lifted", "cli")]


def test_a_user_without_a_name_may_stop_things_too(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> str:
        raise OSError("No username set in the environment")

    monkeypatch.setattr("getpass.getuser", nobody)

    shell("freeze", "everything")

    assert "everything: frozen by cli since" in shell.said("frozen")


@pytest.mark.parametrize(
    ("words", "why"), [(["agent"], "Which"), (["everything", "x"], "takes no name")]
)
def test_a_scope_that_is_none_is_refused_with_a_sentence(
    shell: Shell, words: list[str], why: str
) -> None:
    assert why in shell.refused("freeze", *words)

"""'keyturn freeze' stops an agent, and lists who stopped what and why."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from keyturn.cli import audit, freeze
from keyturn.cli.command_context import CommandContext
from keyturn.cli.main import add
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.store.embedded.engine import EmbeddedEngine

Tell = Callable[..., str]


@pytest.fixture
def tell(tmp_path: Path) -> Generator[Tell]:
    app = typer.Typer()
    app.command()(freeze.freeze)
    app.command()(freeze.unfreeze)
    app.command()(freeze.frozen)
    add(app, "audit", audit)
    config = tmp_path / "keyturn.yml"
    config.write_text(
        "policy: {version: 1, tools: {pay: {tier: auto}}, agents: {bills: {}}}\n"
    )

    with EmbeddedEngine(tmp_path / "engine") as engine:

        def told(*words: str) -> str:
            session = CommandContext(
                env={"KEYTURN_REDIS_URL": engine.url}, config=config
            )
            done = CliRunner().invoke(
                app, list(words), obj=session, catch_exceptions=False
            )
            assert done.exit_code == 0, done.output
            return done.output

        yield told


@pytest.mark.parametrize("verb", ["freeze", "unfreeze"])
@pytest.mark.parametrize(("kind", "name"), [("tool", "payy"), ("agent", "bill")])
def test_a_misspelled_name_is_refused_and_changes_nothing(
    tell: Tell, verb: str, kind: str, name: str
) -> None:
    with pytest.raises(SettingsError, match=f"no {kind} '{name}'; did you mean"):
        tell(verb, kind, name)

    assert "Nothing is frozen" in tell("frozen")
    assert "is frozen" in tell("freeze", kind, name, "--unlisted")
    assert "may run again" in tell("unfreeze", kind, name)


def test_freezing_twice_is_freezing_once(tell: Tell) -> None:
    first = tell("freeze", "tool", "refund", "--reason", "wrong", "--by", "ana")
    again = tell("freeze", "tool", "refund", "--by", "ben")

    listed = tell("frozen")
    assert "The tool 'refund' is frozen" in first
    assert "frozen already" in again
    assert "tool refund: frozen by ana since " in listed
    assert listed.strip().endswith(": wrong")


def test_what_nothing_here_names_is_frozen_with_a_note(tell: Tell) -> None:
    note = "please check its name."

    assert f"The policy does not name this tool; {note}" in tell(
        "freeze", "tool", "refund"
    )
    assert f"Neither the settings nor the policy names this agent; {note}" in tell(
        "freeze", "agent", "shop"
    )
    for known in (["tool", "pay"], ["agent", "bills"], ["everything"]):
        assert note not in tell("freeze", *known)


def test_a_freeze_needs_no_policy(tell: Tell, tmp_path: Path) -> None:
    (tmp_path / "keyturn.yml").write_text("policy: {version: 2}\n")

    assert tell("freeze", "tool", "payy").count("\n") == 1


def test_lifting_says_whether_there_was_anything_to_lift(tell: Tell) -> None:
    tell("freeze", "everything")

    lifted, again = tell("unfreeze", "everything"), tell("unfreeze", "everything")

    assert "Everything may run again" in lifted
    assert "was not frozen" in again
    assert "Nothing is frozen" in tell("frozen")


def test_the_audit_log_says_that_the_command_line_was_used(tell: Tell) -> None:
    tell("freeze", "agent", "support")
    tell("unfreeze", "agent", "support")

    rows = [json.loads(row) for row in tell("audit", "export").splitlines()]
    assert [row["name"] for row in rows] == ["freeze.set", "freeze.lifted"]
    assert [row["data"]["gesture"] for row in rows] == ["cli", "cli"]


def test_what_is_frozen_is_listed_for_machines(tell: Tell) -> None:
    tell("freeze", "agent", "support")

    rows = json.loads(tell("frozen", "--json"))

    assert [row["scope"] for row in rows] == [{"kind": "agent", "name": "support"}]
    assert rows[0]["by"].startswith("cli/")


def test_a_user_without_a_name_may_stop_things_too(
    tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> str:
        raise OSError("No username set in the environment")

    monkeypatch.setattr("getpass.getuser", nobody)

    tell("freeze", "everything")

    assert "everything: frozen by cli since" in tell("frozen")


@pytest.mark.parametrize("words", [["tool"], ["agent"], ["everything", "acme"]])
def test_a_scope_that_is_none_is_refused_with_a_sentence(
    tell: Tell, words: list[str]
) -> None:
    with pytest.raises(SettingsError, match=r"Which|takes no name"):
        tell("freeze", *words)

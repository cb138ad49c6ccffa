"""'keyturn keys' makes, rotates, retires and lists signing keys."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from keyturn.cli.command_context import CommandContext
from keyturn.cli.doctor import run_checks
from keyturn.cli.main import USAGE, run
from keyturn.cli.reviewer_checks import Check, State
from keyturn.gateway.protocol.public_keys import parse_public_key


@pytest.fixture
def tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    monkeypatch.chdir(tmp_path)

    def told(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(("keys", *words), {})
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return told


def test_a_key_lives_from_create_to_retire(tell: Any) -> None:
    code, shown, _ = tell("create", "bot")
    assert code == 0
    [old] = [line for line in shown.splitlines() if line.startswith("keyturn/bot+")]

    code, shown, _ = tell("rotate", "bot")
    assert code == 0
    [new] = [line for line in shown.splitlines() if line.startswith("keyturn/bot+")]
    assert new != old

    key_id = parse_public_key(old).id.hex()
    code, shown, _ = tell("retire", "bot", key_id)
    assert code == 0
    assert "its secret is gone" in shown

    rows = json.loads(tell("list", "--json")[1])
    assert [(row["public"], row["state"]) for row in rows] == [
        (new, "signs"),
        (old, "retired"),
    ]
    _, shown, _ = tell("list")
    assert new in shown
    assert "keyturn keys create gateway" in shown


def test_a_key_for_which_calls_wait_is_not_retired_unasked(
    tell: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".keyturn" / "valkey").mkdir(parents=True)

    def three_calls(*_: object) -> int:
        return 3

    monkeypatch.setattr("keyturn.cli.keys.use_store", three_calls)
    _, shown, _ = tell("create", "bot")
    [old] = [line for line in shown.splitlines() if line.startswith("keyturn/bot+")]
    tell("rotate", "bot")
    key_id = parse_public_key(old).id.hex()

    code, _, error = tell("retire", "bot", key_id)
    states = [row["state"] for row in json.loads(tell("list", "--json")[1])]
    forced, _, _ = tell("retire", "bot", key_id, "--force")

    assert code == USAGE
    assert "3 calls depend" in error
    assert states == ["signs", "verifies"]
    assert forced == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("rotate", "bot"), "keyturn keys create bot"),
        (("retire", "bot", "12345678"), "has no key '12345678'"),
        (("create", "agent"), "'agent' is not one of"),
    ],
)
def test_what_cannot_be_done_ends_in_one_sentence(
    tell: Any, words: tuple[str, ...], says: str
) -> None:
    code, _, error = tell(*words)

    assert code == USAGE
    assert says in error


def test_the_help_says_what_each_role_signs_and_what_to_hand_over(tell: Any) -> None:
    _, shown, _ = tell("--help")

    for word in ("bot ", "gateway ", "audit ", "keys: {bot: [...]}", "rotate"):
        assert word in shown


def test_keys_of_others_are_listed_from_the_settings(tell: Any, tmp_path: Path) -> None:
    _, shown, _ = tell("create", "bot")
    [public] = [line for line in shown.splitlines() if line.startswith("keyturn/bot+")]
    (tmp_path / "keyturn.yml").write_text(f"keys: {{folder: mine, bot: ['{public}']}}")

    [row] = json.loads(tell("list", "--json")[1])
    _, listed, _ = tell("list")

    assert row == {"role": "bot", "public": public, "state": "known"}
    assert public in listed


def test_the_doctor_says_when_no_approved_call_could_run(
    tell: Any, tmp_path: Path
) -> None:
    (tmp_path / ".keyturn").mkdir()
    assert _doctor().state is State.GOOD
    tell("create", "gateway")

    found = _doctor()

    assert found.state is State.BAD
    assert "keys: {bot: [" in found.text
    tell("create", "bot")
    assert _doctor() == Check("keys", State.GOOD, "bot 1, gateway 1")
    [path] = (tmp_path / ".keyturn" / "keys" / "bot").iterdir()
    path.chmod(0o644)
    assert "chmod 600" in _doctor().text


def _doctor() -> Check:
    async def looked() -> Check:
        command = CommandContext({}, None, debug=False)
        async for check in run_checks(command, post=False):
            if check.name == "keys":
                return check
        raise AssertionError("the doctor did not look at the keys")

    return asyncio.run(looked())

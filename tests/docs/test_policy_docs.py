"""Every code block of docs/policy.md does what it says, and no key is left out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from pydantic import BaseModel

from keyturn.cli.main import run
from keyturn.gateway.policy.load import BadPolicy, load_policy
from keyturn.gateway.policy.name_check import CALL, MACROS, RECENT
from keyturn.gateway.policy.on_call import QuietRule, Rotation
from keyturn.gateway.policy.rules import (
    ApproveRule,
    BatchRule,
    Defaults,
    EscalateRule,
    NotifyRule,
    PartRule,
    Policy,
    PrivacyRule,
    Protection,
    RaiseRule,
    RequirementRule,
    RoleRule,
    SeededDefectRule,
    SpotCheckRule,
    ToolRule,
    TriageRule,
    WindowRule,
)

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "policy.md").read_text("utf-8")
_BLOCK = re.compile(
    r"^```(?P<kind>\w+)(?: (?P<file>\S+))?\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """One code block; ``file`` is the name that its first line gives it."""

    kind: str
    file: str
    text: str


BLOCKS = [
    Block(match["kind"], match["file"] or "", match["text"])
    for match in _BLOCK.finditer(PAGE)
]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder with every file that the page names."""
    monkeypatch.chdir(tmp_path)
    for block in BLOCKS:
        if block.file:
            (tmp_path / block.file).write_text(block.text)
    return tmp_path


def of(kind: str) -> list[Block]:
    return [block for block in BLOCKS if block.kind == kind]


def test_the_page_has_no_block_that_nothing_runs() -> None:
    assert {block.kind for block in BLOCKS} == {
        "console",
        "json",
        "jsonl",
        "python",
        "yaml",
    }
    assert PAGE.count("```") == 2 * len(BLOCKS)


@pytest.mark.parametrize("block", of("yaml"))
def test_a_policy_on_the_page_loads_unless_it_is_called_wrong(block: Block) -> None:
    if "wrong" in block.file:
        with pytest.raises(BadPolicy):
            load_policy(block.text, block.file)
    else:
        assert load_policy(block.text, block.file or "block").tools


@pytest.mark.parametrize("block", of("console"))
def test_a_command_prints_what_the_page_shows(
    home: Path, capsys: pytest.CaptureFixture[str], block: Block
) -> None:
    for session in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        typed, _, shown = session.partition("\n")
        words = typed.split()
        assert words.pop(0) == "keyturn"
        capsys.readouterr()

        run(words, {})

        printed = capsys.readouterr().out.splitlines()
        expected = shown.splitlines()
        assert len(printed) == len(expected)
        for line, wanted in zip(printed, expected, strict=True):
            is_open = wanted.endswith("…")
            assert line == wanted or (is_open and line.startswith(wanted[:-1]))


@pytest.mark.parametrize("block", of("python"))
def test_a_program_on_the_page_runs(home: Path, block: Block) -> None:
    exec(compile(block.text, "docs/policy.md", "exec"), {})  # noqa: S102 - the page is ours


@pytest.mark.parametrize(
    "model",
    [
        Policy,
        Defaults,
        RoleRule,
        ToolRule,
        WindowRule,
        RaiseRule,
        RequirementRule,
        PartRule,
        Protection,
        PrivacyRule,
        BatchRule,
        SpotCheckRule,
        SeededDefectRule,
        NotifyRule,
        ApproveRule,
        EscalateRule,
        TriageRule,
        QuietRule,
        Rotation,
    ],
)
def test_every_key_is_on_the_page_and_in_the_example(model: type[BaseModel]) -> None:
    example = (ROOT / "policy.example.yml").read_text("utf-8")
    names = [field.alias or name for name, field in model.model_fields.items()]

    assert [name for name in names if f"`{name}`" not in PAGE] == []
    assert [name for name in names if f"{name}:" not in example] == []


def test_every_name_of_an_expression_is_on_the_page() -> None:
    names = [*(f"call.{name}" for name in CALL), *(f"recent.{name}" for name in RECENT)]

    assert [name for name in (*names, *MACROS) if f"`{name}`" not in PAGE] == []


@pytest.mark.parametrize("file", ["policy.example.yml", "examples/weekend_policy.yml"])
def test_the_policies_that_ship_are_good(
    capsys: pytest.CaptureFixture[str], file: str
) -> None:
    code = run(["policy", "check", str(ROOT / file)], {})

    assert code == 0
    _, *more = capsys.readouterr().out.splitlines()
    assert all(line.startswith("· The role") for line in more)

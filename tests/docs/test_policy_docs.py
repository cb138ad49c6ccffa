"""Every policy of docs/policy.md works, and the reference has every key."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from pydantic import BaseModel

from keyturn.cli.main import run
from keyturn.gateway.policy.expressions import CALL, MACROS, RECENT
from keyturn.gateway.policy.load import BadPolicy, load_policy
from tests.docs.policy_reference import PAGE as REFERENCE
from tests.docs.policy_reference import models, page

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "policy.md").read_text("utf-8")
SHIPPED = [
    "policy.example.yml",
    *sorted(
        f"examples/{path.name}" for path in (ROOT / "examples").glob("*_policy.yml")
    ),
]
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
    for name in SHIPPED:
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def of(kind: str) -> list[Block]:
    return [block for block in BLOCKS if block.kind == kind]


def test_the_page_has_no_block_that_nothing_runs() -> None:
    assert {block.kind for block in BLOCKS} == {"console", "json", "yaml"}
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
        words = shlex.split(typed)
        assert words.pop(0) == "keyturn"
        capsys.readouterr()

        run(words, {})

        printed = capsys.readouterr().out.splitlines()
        expected = shown.splitlines()
        assert len(printed) == len(expected)
        for line, wanted in zip(printed, expected, strict=True):
            is_open = wanted.endswith("…")
            assert line == wanted or (is_open and line.startswith(wanted[:-1]))


REFUND: dict[str, object] = {"order_id": "78291", "customer_id": "C1", "amount": 49}
PAYOUT: dict[str, object] = {"amount": 60, "iban": "GB1"}
INSIDE = {"to": "ana@example.com", "subject": "Your order", "body": "It is on its way."}
MONDAY, SATURDAY = "--at 2026-07-06T12:00Z", "--at 2026-07-04T12:00Z"
ONE, TWO = "who one person of support", "who 2 people of support"


class Promise(NamedTuple):
    """What a policy of the page asks for one call: how a line of `explain` begins."""

    file: str
    tool: str
    args: Mapping[str, object]
    line: str
    options: str = ""


PROMISES = [
    Promise("policy.yml", "send_survey", {}, "tier notify"),
    Promise("policy.yml", "process_refund", REFUND, ONE),
    Promise("policy.yml", "process_refund", REFUND, "card Refund €49.00 to C1"),
    Promise("policy.yml", "drop_table", {}, "tier deny"),
    Promise("refunds.yml", "process_refund", REFUND | {"amount": 501}, TWO),
    Promise("refunds.yml", "process_refund", REFUND, TWO, "--recent same_done_24h=1"),
    Promise(
        "payouts_policy.yml",
        "pay_supplier",
        PAYOUT,
        "who 2 people, 1 finance and 1 support",
    ),
    Promise(
        "payouts_policy.yml",
        "pay_supplier",
        PAYOUT | {"amount": 10001},
        "who 2 finance and 1",
    ),
    Promise("messages_policy.yml", "send_email", INSIDE, "tier notify", MONDAY),
    Promise("messages_policy.yml", "send_email", INSIDE, "who 2 people", SATURDAY),
    Promise("messages_policy.yml", "run_query", {"query": "select 1"}, "tier approve"),
    Promise(
        "messages_policy.yml", "run_query", {"query": "drop table t"}, "who 2 people"
    ),
    Promise(
        "messages_policy.yml",
        "run_query",
        {"query": "select 1; select 2"},
        "who 2 people",
    ),
    Promise("on_call_policy.yml", "not_listed", {}, "escalates to senior after 45m"),
]


@pytest.mark.parametrize("promise", PROMISES)
def test_a_policy_to_copy_asks_for_what_its_text_says(
    home: Path, capsys: pytest.CaptureFixture[str], promise: Promise
) -> None:
    call = json.dumps({"tool": promise.tool, "args": promise.args})
    (home / "one.json").write_text(call, encoding="utf-8")
    words = ["policy", "explain", promise.file, "--call", "one.json"]

    run([*words, *promise.options.split()], {})

    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert any(line.startswith(promise.line) for line in lines)


def test_at_night_a_senior_gets_a_message_only_about_what_expires_before_morning(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "one.json").write_text('{"tool": "wire_money"}', encoding="utf-8")

    asked: list[str] = []
    for at in ("2026-07-06T23:00Z", "2026-07-07T04:00Z"):
        run(
            [
                "policy",
                "explain",
                "on_call_policy.yml",
                "--call",
                "one.json",
                "--at",
                at,
            ],
            {},
        )
        printed = capsys.readouterr().out.splitlines()
        asked += [line for line in printed if "a direct message to U0LEAD" in line]

    now, later = asked
    assert now.endswith("on call until 2026-07-13 09:00 Europe/London")
    assert later.endswith("from 2026-07-07 07:00 Europe/London")


def test_the_reference_is_that_of_the_code() -> None:
    written = REFERENCE.read_text(encoding="utf-8")

    assert written == page(), "write it again: python -m tests.docs.policy_reference"


@pytest.mark.parametrize("model", models())
def test_every_key_is_in_the_example(model: type[BaseModel]) -> None:
    example = (ROOT / "policy.example.yml").read_text("utf-8")
    names = [field.alias or name for name, field in model.model_fields.items()]

    assert [name for name in names if f"{name}:" not in example] == []


def test_every_name_of_an_expression_is_on_the_page() -> None:
    names = [*(f"call.{name}" for name in CALL), *(f"recent.{name}" for name in RECENT)]

    assert [name for name in (*names, *MACROS) if f"`{name}`" not in PAGE] == []


@pytest.mark.parametrize("file", SHIPPED)
def test_shipped_policies_load(capsys: pytest.CaptureFixture[str], file: str) -> None:
    code = run(["policy", "check", str(ROOT / file)], {})

    assert code == 0
    _, *more = capsys.readouterr().out.splitlines()
    assert all(line.startswith("· The role") for line in more)

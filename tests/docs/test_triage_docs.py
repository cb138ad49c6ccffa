"""The examples of docs/triage.md work unchanged."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from keyturn.gateway.approvals.evidence import Argument
from keyturn.gateway.config import Settings
from keyturn.gateway.embed import load_triage
from keyturn.gateway.policy.evaluate import evaluate
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.rules import TriageRule
from keyturn.gateway.protocol.records import Tier
from keyturn.gateway.triage.asking import TriageFailure, ask
from keyturn.gateway.triage.chat_model import ChatModelTriage
from keyturn.gateway.triage.request import MAX_ARGUMENTS, MAX_VALUE, TriageRequest
from tests.docs.chat_server import chat_server, says
from tests.docs.reviewing import run
from tests.docs.test_readme import ROOT, blocks

PAGE = (ROOT / "docs" / "triage.md").read_text(encoding="utf-8")
REQUEST = TriageRequest(
    agent="billing",
    tool="wire_money",
    tier=Tier.APPROVE,
    arguments=(Argument(name="to", value="eve"),),
    hour_utc=3,
)
LONG = timedelta(seconds=20)


def test_the_page_has_no_block_that_nothing_runs() -> None:
    assert [len(blocks(kind, PAGE)) for kind in ("yaml", "yml", "python")] == [1, 1, 2]
    assert PAGE.count("```") == 2 * 4


def test_the_policy_puts_to_triage_what_the_page_says() -> None:
    policy = load_policy(blocks("yaml", PAGE)[0], "triage.md")

    asked = {
        tool: evaluate(policy, agent="a", tool=tool, args={}).triage
        for tool in ("look_up_order", "export_orders", "process_refund", "unlisted")
    }

    five = timedelta(seconds=5)
    assert asked == {
        "look_up_order": None,
        "export_orders": TriageRule(tiers=(Tier.AUTO,), timeout=five, may_deny=True),
        "process_refund": TriageRule(timeout=five),
        "unlisted": TriageRule(timeout=five),
    }


async def test_the_settings_load_the_model_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    (tmp_path / "triage.py").write_text(blocks("python", PAGE)[0], "utf-8")
    (tmp_path / "policy.yml").write_text(blocks("yaml", PAGE)[0], "utf-8")
    (tmp_path / "keyturn.yml").write_text(blocks("yml", PAGE)[0], "utf-8")

    assessment = json.dumps({"raise_to": "escalate", "score": 60, "rationale": "new"})
    async with chat_server([says(assessment)]) as address:
        monkeypatch.setenv("OPENAI_BASE_URL", address)
        triage = await load_triage(Settings.load(tmp_path / "keyturn.yml", {}))
        assert isinstance(triage, ChatModelTriage)
        said = await ask(triage, REQUEST, LONG)

    assert said.assessment is not None
    assert said.assessment.raise_to is Tier.ESCALATE


async def test_a_triage_of_ones_own_is_any_object_with_the_coroutine() -> None:
    triage = run(blocks("python", PAGE)[1])["NewPayees"]()
    known = REQUEST.with_(arguments=(Argument(name="to", value="ada"),))

    new, old = await ask(triage, REQUEST, LONG), await ask(triage, known, LONG)

    assert new.assessment is not None
    assert old.assessment is not None
    assert (new.assessment.raise_to, old.assessment.raise_to) == (Tier.ESCALATE, None)


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    assert f"at most {MAX_ARGUMENTS}, each cut at {MAX_VALUE} characters" in PAGE
    assert all(f"`{why}`" in PAGE for why in TriageFailure)

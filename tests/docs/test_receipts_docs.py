"""The examples of docs/receipts.md work unchanged."""

from __future__ import annotations

import inspect
import re
import time
from pathlib import Path
from typing import Any

import pytest

from keyturn.agent import current_receipt, grants
from keyturn.gateway.errors import NotVerified
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol import receipts
from keyturn.receipts import Receipt, verifier
from tests.docs.reviewing import run
from tests.docs.test_readme import ROOT, blocks
from tests.receipts.sample_receipts import ARGS, AUDIENCE, KEY, receipt, signed

PAGE = (ROOT / "docs" / "receipts.md").read_text(encoding="utf-8")


def fresh() -> str:
    """Return a receipt that is valid now."""
    now = int(time.time())  # noqa: TID251 - as the verifier asks
    return signed(receipt(iat=now, nbf=now, exp=now + 900))


def test_the_page_has_no_block_that_nothing_runs() -> None:
    assert len(blocks("python", PAGE)) == 2
    assert len(blocks("yaml", PAGE)) == 1
    assert PAGE.count("```") == 2 * 4


def test_the_policy_names_the_audience() -> None:
    policy = load_policy(blocks("yaml", PAGE)[0], "receipts.md")

    assert policy.tools["process_refund"].audience == "payments"


def test_the_tool_passes_its_receipt_on() -> None:
    sent: list[Any] = []

    def post(_: object, **it: Any) -> None:
        sent.append(it)

    names = run(blocks("python", PAGE)[0], post=post)
    granted = grants.Grant("i", "k", "h", "process_refund", "a", receipt="signed")

    with grants.grant_scope(granted):
        assert current_receipt() == "signed"
        names["process_refund"].invoke(ARGS)

    assert sent == [{**ARGS, "receipt": "signed"}]


def test_a_receipt_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run(blocks("python", PAGE)[1], GATEWAY_KEY=KEY.public.text)
    process_refund = names["process_refund"]

    assert AUDIENCE == "payments"
    with pytest.raises(NotVerified, match="missing"):
        process_refund(**ARGS)
    assert process_refund(**ARGS, receipt=fresh()) == "refunded 120.00 for A-1042"
    with pytest.raises(NotVerified, match="used"):
        process_refund(**ARGS, receipt=fresh())


def test_every_reason_and_no_other_is_listed() -> None:
    text = "".join(inspect.getsource(one) for one in (receipts, receipts, verifier))
    raised = {*re.findall(r'NotVerified\(\s*"(\w+)"', text)}

    table = PAGE.partition("| Reason | What |")[2].partition("\n\n")[0]
    listed = {
        name
        for row in table.splitlines()[2:]
        for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }

    assert listed == raised
    assert Receipt.model_fields["aud"].is_required()

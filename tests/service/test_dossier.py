"""A dossier has the oversight of a period, and its figures follow from the bundle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from keyturn.gateway.approvals.decisions import Edit, Reject
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.config import PolicySource
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy_file import PolicyFile, followed
from keyturn.gateway.protocol.records import Result
from keyturn.gateway.service.people.erasing import Eraser
from keyturn.gateway.service.report.audit_writing import public_keys
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.service.audit_harness import AuditHarness
from tests.service.harness import ANA, DAN, ServiceHarness, claim_of
from tests.service.test_audit_bundles import Terminal, exported
from tests.service.test_spot_checks import CHECKED, answer, drawn

PERIOD = ("--from", "2020-01-01", "--to", "2100-01-01")
MOMENT_MS = 1_600_000_000_000
"""In the period, before the entries."""

WORD = "canary-dossier"
DECISIONS = {"approved": 2, "edited": 1, "rejected": 1, "answered": 0}


class Auditor:
    """An auditor with a bundle, the public key and no settings."""

    def __init__(self, house: AuditHarness, tell: Terminal, folder: Path) -> None:
        self.house, self.tell, self.folder = house, tell, folder
        assert house.store.keyring
        self.key = ("--key", public_keys(house.store.keyring)[0].text)

    async def gets_bundle(self) -> None:
        lines = await exported(self.house)
        (self.folder / "bundle.jsonl").write_bytes(b"".join(lines))

    async def runs(self, *words: str) -> tuple[int, str]:
        return await self.tell(
            "dossier", "bundle.jsonl", *self.key, *words, offline=True
        )

    async def reads(self, *period: str) -> dict[str, Any]:
        code, out = await self.runs(*(period or PERIOD), "--json")
        assert code == 0, out
        (self.folder / "dossier.json").write_text(out)
        found: dict[str, Any] = json.loads(out)
        return found

    async def checks(self, name: str = "dossier.json") -> tuple[int, str]:
        return await self.runs("--check", name)


@pytest.fixture
async def auditor(
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Auditor:
    monkeypatch.chdir(tmp_path)
    house = AuditHarness(store, tmp_path)
    store.conn.secrets = (b"s" * 32,)
    return Auditor(house, Terminal(house, capfd, tmp_path), tmp_path)


async def a_month(house: AuditHarness, folder: Path) -> str:
    """Edit, approve, reject, freeze and check calls; return the rejected approval."""
    harness = ServiceHarness(house.store, load_policy(CHECKED, "p"))
    (folder / "policy.yml").write_text(CHECKED)
    policy = PolicyFile(PolicySource(path=folder / "policy.yml"))

    async def is_loaded() -> bool:
        return bool(await harness.audited(EventName.POLICY_LOADED))

    async with followed(policy, house.store, tenant="default"):
        await eventually(is_loaded)
    for thread, ok in (("ran", True), ("failed", False)):
        claim = await drawn(harness, thread)
        granted = await harness.granted(claim)
        await harness.agents.finish(claim.item_id, granted.fence, Result(ok=ok))
        if ok:
            await answer(
                harness, await harness.item(claim.item_id), "U0CHLOE", is_right=False
            )
    ref, [verdict] = await harness.submit(("process_refund", {"amount": 7}))
    await harness.decide(verdict, Edit(args={"amount": 6}, reason=WORD))
    granted = await harness.granted(claim_of(ref, verdict))
    await harness.agents.finish(verdict.item_id, granted.fence, Result(ok=True))
    click, _ = await harness.refund(8, thread="rejected")
    await harness.reviews.decide(click, Reject(reason=WORD), ANA)
    scope = FreezeScope(kind=ScopeKind.TOOL, name="wire_money")
    await harness.reviews.freezes.freeze(scope, "T0/U0ANA", WORD)
    await house.writer.tick(is_last=True)
    return click.approval


def person(found: dict[str, Any], name: str) -> dict[str, Any]:
    [one] = [one for one in found["people"] if one["id"] == name]
    return {"item.checked": one["item.checked"]} | {
        outcome: one[outcome] for outcome in DECISIONS
    }


async def test_the_figures_are_those_counted_by_hand(auditor: Auditor) -> None:
    await a_month(auditor.house, auditor.folder)
    await auditor.gets_bundle()

    found = await auditor.reads()

    [policy] = found["policies"]
    assert policy["roles"] == {
        "support": ["U0ANA", "U0BEN", "U0DAN"],
        "senior": ["U0CHLOE"],
    }
    assert policy["digest"] == load_policy(CHECKED, "p").digest
    assert person(found, "T0/U0ANA") == DECISIONS | {"item.checked": 0}
    nothing = dict.fromkeys(DECISIONS, 0)
    assert person(found, "T0/U0CHLOE") == nothing | {"item.checked": 1}
    total = found["counts"]["total"]
    assert total["outcomes"].items() >= DECISIONS.items()
    assert (total["failed"], total["waited"]["count"]) == (1, 4)
    assert total["audit_yield"] == {"count": 1, "of": 1, "rate": 1.0}
    [freeze] = found["freezes"]
    assert (freeze["scope"], freeze["by"]) == ("tool wire_money", "T0/U0ANA")
    ran = (found["entries"]["item.executed"], found["entries"]["item.failed"])
    assert ran == (2, 1)
    assert found["erased"] == {"entries": 0, "texts": 0}
    later = await auditor.reads("--from", "2099-01-01", "--to", "2100-01-01")
    assert later["policies"] == found["policies"]
    assert (later["people"], later["freezes"], later["entries"]) == ([], [], {})
    assert WORD not in json.dumps(found)
    assert '"Dan"' not in json.dumps(found)


async def test_a_changed_figure_or_bundle_is_found(auditor: Auditor) -> None:
    await a_month(auditor.house, auditor.folder)
    await auditor.gets_bundle()
    found = await auditor.reads()
    assert (await auditor.checks())[0] == 0

    found["counts"]["total"]["outcomes"]["rejected"] = 0
    del found["freezes"][0]
    (auditor.folder / "dossier.json").write_text(json.dumps(found))
    code, out = await auditor.checks()

    assert (code, len(out.splitlines())) == (1, 2)
    assert "counts.total.outcomes.rejected is 0; the bundle gives 1" in out
    assert 'freezes[0] is "(missing)"' in out
    body = (auditor.folder / "bundle.jsonl").read_bytes()
    for old, new in ((b"item.rejected", b"item.answered"), (WORD.encode(), b"other")):
        (auditor.folder / "bundle.jsonl").write_bytes(body.replace(old, new, 1))
        for words in (("--check", "dossier.json"), PERIOD):
            code, out = await auditor.runs(*words)
            assert (code, "The bundle is not verified" in out) == (1, True)
    assert not (auditor.folder / "dossier.html").exists()


async def test_decisions_count_after_erasure(auditor: Auditor) -> None:
    store = auditor.house.store
    store.audit_folder = store.tree_folder
    rejected = await a_month(auditor.house, auditor.folder)
    eraser = Eraser(store)
    for what, person_left in ((rejected, "T0/U0ANA"), (DAN.user, "(erased)")):
        await eraser.erase(what, by="cli/eve", is_dry_run=False)
        await auditor.house.writer.tick(is_last=True)
        await auditor.gets_bundle()

        found = await auditor.reads()

        assert found["counts"]["total"]["outcomes"].items() >= DECISIONS.items()
        assert found["erased"]["texts"] > 0
        assert person_left in {one["id"] for one in found["people"]}
        assert (await auditor.checks())[0] == 0
    # Dan is in a role, so the list of roles was erased with him.
    assert found["policies"][0]["roles"] is None
    # Whether the call was right is not known any more.
    assert found["counts"]["total"]["audit_yield"]["of"] == 0
    assert found["entries"]["item.checked"] == 1


async def test_the_page_has_the_same_figures_and_no_texts(auditor: Auditor) -> None:
    await a_month(auditor.house, auditor.folder)

    code, out = await auditor.tell("dossier", *PERIOD, "--out", "page.html")

    assert code == 0, out
    page = (auditor.folder / "page.html").read_text("utf-8")
    assert "<td>T0/U0ANA</td><td>0</td><td>0</td><td>0</td><td>2</td><td>1</td>" in page
    assert "<td>tool wire_money</td>" in page
    assert WORD not in page
    assert "<script" not in page


async def test_a_changed_figure_of_a_page_is_found(auditor: Auditor) -> None:
    await a_month(auditor.house, auditor.folder)
    assert (await auditor.tell("dossier", *PERIOD))[0] == 0
    await auditor.gets_bundle()
    code, out = await auditor.checks("dossier.html")
    assert code == 0, out

    page = auditor.folder / "dossier.html"
    text = page.read_text("utf-8")
    for old, new in (
        ("<td>tool wire_money</td>", "<td>tool other</td>"),
        ("</html>", "<p>All good.</p></html>"),
    ):
        page.write_text(text.replace(old, new, 1))
        code, out = await auditor.checks("dossier.html")
        assert (code, new in out) == (1, True), out


async def test_only_a_dossier_can_be_checked(auditor: Auditor) -> None:
    await a_month(auditor.house, auditor.folder)
    await auditor.gets_bundle()
    for text in ("{}", "[]", "<!doctype html>", '{"format": "keyturn/dossier/v2"}'):
        (auditor.folder / "dossier.json").write_text(text)
        code, out = await auditor.checks()
        assert (code, "--check needs a dossier" in out) == (2, True), out
    code, out = await auditor.runs("--from", "2026-10-01")
    assert (code, "such as --to 2026-10-01" in out) == (2, True), out


async def test_an_incomplete_bundle_is_refused(auditor: Auditor) -> None:
    await a_month(auditor.house, auditor.folder)
    for options in ({"sample": 1}, {"since_ms": MOMENT_MS}, {"until_ms": MOMENT_MS}):
        lines = await exported(auditor.house, **options)
        (auditor.folder / "bundle.jsonl").write_bytes(b"".join(lines))
        code, out = await auditor.runs(*PERIOD)
        assert (code, "Export " in out) == (2, True), out
    code, out = await auditor.runs("--from", "2026-11-01", "--to", "2026-10-01")
    assert (code, "is not after" in out) == (2, True)
    code, out = await auditor.tell("dossier", "--check", "dossier.json", offline=True)
    assert (code, "name the BUNDLE" in out) == (2, True)

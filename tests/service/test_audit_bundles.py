"""A bundle contains the result of each approval, and proves it by a public key."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keyturn.cli.main import run
from keyturn.gateway.approvals.decisions import Approve, Edit, Reject
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.config import PolicySource
from keyturn.gateway.metrics.report import utc
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy_file import PolicyFile, followed
from keyturn.gateway.protocol.public_keys import PublicKey
from keyturn.gateway.protocol.records import Result
from keyturn.gateway.service.people.erasing import Eraser
from keyturn.gateway.service.report.audit_reading import AuditBundler
from keyturn.gateway.service.report.audit_writing import public_keys
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.audit_proofs import BundleReport, verify_bundle
from keyturn.gateway.trust.key_folder import SigningKey
from tests.conftest import eventually
from tests.service.audit_harness import AuditHarness
from tests.service.harness import ANA, DAN, ServiceHarness, claim_of
from tests.service.test_spot_checks import CHECKED, answer, drawn
from tests.trust.proofs import proven as checked


@pytest.fixture
def house(store: Store, tmp_path: Path) -> AuditHarness:
    return AuditHarness(store, tmp_path)


@pytest.fixture
def keys(house: AuditHarness) -> tuple[PublicKey, ...]:
    assert house.store.keyring
    return public_keys(house.store.keyring)


async def a_day(house: AuditHarness, day: str = "") -> tuple[str, str]:
    """Run one refund and reject another; return their approvals."""
    harness = ServiceHarness(house.store)
    click, claim = await harness.refund(899, thread=f"t1{day}")
    await harness.reviews.decide(click, Approve(reason="fair — 好"), ANA)
    ran = click.approval
    await harness.ran(claim)
    click, _ = await harness.refund(12, thread=f"t2{day}")
    await harness.reviews.decide(click, Reject(reason="too much"), ANA)
    await house.writer.tick(is_last=True)
    return ran, click.approval


async def exported(house: AuditHarness, **options: int) -> list[bytes]:
    lines: list[bytes] = []
    bundler = AuditBundler(house.store, tenant="default")
    await bundler.export(lines.append, **options)  # type: ignore[arg-type]
    return lines


async def test_a_bundle_tells_who_decided_what_and_why_and_what_ran(
    house: AuditHarness, keys: tuple[PublicKey, ...]
) -> None:
    ran, rejected = await a_day(house)

    report = verify_bundle(await exported(house), keys)

    assert report.problem == ""
    stories = report.stories
    assert stories[ran].has_run
    assert not stories[rejected].has_run
    told = {
        (str(event.name), event.actor, event.reason) for event in stories[ran].events
    }
    assert ("item.authorized", "T0/U0ANA", "fair — 好") in told
    assert {"item.executing", "item.executed"} <= {one[0] for one in told}
    assert stories[rejected].events[-1].reason == "too much"
    # With the arguments that ran, by the hash that entries have.
    assert report.calls == 2


async def test_a_sample_and_a_proof_hold_whole_approvals(
    house: AuditHarness, keys: tuple[PublicKey, ...]
) -> None:
    ran, rejected = await a_day(house)

    one = verify_bundle(await exported(house, sample=1), keys)
    many = verify_bundle(await exported(house, sample=99), keys)
    bundler = AuditBundler(house.store, tenant="default")
    proven = await bundler.prove(ran)

    assert (one.problem, len(one.stories)) == ("", 1)
    assert {*many.stories} == {ran, rejected}
    origin = house.files.origin()
    assert origin
    for each in proven:
        index, _ = checked(each.proof, each.leaf.text, origin=origin, keys=keys)
        assert index == each.index
    assert len(proven) == len(many.stories[ran].events)


async def test_of_other_tenants_nothing_hidden_is_told(
    house: AuditHarness, keys: tuple[PublicKey, ...]
) -> None:
    theirs = Event(
        name=EventName.ITEM_REJECTED,
        tenant="other",
        actor="T9/U0THEIRS",
        reason="their word",
    )
    await house.store.audit(house.keys).append(theirs)
    await a_day(house)

    lines = await exported(house)

    text = b"".join(lines).decode()
    assert "too much" in text
    assert "their word" not in text
    assert "U0THEIRS" not in text
    assert verify_bundle(lines, keys).problem == ""


def refused(lines: list[bytes], keys: tuple[PublicKey, ...]) -> BundleReport:
    report = verify_bundle(lines, keys)
    assert report.problem
    return report


def index_of(line: bytes) -> int | None:
    index: object = json.loads(line).get("index")
    return index if isinstance(index, int) else None


@pytest.mark.slow
@pytest.mark.parametrize("sample", [0, 99])
async def test_every_change_of_a_bundle_is_noticed_and_the_first_bad_entry_named(
    house: AuditHarness, keys: tuple[PublicKey, ...], sample: int
) -> None:
    for day in "abc":
        await a_day(house, day)
    lines = await exported(house, sample=sample)
    entries = [
        number for number, line in enumerate(lines) if index_of(line) is not None
    ]
    chance = random.Random(7)  # noqa: S311 - the same each time

    def flip(now: list[bytes], at: int) -> None:
        line = bytearray(now[at])
        line[chance.randrange(len(line) - 1)] ^= 1 << chance.randrange(7)
        now[at] = bytes(line)

    def delete(now: list[bytes], at: int) -> None:
        del now[at]

    def double(now: list[bytes], at: int) -> None:
        now.insert(at, now[at])

    def reorder(now: list[bytes], at: int) -> None:
        now[at], now[at - 1] = now[at - 1], now[at]

    def cut(now: list[bytes], at: int) -> None:
        del now[at:]

    changes: list[Callable[[list[bytes], int], None]] = [
        flip, delete, double, reorder, cut,
    ]  # fmt: skip
    for number in range(500):
        change = changes[number % len(changes)]
        at = chance.choice(entries[1:])
        now = list(lines)
        change(now, at)

        report = refused(now, keys)

        # A second copy is noticed at its place, a flip of what links it to the one
        # before as a gap before it.
        named = {index_of(lines[one]) for one in (at - 1, at, at + 1) if one in entries}
        gaps = {(index_of(lines[one]) or 0) + 1 for one in (at - 1, at)}
        assert report.bad_index in named | gaps, change.__name__
    for at in {*range(len(lines))} - {*entries}:
        for change in (flip, delete, double):
            now = list(lines)
            change(now, at)
            refused(now, keys)


async def test_a_bundle_of_another_key_or_with_another_end_is_refused(
    house: AuditHarness, keys: tuple[PublicKey, ...]
) -> None:
    await a_day(house)
    lines = await exported(house)
    other = SigningKey.from_seed("keyturn/audit", b"o" * 32)
    [header, *rest] = lines
    later = await exported(house)

    refused(lines, (other.public,))
    refused([header, *rest[:-1], *later[-1:], b"{}\n"], keys)
    refused([], keys)
    refused([b'{"format": "other"}\n'], keys)
    shorter = json.loads(header)
    shorter["log"]["end"] -= 1
    at = next(n for n in range(len(lines) - 1, 0, -1) if index_of(lines[n]) is not None)
    refused(
        [json.dumps(shorter).encode() + b"\n", *lines[1:at], *lines[at + 1 :]], keys
    )


class Terminal:
    """Runs `keyturn audit` in a folder, with or without settings."""

    def __init__(
        self, house: AuditHarness, capfd: pytest.CaptureFixture[str], folder: Path
    ) -> None:
        self.capfd = capfd
        self.settings = folder / "keyturn.yml"
        self.env = {
            "KEYTURN_REDIS_URL": house.store.conn.url,
            "KEYTURN_SECRET": house.store.conn.secrets[0].hex(),
        }

    async def __call__(
        self, *words: str, offline: bool = False, command: str = "audit"
    ) -> tuple[int, str]:
        self.settings.unlink(missing_ok=True)
        if not offline:
            self.settings.write_text("data_dir: .")
        env = {} if offline else self.env
        code = await asyncio.to_thread(run, [command, *words], env)
        shown = self.capfd.readouterr()
        return code, shown.out + shown.err


@pytest.fixture
def tell(
    house: AuditHarness,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Terminal:
    monkeypatch.chdir(tmp_path)
    house.store.conn.secrets = (b"s" * 32,)
    return Terminal(house, capfd, tmp_path)


async def test_a_bundle_is_verified_without_store_and_settings(
    house: AuditHarness, keys: tuple[PublicKey, ...], tell: Terminal, tmp_path: Path
) -> None:
    """`tests/docs/test_audit_docs.py` verifies the log, and a bundle that changed."""
    ran, _ = await a_day(house)
    file = tmp_path / "bundle.jsonl"
    key = ("--key", keys[0].text)
    code, out = await tell("export", "bundle.jsonl")
    assert code == 0, out

    code, out = await tell("verify", "bundle.jsonl", *key, "--stories", offline=True)
    assert (code, f"{ran}: ran" in out) == (0, True)
    assert "approval.opened by T0/U0DAN" in out
    assert "    process_refund  approve  sha256:" in out

    code, out = await tell("verify", "bundle.jsonl", offline=True)
    assert (code, "--key" in out) == (2, True)
    code, out = await tell("verify", "none.jsonl", *key, offline=True)
    assert (code, "cannot be read" in out) == (2, True)
    file.write_bytes(b"no bundle")
    code, out = await tell("verify", "bundle.jsonl", *key, "--json", offline=True)
    assert (code, json.loads(out)["verified"]) == (1, False)


async def test_a_command_proves_entries(house: AuditHarness, tell: Terminal) -> None:
    ran, _ = await a_day(house)

    code, out = await tell("prove", ran)
    assert (code, out.count("c2sp.org/tlog-proof@v1")) == (0, out.count("# entry"))
    assert all(one.isprintable() or one == "\n" for one in out)
    code, out = await tell("prove", "ap_default_" + "0" * 32)
    assert (code, "has no entry about" in out) == (2, True)


async def test_a_named_new_tree_is_begun(house: AuditHarness, tell: Terminal) -> None:
    await a_day(house)
    shutil.rmtree(house.files.folder)
    await house.another().tick(is_last=True)
    before = house.files.origin()

    code, _ = await tell("--new-tree", command="repair")
    await house.another().tick(is_last=True)

    assert (before, code) == ("", 0)
    assert house.checkpoints()[-1].size == house.files.size > 0


async def test_the_log_is_compared_with_checkpoints_that_were_kept_elsewhere(
    house: AuditHarness, tell: Terminal, tmp_path: Path
) -> None:
    await a_day(house)
    kept, other = tmp_path / "kept.txt", tmp_path / "other.txt"
    # As `tail -6` copies them.
    lines = house.files.checkpoints_path.read_text("utf-8").splitlines(keepends=True)
    kept.write_text("".join(lines[-6:]), "utf-8")
    assert await tell("verify", "--checkpoint", "kept.txt") == await tell("verify")
    other.write_text(kept.read_text("utf-8").replace("default", "another"), "utf-8")
    code, out = await tell("verify", "--checkpoint", "other.txt")
    assert (code, "the given checkpoint is refused" in out) == (1, True)
    other.write_text("nothing")
    code, out = await tell("verify", "--checkpoint", "other.txt")
    assert (code, "has no checkpoint" in out) == (2, True)


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
        self.keys = public_keys(house.store.keyring)
        self.key = ("--key", self.keys[0].text)

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
        await harness.ran(claim, Result(ok=ok))
        if ok:
            await answer(
                harness, await harness.item(claim.item_id), "U0CHLOE", is_right=False
            )
    ref, [verdict] = await harness.submit(("process_refund", {"amount": 7}))
    await harness.decide(verdict, Edit(args={"amount": 6}, reason=WORD))
    await harness.ran(claim_of(ref, verdict))
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
    # The log ends long before both periods do.
    bundle = verify_bundle(await exported(auditor.house), auditor.keys)
    newest = max(event.at_ms for event, _ in bundle.events)
    assert (found["newest"], later["newest"]) == (utc(newest), None)
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
    # The policy is older than the period, and so are edits and starts of runs.
    for options in ({"sample": 1}, {"since_ms": 1}, {"until_ms": MOMENT_MS}):
        lines = await exported(auditor.house, **options)
        (auditor.folder / "bundle.jsonl").write_bytes(b"".join(lines))
        code, out = await auditor.runs(*PERIOD)
        assert (code, "Export " in out) == (2, True), out
    code, out = await auditor.runs("--from", "2026-11-01", "--to", "2026-10-01")
    assert (code, "is not after" in out) == (2, True)
    code, out = await auditor.tell("dossier", "--check", "dossier.json", offline=True)
    assert (code, "name the BUNDLE" in out) == (2, True)

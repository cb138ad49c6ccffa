"""A bundle contains the result of each approval, and proves it by a public key."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from keyturn.cli.main import run
from keyturn.gateway.approvals.decisions import Approve, Reject
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.protocol.public_keys import PublicKey
from keyturn.gateway.protocol.records import Result
from keyturn.gateway.service.report.audit_reading import AuditBundler
from keyturn.gateway.service.report.audit_writing import public_keys
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.audit_bundle import BundleReport, verify_bundle
from keyturn.gateway.trust.key_folder import SigningKey
from tests.service.audit_harness import AuditHarness
from tests.service.harness import ANA, ServiceHarness
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
    granted = await harness.granted(claim)
    await harness.agents.finish(claim.item_id, granted.fence, Result(ok=True))
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

"""Guarantees against writers to the store, about the audit log, and about secrecy."""

from __future__ import annotations

import gzip
import io
import logging
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import cast

from keyturn.bot.text import reveal
from keyturn.cli.verify.guarantee import expect, expect_is, guarantee
from keyturn.cli.verify.scratch import Call, Scratch
from keyturn.gateway.approvals import signed_decisions
from keyturn.gateway.approvals.changes import Change, following
from keyturn.gateway.approvals.decisions import Reject
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.requirement import Signature, Vote
from keyturn.gateway.protocol.wire import Claimed, Refused
from keyturn.gateway.service.people.erasing import Eraser
from keyturn.gateway.service.report import audit_reading
from keyturn.gateway.service.report.audit_writing import AuditWriter
from keyturn.gateway.store.audit.files import TreeFiles, segment_path
from keyturn.gateway.store.connection.connection import entries
from keyturn.gateway.store.records.atomic_write import Loaded, Write
from keyturn.gateway.trust.key_folder import SigningKey

STORE, AUDIT, SECRECY = "Writers to the store", "Audit log", "Secrecy"


async def _is_reported(scratch: Scratch, about: str) -> None:
    events = audit_reading.security_events(scratch.main.store, scratch.tenant)
    texts = [one.model_dump_json() async for one in events]
    expect(any(about in one for one in texts), "No security event reports it.")


async def _set_aside(call: Call) -> None:
    """Expect that a new process refuses a forged record and reports it."""
    expect_is(await call.claim(call.scratch.side()), Refused)
    await _is_reported(call.scratch, call.id)


@guarantee(STORE)
async def forged_record(scratch: Scratch) -> None:
    """A record that an attacker sets to authorized runs nothing and is reported."""
    call = await scratch.ask()
    await call.authorize_in_store()
    await _set_aside(call)


@guarantee(STORE)
async def replaced_document(scratch: Scratch) -> None:
    """An approved call whose document an attacker replaced does not run."""
    call, other = await scratch.approved(), await scratch.approved(amount=999)
    await call.put_back([(await call.copied())[0], (await other.copied())[1]])
    await _set_aside(call)


@guarantee(STORE)
async def older_record(scratch: Scratch) -> None:
    """A process that knows a newer record refuses an older one."""
    call = await scratch.approved()
    older = await call.copied()
    expect_is(await call.claim(), Claimed)
    await call.put_back(older)
    expect_is(await call.claim(owner="another"), Refused)


async def _not_proven(
    scratch: Scratch, forged: Callable[[Approval, Item, Vote], Vote]
) -> None:
    """Forge a vote with the sealing secret but without a key; the call may not run."""
    call = await scratch.approved()

    async def compute(loaded: Loaded) -> Write:
        approval, item = loaded.approval, loaded.approval.items[0]
        votes = (forged(approval, item, item.votes[0]),)
        return Write(Change(following(approval, item.with_(votes=votes))))

    await scratch.main.store.approvals.change(call.id, compute)
    expect_is(await call.claim(), Refused)


@guarantee(STORE)
async def forged_vote(scratch: Scratch) -> None:
    """A vote without the bot's signature authorizes nothing."""
    await _not_proven(scratch, lambda _approval, _item, vote: vote.with_(signed=None))


@guarantee(STORE)
async def foreign_vote(scratch: Scratch) -> None:
    """A decision that a foreign key signed authorizes nothing."""

    def forged(approval: Approval, item: Item, vote: Vote) -> Vote:
        true = cast("Signature", vote.signed)
        key = SigningKey.from_seed("keyturn/bot", bytes(32))
        signed = signed_decisions.signed(approval, item, vote, true, key)
        return vote.with_(signed=signed.with_(key=true.key))

    await _not_proven(scratch, forged)


async def _sign_log(scratch: Scratch) -> None:
    await AuditWriter(scratch.main.store, scratch.keys).tick(is_last=True)


async def _is_verified(scratch: Scratch, folder: Path | None = None) -> bool:
    store = scratch.side().store
    store.tree_folder = folder or store.tree_folder
    found = await audit_reading.verify_log_of(store, scratch.tenant)
    return bool(found.entries) and not found.problems


def _segment(scratch: Scratch, folder: Path) -> Path:
    return segment_path(TreeFiles(folder, scratch.tenant), 0)


@guarantee(AUDIT)
async def changed_log(scratch: Scratch) -> None:
    """A changed, a removed and an added entry are found."""
    await scratch.approved()
    await _sign_log(scratch)
    expect(await _is_verified(scratch), "The unchanged log does not verify.")
    copy = scratch.folder / "changed"
    path = _segment(scratch, shutil.copytree(scratch.folder / "audit", copy))
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    changed = [one.replace(b"U0ANA", b"U0EVE") for one in lines]
    for found in (changed, lines[:-1], [lines[-1], *lines]):
        path.write_bytes(gzip.compress(b"".join(found)))
        expect(not await _is_verified(scratch, copy), "The changed log verifies.")


@guarantee(AUDIT)
async def gap(scratch: Scratch) -> None:
    """An entry that is deleted before it is signed is reported."""
    for _ in range(2):
        await _sign_log(scratch)
        await scratch.approved()
    audit, ask = scratch.keys.audit, scratch.attacker.command
    newest = entries(await ask("XREVRANGE", audit, "+", "-", "COUNT", 1))[0].id
    await ask("XDEL", audit, newest)
    await _sign_log(scratch)
    await _is_reported(scratch, newest)


@guarantee(AUDIT)
async def erasure(scratch: Scratch) -> None:
    """After an erasure the record and its words are gone, and the log verifies."""
    call, reason = await scratch.ask(), secrets.token_hex(16)
    await call.decide(Reject(reason=reason))
    await _sign_log(scratch)
    eraser = Eraser(scratch.main.store, tenant=scratch.tenant)
    await eraser.erase(call.id, by="verify", is_dry_run=False)
    found = await scratch.main.reviews.read(call.id)
    expect(found is None, "The record is still there.")
    await _sign_log(scratch)
    expect(await _is_verified(scratch), "The log does not verify.")
    kept = gzip.decompress(_segment(scratch, scratch.folder / "audit").read_bytes())
    expect(reason.encode() not in kept, "A file of the log has the words.")


@guarantee(SECRECY)
async def hidden_characters(_: Scratch) -> None:
    """Hidden and bidirectional characters of an argument are shown on cards."""
    for one in "\u202e\u2066\u200b\u00ad\u2060\ufeff\u00a0\U000e0041":
        expect(one not in reveal(f"pay{one}eve"), f"U+{ord(one):04X} stays hidden.")


@guarantee(SECRECY)
async def silent_log(scratch: Scratch) -> None:
    """No argument and no sealing secret reaches a log."""
    logger, lines, word = logging.getLogger("keyturn"), io.StringIO(), "4f1d0c8a77e2"
    handler = logging.StreamHandler(lines)
    logger.addHandler(handler)
    call = await scratch.ask(note=word)
    await call.authorize_in_store()
    await call.claim(scratch.side())
    logger.removeHandler(handler)
    expect(call.id in lines.getvalue(), "The forged record was not logged.")
    for one in (word, *(one.hex() for one in scratch.store.conn.secrets)):
        expect(one not in lines.getvalue(), "A line has one.")

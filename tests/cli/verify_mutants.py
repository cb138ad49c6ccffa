"""One defect of the product for each guarantee of ``keyturn verify``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from keyturn.cli.verify.scratch import AMOUNT, PAYEE, Scratch
from keyturn.gateway.approvals.record import Item, approval_of
from keyturn.gateway.protocol.receipts import verify_receipt
from keyturn.gateway.protocol.records import ItemState, Tier
from keyturn.gateway.protocol.wire import Turn
from keyturn.gateway.service.run import claiming
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.store.connection import durability
from keyturn.gateway.store.connection.connection import Connection
from keyturn.gateway.store.records.atomic_write import Loaded

Mutant = Callable[[pytest.MonkeyPatch, Scratch], None]

APPROVALS = "keyturn.gateway.approvals"
CLAIMING = "keyturn.gateway.service.run.claiming"
CLAIMS = f"{CLAIMING}.ClaimService"
NO_SEALS = "keyturn.gateway.store.records.codec.RecordSeals.check"
NO_PROOFS = f"{CLAIMING}.proving.check_authorized"
TIER = "keyturn.gateway.policy.effective_rules.EffectiveRules.tier"
COMPARES = "if has_moved(change, now, added) then return {'moved'} end"


def gives(*places: str, value: object) -> Mutant:
    """Replace functions by one that returns a constant."""

    def given(*_args: object, **_kwargs: object) -> object:
        return value

    def mutant(patch: pytest.MonkeyPatch, _: Scratch) -> None:
        for place in places:
            patch.setattr(place, given)

    return mutant


def becomes(place: str, value: object) -> Mutant:
    """Replace an attribute."""
    return lambda patch, _: patch.setattr(place, value)


def awaits(place: str, *, value: object = None) -> Mutant:
    """Replace a coroutine function by one that returns a constant."""

    async def given(*_args: object, **_kwargs: object) -> object:
        return value

    return becomes(place, given)


def same(item: Item, _policy_now: object) -> Item:
    return item


def unedited(item: Item, _args: object) -> str:
    return item.action


async def grants(self: Any, of: Any) -> object:
    """Grant every claim."""
    return self._granted(of)


async def of_every_tenant(self: Any, item_id: str, compute: Any) -> object:
    """Change an item of any tenant."""

    def computed(loaded: Loaded) -> object:
        return compute(loaded, loaded.approval.items[0])

    return await self._store.approvals.change(approval_of(item_id)[0], computed)


def writes_without_comparing(patch: pytest.MonkeyPatch, _: Scratch) -> None:
    evalsha: Any = Connection.evalsha

    async def mutant(conn: Connection, script: str, *args: Any, **kwargs: Any) -> Any:
        return await evalsha(conn, script.replace(COMPARES, ""), *args, **kwargs)

    patch.setattr(Connection, "evalsha", mutant)


def claims_before_a_decision(patch: pytest.MonkeyPatch, scratch: Scratch) -> None:
    patch.setattr(f"{APPROVALS}.executing.CLAIMED", frozenset(ItemState))
    gives(NO_PROOFS, value=None)(patch, scratch)


def forgets_the_end(patch: pytest.MonkeyPatch, scratch: Scratch) -> None:
    start: Any = vars(claiming.ClaimService)["_start"]

    async def mutant(self: object, of: Any) -> object:
        return await start(self, of._replace(item=of.item.with_(lapses_at_ms=0)))

    patch.setattr(claiming.ClaimService, "_start", mutant)
    gives(f"{APPROVALS}.revoking._is_too_old", value=False)(patch, scratch)


def ignores_freezes(patch: pytest.MonkeyPatch, scratch: Scratch) -> None:
    evaluate: Any = vars(claiming)["evaluate_now"]

    async def mutant(*args: Any) -> object:
        return replace(await evaluate(*args), freeze=None)

    patch.setattr(f"{CLAIMING}.evaluate_now", mutant)
    gives(f"{CLAIMING}.names_of", value=())(patch, scratch)


def tool_ignores(**given: Any) -> Mutant:
    """Verify receipts without a part of the call."""

    def mutant(text: str, **call: Any) -> object:
        return verify_receipt(text, **(call | given))

    return becomes("keyturn.receipts.verifier.verify_receipt", mutant)


def logs_arguments(patch: pytest.MonkeyPatch, _: Scratch) -> None:
    submit = AgentService.submit

    async def mutant(self: AgentService, turn: Turn) -> object:
        logging.getLogger("keyturn.gateway").warning("submitted %s", turn)
        return await submit(self, turn)

    patch.setattr(AgentService, "submit", mutant)


def opens_the_secret(_: pytest.MonkeyPatch, scratch: Scratch) -> None:
    scratch.settings.secret_keys()
    (scratch.settings.data_dir / "secret.key").chmod(0o644)


def store_forgets(patch: pytest.MonkeyPatch, _: Scratch) -> None:
    read = durability.read_facts

    async def mutant(conn: Connection) -> list[durability.EngineFacts]:
        weak = {"appendonly": "no"}
        return [
            replace(one, settings={**(one.settings or {}), **weak})
            for one in await read(conn)
        ]

    patch.setattr(durability, "read_facts", mutant)


MUTANTS: dict[str, Mutant] = {
    "requester": gives(f"{APPROVALS}.quorum.is_among", value=False),
    "no_role": gives(f"{APPROVALS}.quorum.holds", value=True),
    "no_member": gives(f"{APPROVALS}.quorum.no_member", value=None),
    "one_person_twice": gives(f"{APPROVALS}.deciding.is_counted", value=False),
    "borrowed_button": gives("keyturn.bot.ids._mac", value=bytes(16)),
    "old_version": gives(f"{APPROVALS}.deciding._is_changed", value=False),
    "late_click": gives(f"{APPROVALS}.timing.is_late", value=False),
    "silence": awaits("keyturn.gateway.service.run.sweep.Sweeper.sweep"),
    "replayed_request": awaits(
        "keyturn.gateway.store.reviewers.cards.CardStore.is_first", value=True
    ),
    "double_click": gives(f"{APPROVALS}.deciding.not_as_seen", value=None),
    "double_click_elsewhere": writes_without_comparing,
    "denied_tool": gives(TIER, value=(Tier.APPROVE, ())),
    "edit_that_raises": becomes(f"{APPROVALS}.deciding.raised_item", same),
    "edit_outside_schema": gives(
        "keyturn.gateway.protocol.edits.edit_errors", value={}
    ),
    "own_edit": gives(f"{APPROVALS}.quorum.editors", value=()),
    "exactly_the_card": becomes(f"{APPROVALS}.editing.edited_document", unedited),
    "before_a_decision": claims_before_a_decision,
    "claimed_once": becomes(f"{CLAIMS}._take_over", grants),
    "restart": becomes(f"{CLAIMS}._take_over", grants),
    "another_call": gives(f"{CLAIMING}.is_same_call", value=True),
    "other_tenant": becomes(f"{CLAIMS}._change", of_every_tenant),
    "after_expiry": forgets_the_end,
    "after_withdrawal": awaits(
        "keyturn.gateway.service.run.agents.AgentService.withdraw_items"
    ),
    "attempt_used_twice": awaits("keyturn.gateway.resume.ledger.DatabaseLedger.spend"),
    "frozen": ignores_freezes,
    "receipt_used_twice": gives("keyturn.receipts.SqliteLedger.use", value=True),
    "receipt_for_another_call": tool_ignores(args={"amount": AMOUNT}),
    "receipt_elsewhere": tool_ignores(audience=PAYEE),
    "late_receipt": gives("keyturn.gateway.protocol.receipts.check_time", value=None),
    "key_of_another_agent": gives(
        "keyturn.gateway.trust.api_keys.ApiKey.may_be", value=True
    ),
    "forged_record": gives(NO_SEALS, NO_PROOFS, value=None),
    "replaced_document": gives(NO_SEALS, NO_PROOFS, value=None),
    "older_record": gives(
        "keyturn.gateway.store.records.approvals.Lasting.is_replayed", value=False
    ),
    "forged_vote": gives(NO_PROOFS, value=None),
    "foreign_vote": gives(
        "keyturn.gateway.protocol.public_keys.PublicKey.has_signed", value=True
    ),
    "changed_log": gives(
        "keyturn.gateway.store.audit.verifying._compare_segments", value=None
    ),
    "gap": awaits(
        "keyturn.gateway.service.report.audit_writing.AuditWriter._report_gap"
    ),
    "erasure": awaits("keyturn.gateway.service.people.erasing.Eraser._erase", value=""),
    "hidden_characters": gives("keyturn.bot.text._is_usual", value=True),
    "silent_log": logs_arguments,
    "no_call_below_its_tier": gives(TIER, value=(Tier.AUTO, ())),
    "unlisted_tool": gives(TIER, value=(Tier.AUTO, ())),
    "private_keys": opens_the_secret,
    "durable": store_forgets,
}
"""The defect for each guarantee, by its name."""

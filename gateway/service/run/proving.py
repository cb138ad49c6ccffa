"""Verify the signed decisions on a call, and issue receipts for its executor.

Before a claim is granted, every decision that allows the call is verified: signed by
the bot, for exactly this call, by as many people as have to agree. The gateway then
signs a receipt, which the executor of the tool verifies without the gateway. If a
decision cannot be verified, the call is refused and its record is quarantined.

An agent receives only verified words of people. This includes words that run nothing
and that a model reads: a rejection, an answer, a withdrawal, an edit, and the finding
about an execution in doubt.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from keyturn.gateway.approvals.events import SecurityEvent, SecurityKind
from keyturn.gateway.approvals.executing import CLAIMED
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.requirement import Vote
from keyturn.gateway.approvals.signed_decisions import (
    Given,
    check,
    check_authorization,
    check_edit,
    check_end,
    check_finding,
)
from keyturn.gateway.approvals.standing import has_covered
from keyturn.gateway.approvals.timing import AUTHORIZATION_LIFETIME, TimerKind
from keyturn.gateway.errors import BotKeyUnknown, NotVerified
from keyturn.gateway.policy.effective_rules import EffectiveRules
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol import digest, receipts
from keyturn.gateway.protocol.digest import state_in, stateless_hash
from keyturn.gateway.protocol.public_keys import PublicKey
from keyturn.gateway.protocol.records import Effect, ItemState, Tier
from keyturn.gateway.protocol.strict_json import parse_object
from keyturn.gateway.protocol.wire import Refused
from keyturn.gateway.store.records.atomic_write import Loaded
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.key_folder import Keyring, Role

logger = logging.getLogger(__name__)

RECEIPT_TAG = "keyturn/v1/receipt"

NOT_TOLD = "What the gateway's record says of this call could not be proven."

NOT_PROVEN = "It could not be proven that people decided this call, so it must not run."

_MAY_RUN = {
    ItemState.PENDING,
    ItemState.AUTHORIZED,
    ItemState.EXECUTING,
    ItemState.HANDING_OVER,
    # A reconciliation may run it again under its existing votes.
    ItemState.IN_DOUBT,
}

_RECEIPT_MS = (receipts.LIFETIME_S + receipts.SKEW_S) * 1000

Check = Callable[[Approval, Item, Sequence[PublicKey]], None]


def check_authorized(
    store: Store,
    policy: Policy,
    approval: Approval,
    item: Item,
    standing: Approval | None,
) -> None:
    """Check that a call was authorized by all required people.

    Args:
        store: the store with the keys; without keys nothing is verified.
        policy: the policy in force now.
        approval: the record of the call.
        item: its item, authorized or executing.
        standing: the standing approval that covered it, if any.

    Raises:
        NotVerified: when it was not; ``reason`` is one word for the problem.
    """
    keyring = store.keyring
    if keyring is None:
        return
    if _is_by_policy(item):
        _check_policy(policy, approval, item)
    elif item.cover is None:
        _check_signed(approval, item, keyring)
    elif standing is not None:
        _check_signed(standing, standing.items[0], keyring)
        if not has_covered(standing, item):
            raise NotVerified("not_covered", "what people gave is for other calls")
    # An authorized call whose standing approval is gone is ended by the claim.
    elif item.state is not ItemState.AUTHORIZED:
        raise NotVerified("unsigned", "what covered it is gone")


def _check_policy(policy: Policy, approval: Approval, item: Item) -> None:
    """Check that the policy can allow a call without people, as in its record.

    If the policy has changed since the call was opened, the claim evaluates the call by
    the current one. Under the same policy only the facts have changed.
    """
    if approval.policy_digest != policy.digest:
        return
    rules = EffectiveRules(policy, item.ctx.agent, item.tool)
    tier, _ = rules.tier()
    # A hint of the agent's code may lower a tier that is overridable.
    is_free = rules.overridable and tier is not Tier.DENY
    if not (tier.is_auto_approved or is_free):
        raise NotVerified("nobody_decided", "the policy gives this call to people")


def receipt_of(
    store: Store,
    policy: Policy,
    approval: Approval,
    item: Item,
    standing: Approval | None,
) -> str:
    """Return the receipt of a claim, after `check_authorized`; "" without keys.

    A repeated claim gets the same receipt with the same end. After a release, the next
    claim has the same receipt id (`receipt_id`). No receipt of an id expires later than
    a ledger remembers the id. The arguments are those of `check_authorized`.

    Raises:
        SettingsError: when this process has no key to sign with.
    """
    if store.keyring is None:
        return ""
    iat = item.changed_at_ms // 1000
    votes, grant, edit = _votes(item, standing), receipts.Grant.APPROVE, item.edit
    if edit is not None:
        grant = receipts.Grant.EDIT
    if _is_by_policy(item):
        votes, grant = (), receipts.Grant.POLICY
    batch = None
    if approval.is_batch:
        count = len(approval.items)
        batch = receipts.BatchPlace(digest=approval.digest, index=item.index, n=count)
    rules = EffectiveRules(policy, approval.agent, item.tool)
    receipt = receipts.Receipt(
        decision=grant,
        jti=receipt_id(item),
        attempt=item.fence,
        aud=rules.first.audience or approval.agent,
        iat=iat,
        nbf=iat,
        exp=min(
            iat + receipts.LIFETIME_S,
            _since_ms(approval, item) // 1000 + receipts.USABLE_S,
        ),
        approval=approval.id,
        item=item.id,
        version=approval.version,
        tier=item.tier,
        effect=item.effect_class or Effect.IRREVERSIBLE,
        policy=approval.policy_digest,
        display=next((one.signed.display for one in votes if one.signed), ""),
        original=edit.original_hash if edit else "",
        edit=edit.patch if edit else (),
        batch=batch,
        idempotency_key=claim_key(item),
        approvers=tuple(map(_approver, votes)),
        ctx=item.ctx.as_dict(),
        salt=str(parse_object(item.action)["salt"]),
        state=state_in(item.action),
    )
    key = store.keyring.signing(Role.GATEWAY)
    return key.envelope(
        receipts.PAYLOAD_TYPE, receipts.statement(receipt, item.action_hash)
    )


def claim_key(item: Item) -> str:
    """Return the idempotency key of a call.

    It excludes the business state: if the call returns to its reviewers in a new state,
    it keeps its key, and a tool that has run does not run twice.
    """
    return digest.claim_key(item.ctx.as_dict(), stateless_hash(item.action))


def receipt_id(item: Item) -> str:
    """Return the id of an item's receipts, which a ledger accepts once.

    Only the agent reports that a claim was released unused. Therefore all claims of an
    item share one id until people allow an execution in doubt to run again. An
    idempotent call has an id per start, because it may repeat after a worker died.
    """
    start = item.fence if item.idempotent else item.reconciled_fence
    named = digest.canonical([item.id, start, item.idempotent])
    return digest.tagged_hash(RECEIPT_TAG, named).removeprefix("sha256:")[:32]


def _since_ms(approval: Approval, item: Item) -> int:
    """Return a time before the first receipt of this id, the same for all of them."""
    found = (one for one in item.observations if one.fence == item.reconciled_fence)
    return max((one.vote.at_ms for one in found), default=approval.created_at_ms)


def _check_signed(
    approval: Approval,
    item: Item,
    keyring: Keyring,
    check: Check = check_authorization,
) -> None:
    try:
        check(approval, item, keyring.verifying(Role.BOT))
    except NotVerified as error:
        if error.reason != "key_unknown":
            raise
        check(approval, item, keyring.verifying_now(Role.BOT))


def _is_by_policy(item: Item) -> bool:
    return item.cover is None and item.tier.is_auto_approved


def _votes(item: Item, standing: Approval | None) -> tuple[Vote, ...]:
    """Return the votes of people that authorized a call."""
    if item.cover is None:
        return item.votes_now
    return standing.items[0].votes_now if standing else ()


def _approver(vote: Vote) -> receipts.Approver:
    return receipts.Approver(
        team=vote.by.team,
        user=vote.by.user,
        role=vote.roles[0] if vote.roles else "",
        at=vote.at_ms // 1000,
        slack_request=vote.signed.request if vote.signed else "",
    )


@dataclass(frozen=True, slots=True)
class Unproven:
    """A call with unverified content in its record; ``told`` is the agent's text."""

    approval: Approval
    item: Item
    error: NotVerified
    told: str = NOT_PROVEN

    @property
    def is_unknown_key(self) -> bool:
        """Return whether the signing key may only be missing in the settings."""
        return self.error.reason == SecurityKind.KEY_UNKNOWN


async def refuse_unproven(store: Store, found: Unproven) -> Refused:
    """Refuse a claim; quarantine the record unless only a key may be missing.

    Raises:
        BotKeyUnknown: when the key may only be missing in the settings; the call can
            run once the key is there, if that is in time.
    """
    approval = found.approval
    keys = store.keys_of_approval(approval.id)
    if keys is not None:
        await store.security.report(keys, _event(found))
    if found.is_unknown_key and not await _is_settled(store, found):
        raise BotKeyUnknown(
            f"The gateway does not know the key that signed the decision of "
            f"{approval.id!r}, so nothing ran. If it is the bot's, add it to "
            "'keys: {bot: […]}' of the gateway; `keyturn keys list` shows it there."
        )
    if keys is not None and not found.is_unknown_key:
        await store.approvals.quarantine(keys, approval.id)
    return Refused(reason=found.told, state=found.item.state)


async def _is_settled(store: Store, found: Unproven) -> bool:
    """Return whether a call ended too long ago to wait for a missing key.

    A call that may still run waits as long as its authorization.
    """
    item = found.item
    if item.state in {ItemState.AUTHORIZED, *CLAIMED}:
        return False
    age_ms = await store.conn.now_ms("") - item.changed_at_ms
    return age_ms > AUTHORIZATION_LIFETIME.total_seconds() * 1000


def _event(found: Unproven) -> SecurityEvent:
    approval = found.approval
    return SecurityEvent(
        kind=(
            SecurityKind.KEY_UNKNOWN
            if found.is_unknown_key
            else SecurityKind.RECORD_FORGED
        ),
        tenant=approval.tenant,
        about="decision",
        agent=approval.agent,
        thread=approval.thread,
        approval=approval.id,
        name=found.error.reason,
    )


def unproven_end(
    store: Store, approval: Approval, item: Item, *checks: Check
) -> Unproven | None:
    """Return the unverified content of a record; None when all of it is verified.

    Args:
        store: the store with the keys; without keys nothing is verified.
        approval: the record.
        item: its item, which cannot be claimed now.
        checks: the checks to run; the default covers all words that an agent receives.
    """
    keyring = store.keyring
    if keyring is None:
        return None
    try:
        for check in checks or (check_end, check_edit, check_finding):
            _check_signed(approval, item, keyring, check)
    except NotVerified as error:
        told = f"{NOT_TOLD} Look before you ask again whether it ran."
        return Unproven(approval, item, error, told)
    return None


async def are_proven(store: Store, approval: Approval, item: Item) -> bool:
    """Return whether the words in a record are verified; report them if not.

    A record with a wrong or missing signature is quarantined as well.

    Raises:
        BotKeyUnknown: when the key may only be missing in the settings.
    """
    found = unproven_end(store, approval, item)
    if found is not None:
        await refuse_unproven(store, found)
    return found is None


def proven_words(store: Store, approval: Approval, item: Item) -> Item:
    """Return an item without the reasons and observations that are not verified.

    They decide nothing here, so the rest of the item is kept.
    """
    keyring = store.keyring
    if keyring is None:
        return item
    keys = keyring.verifying(Role.BOT)
    votes = tuple(
        one
        if not one.reason or _is_signed(approval, item, one, keys)
        else one.with_(reason="")
        for one in item.votes
    )
    observations = tuple(
        one for one in item.observations if _is_signed(approval, item, one, keys)
    )
    if votes == item.votes and observations == item.observations:
        return item
    logger.error("words.unproven item=%s", item.id)
    return item.with_(votes=votes, observations=observations)


def _is_signed(
    approval: Approval, item: Item, given: Given, keys: Sequence[PublicKey]
) -> bool:
    try:
        check(approval, item, given, keys)
    except NotVerified:
        return False
    return True


async def is_edit_proven(store: Store, approval: Approval, item: Item) -> bool:
    """Return whether a person made the edit of a claimed call.

    The claim has verified the edit, under a key that may have been retired since.
    """
    found = unproven_end(store, approval, item, check_edit)
    if found is None or found.is_unknown_key:
        return True
    await refuse_unproven(store, found)
    return False


async def calls_under(store: Store, tenant: str, role: Role, key_id: str) -> int:
    """Return how many calls still depend on signatures of a key.

    For a key of the bot: calls that may still run and that contain a signature of it.
    For a key of the gateway: calls whose receipt may still be verified, because they
    run now, or are in doubt and may still run in a process that seemed dead. For a key
    of the audit log: none, because retired keys verify the log as well.

    Args:
        store: the store.
        tenant: the tenant of the calls.
        role: the role of the key.
        key_id: id of the key, as `keyturn keys list` shows it.

    Raises:
        StoreUnavailable: when the store does not answer.
    """
    # Signatures are in votes, edits, findings and answers, so the whole item is
    # searched. Text of agents cannot imitate one, because its quotes are escaped.
    signed = f'"key":"{key_id}"'

    def waits(item: Item, now_ms: int) -> bool:
        if role is Role.BOT:
            return item.state in _MAY_RUN and signed in item.model_dump_json()
        if item.state is ItemState.IN_DOUBT:
            # Its claim was granted before the doubt.
            return now_ms <= item.changed_at_ms + _RECEIPT_MS
        return item.state is ItemState.EXECUTING

    if role is Role.AUDIT:
        return 0
    count = 0
    async for found in _unended(store, tenant):
        count += sum(waits(item, found.now_ms) for item in found.approval.items)
    return count


async def _unended(store: Store, tenant: str) -> AsyncGenerator[Loaded]:
    """Yield a tenant's approvals with calls that wait, run, or are in doubt."""
    keys = store.keys_of_tenant(tenant)
    ids = await store.approvals.scheduled(keys)
    # A call in doubt has no deadline; only people end it, and they are reminded.
    ids += await store.timers.approvals_with(keys, TimerKind.DOUBT)
    for one in dict.fromkeys(ids):
        for loaded in await store.approvals.load_each([one]):
            if loaded.approval.tenant == tenant:
                yield loaded

"""Prove that a call may run, and issue the receipt by which others can verify it.

Before a claim is granted, every decision that let the call run is verified: signed by
the bot, for exactly this call, by as many people as have to agree. The gateway then
signs a receipt of its own, which whoever runs the tool verifies without us.
"""

from __future__ import annotations

from collections.abc import Callable

from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.requirement import Vote
from keyturn.gateway.approvals.signed_decisions import check_authorization
from keyturn.gateway.approvals.standing import has_covered
from keyturn.gateway.errors import NotVerified
from keyturn.gateway.policy.effective_rules import EffectiveRules
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.business_state import state_in, stateless_hash
from keyturn.gateway.protocol.effect import Effect
from keyturn.gateway.protocol.receipts import (
    LIFETIME_S,
    PAYLOAD_TYPE,
    USABLE_S,
    Approver,
    BatchPlace,
    Grant,
    Receipt,
    statement,
)
from keyturn.gateway.protocol.states import ItemState
from keyturn.gateway.protocol.strict_json import parse_object
from keyturn.gateway.protocol.tiers import Tier
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.key_folder import Role
from keyturn.gateway.trust.keyring import Keyring

RECEIPT_TAG = "keyturn/v1/receipt"


class Receipts:
    """Verifies what authorized a call, and issues receipts.

    Without keys, as in a store that a test opened, nothing is verified or issued.

    Args:
        store: whose keys are used.
        policy: returns the policy in force now.
    """

    def __init__(self, store: Store, policy: Callable[[], Policy]) -> None:
        self._store = store
        self._policy = policy

    def check(self, approval: Approval, item: Item, standing: Approval | None) -> None:
        """Check that a call was authorized by those who have to agree.

        Args:
            approval: the record of the call.
            item: of it; authorized, or executing.
            standing: the standing approval that covered it, if any.

        Raises:
            NotVerified: says in one word what is wrong.
        """
        keyring = self._store.keyring
        if keyring is None:
            return
        if _is_by_policy(item):
            self._check_policy(approval, item)
            return
        if item.cover is None:
            _check_signed(approval, item, keyring)
        elif standing is not None:
            _check_signed(standing, standing.items[0], keyring)
            if not has_covered(standing, item):
                raise NotVerified("not_covered", "what people gave is for other calls")
        elif item.state is not ItemState.AUTHORIZED:
            raise NotVerified("unsigned", "what covered it is gone")
        # One that covered an authorized call and is gone: the claim ends the call.

    def _check_policy(self, approval: Approval, item: Item) -> None:
        """Check that the policy can let a call run without people, as its record says.

        Under another policy than the one that opened it, the claim compares what the
        policy of now says of the call. Under the same one only the facts have moved.
        """
        policy = self._policy()
        if approval.policy_digest != policy.digest:
            return
        rules = EffectiveRules(policy, item.ctx.agent, item.tool)
        tier, _ = rules.tier()
        # A run of the agent may ask for less than is listed.
        is_free = rules.overridable and tier is not Tier.DENY
        if not (tier.is_auto_approved or is_free):
            raise NotVerified("nobody_decided", "the policy gives this call to people")

    def issue(self, approval: Approval, item: Item, standing: Approval | None) -> str:
        """Return the receipt of a claim that stands, after `check`; "" without keys.

        A claim that is asked for again has the same receipt, which ends as it would
        have. One that was given back has the same id at the next claim
        (`receipt_id`), and none of that id ends later than a ledger remembers it.

        Args:
            approval: the record of the call.
            item: of it; executing.
            standing: the standing approval that covered it, if any.

        Raises:
            SettingsError: when this process has no key to sign with.
        """
        keyring = self._store.keyring
        if keyring is None:
            return ""
        votes = _votes(item, standing)
        key = keyring.signing(Role.GATEWAY)
        iat = item.changed_at_ms // 1000
        rules = EffectiveRules(self._policy(), approval.agent, item.tool)
        edit = item.edit
        receipt = Receipt(
            decision=_grant(item),
            jti=receipt_id(item),
            attempt=item.fence,
            aud=rules.first.audience or approval.agent,
            iat=iat,
            nbf=iat,
            exp=min(iat + LIFETIME_S, _since_ms(approval, item) // 1000 + USABLE_S),
            approval=approval.id,
            item=item.id,
            version=approval.version,
            tier=item.tier,
            effect=item.effect_class or Effect.IRREVERSIBLE,
            policy=approval.policy_digest,
            display=next((one.signed.display for one in votes if one.signed), ""),
            original=edit.original_hash if edit else "",
            edit=edit.patch if edit else (),
            batch=_place(approval, item),
            idempotency_key=digest.claim_key(
                item.ctx.as_dict(), stateless_hash(item.action)
            ),
            approvers=tuple(map(_approver, votes)),
            ctx=item.ctx.as_dict(),
            salt=str(parse_object(item.action)["salt"]),
            state=state_in(item.action),
        )
        return key.envelope(PAYLOAD_TYPE, statement(receipt, item.action_hash))


def receipt_id(item: Item) -> str:
    """Return the id of an item's receipts, which a ledger lets be used once.

    An agent alone says that a claim was given back unused, so all claims of an item
    have one id, whatever became of the call meanwhile, until people let an execution
    in doubt run again. An idempotent tool may repeat a call when a worker died.
    """
    start = item.fence if item.idempotent else item.reconciled_fence
    named = digest.canonical([item.id, start, item.idempotent])
    return digest.tagged_hash(RECEIPT_TAG, named).removeprefix("sha256:")[:32]


def _since_ms(approval: Approval, item: Item) -> int:
    """Return a time before the first receipt of this id, the same for all of them."""
    found = (one for one in item.observations if one.fence == item.reconciled_fence)
    return max((one.vote.at_ms for one in found), default=approval.created_at_ms)


def _check_signed(approval: Approval, item: Item, keyring: Keyring) -> None:
    try:
        check_authorization(approval, item, keyring.verifying(Role.BOT))
    except NotVerified as error:
        if error.reason != "key_unknown":
            raise
        check_authorization(approval, item, keyring.verifying_now(Role.BOT))


def _is_by_policy(item: Item) -> bool:
    return item.cover is None and item.tier.is_auto_approved


def _votes(item: Item, standing: Approval | None) -> tuple[Vote, ...]:
    """Return the votes of those who let a call run; none where the policy did."""
    if _is_by_policy(item):
        return ()
    if item.cover is None:
        return item.votes_now
    return standing.items[0].votes_now if standing else ()


def _grant(item: Item) -> Grant:
    if _is_by_policy(item):
        return Grant.POLICY
    return Grant.APPROVE if item.edit is None else Grant.EDIT


def _place(approval: Approval, item: Item) -> BatchPlace | None:
    if not approval.is_batch:
        return None
    return BatchPlace(digest=approval.digest, index=item.index, n=len(approval.items))


def _approver(vote: Vote) -> Approver:
    return Approver(
        team=vote.by.team,
        user=vote.by.user,
        role=vote.roles[0] if vote.roles else "",
        at=vote.at_ms // 1000,
        slack_request=vote.signed.request if vote.signed else "",
    )

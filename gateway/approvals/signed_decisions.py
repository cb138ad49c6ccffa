"""Sign decisions of people, and verify the decisions in a record.

The bot signs after Slack has confirmed the person and before the write (Ed25519 over a
domain tag, a NUL and RFC 8785 bytes). An attacker with write access to the store can
then delete decisions but not forge them: a rejected call has no signed approvals to
restore. A decision that no person made has no signature.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Protocol

from pydantic import JsonValue

from keyturn.gateway.approvals import quorum
from keyturn.gateway.approvals.record import Approval, DecisionRecord, Item
from keyturn.gateway.approvals.requirement import Observation, Signature, Vote
from keyturn.gateway.errors import NotVerified
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.digest import stateless_hash
from keyturn.gateway.protocol.public_keys import PublicKey
from keyturn.gateway.protocol.records import EditRecord, Finding, ItemState, Verb

TAG = b"keyturn/v1/decision\x00"

_ENDED_BY = {
    ItemState.REJECTED: Verb.REJECT,
    ItemState.ANSWERED: Verb.RESPOND,
    # Withdrawn by a requester.
    ItemState.WITHDRAWN: Verb.REJECT,
}


class DecisionKey(Protocol):
    """The key of the bot."""

    @property
    def public(self) -> PublicKey:
        """Return its public half."""
        ...

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message."""
        ...


Given = Vote | Observation | DecisionRecord | EditRecord
"""A decision of a person, as a record has it; an approval is signed by its votes."""


def given_hash(item: Item, given: Given) -> str:
    """Return the hash of the decided call; for an edit, of the edited call."""
    match given:
        case Vote():
            return given.action_hash
        case Observation():
            return given.vote.action_hash
        case DecisionRecord():
            return item.action_hash
        case EditRecord():
            # Without the business state: it is read anew before the call runs.
            return stateless_hash(item.action)


def signed(
    approval: Approval, item: Item, given: Given, unsigned: Signature, key: DecisionKey
) -> Signature:
    """Return the signature of a decision.

    ``unsigned`` has all fields except the key's.
    """
    sig = base64.b64encode(key.sign(_message(approval, item, given, unsigned))).decode()
    return unsigned.with_(key=key.public.id.hex(), sig=sig)


def _message(
    approval: Approval, item: Item, given: Given, signature: Signature
) -> bytes:
    """Return the bytes to sign: a person's decision on one call."""
    action_hash, verb = given_hash(item, given), signature.verb
    vote = given.vote if isinstance(given, Observation) else given
    behalf = () if isinstance(vote, EditRecord) else vote.on_behalf_of
    match given:
        case Observation():
            text = given.note
        case DecisionRecord():
            text = given.text
        case _:
            text = given.reason
    document: dict[str, JsonValue] = {
        "v": 1,
        "tenant": approval.tenant,
        "approval": approval.id,
        "item": item.id,
        "version": signature.version,
        "seen": signature.seen or action_hash,
        "action_hash": action_hash,
        "display": signature.display,
        "verb": verb.value if verb else "",
        "by": [given.by.team, given.by.user],
        "roles": [*signature.roles],
        "on_behalf_of": [[one.team, one.user] for one in behalf],
        "text": text,
        "answers": [*given.answers] if isinstance(given, DecisionRecord) else [],
        "at_ms": vote.at_ms,
        "request": signature.request,
        "policy": signature.policy,
        "finding": given.finding.value if isinstance(given, Observation) else "",
        "fence": given.fence if isinstance(given, Observation) else 0,
    }
    return TAG + digest.canonical(document)


def check(
    approval: Approval, item: Item, given: Given, keys: Sequence[PublicKey]
) -> Signature:
    """Check that the bot signed a decision; return its signature.

    Raises:
        NotVerified: ``unsigned``, ``key_unknown`` or ``signature_wrong``.
    """
    match given:
        case EditRecord():
            signature = item.edit_signed
        case Observation():
            signature = given.vote.signed
        case _:
            signature = given.signed
    if signature is None:
        raise NotVerified("unsigned", "the bot has not signed it")
    known = [key for key in keys if key.id.hex() == signature.key]
    if not known:
        raise NotVerified("key_unknown", f"no key {signature.key[:20]!r} is known here")
    try:
        raw = base64.b64decode(signature.sig, validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    message = _message(approval, item, given, signature)
    if not any(key.has_signed(message, raw) for key in known):
        raise NotVerified("signature_wrong", "it is not what the bot signed")
    return signature


def check_end(approval: Approval, item: Item, keys: Sequence[PublicKey]) -> None:
    """Check the rejection, the answer or the withdrawal that a person gave.

    Raises:
        NotVerified: as `check`, and ``verb_wrong``.
    """
    verb, decision = _ENDED_BY.get(item.state), item.decision
    # The agent itself can drop a call; then there is no decision of a person.
    if verb is None or (decision is None and item.state is ItemState.WITHDRAWN):
        return
    if decision is None:
        raise NotVerified("unsigned", "nobody has decided it")
    signature = check(approval, item, decision, keys)
    if not signature.verb is decision.verb is verb:
        raise NotVerified("verb_wrong", "people said something else")


def check_edit(approval: Approval, item: Item, keys: Sequence[PublicKey]) -> None:
    """Check that a person made the edit of a call, if there is one.

    Raises:
        NotVerified: as `check`.
    """
    if item.edit is not None:
        check(approval, item, item.edit, keys)


def check_finding(approval: Approval, item: Item, keys: Sequence[PublicKey]) -> None:
    """Check that people made the recorded finding about an execution in doubt.

    Raises:
        NotVerified: as `check`, and ``too_few``.
    """
    if item.finding is None:
        return
    votes = _found_votes(approval, item, keys)
    if not quorum.tally(item.requirement, votes, item.action_hash).is_met:
        raise NotVerified("too_few", "fewer people found this than have to agree")


def check_authorization(
    approval: Approval, item: Item, keys: Sequence[PublicKey]
) -> None:
    """Check that people authorized a call.

    Every vote for the current action must be signed. Together the votes must meet the
    pinned requirement, without the people who asked for the call.

    Raises:
        NotVerified: as `check`, and ``verb_wrong``, ``self_approved`` or ``too_few``.
    """
    votes = item.votes_now
    for vote in votes:
        check(approval, item, vote, keys)
    check_edit(approval, item, keys)
    barred = (*approval.principals, *quorum.editors(item, item.requirement))
    counted: list[Vote] = []
    for vote in votes:
        signature = vote.signed
        if signature is None or not _approves(vote, signature):
            raise NotVerified("verb_wrong", "a vote is no approval of this call")
        if quorum.is_among(vote.by, barred):
            raise NotVerified("self_approved", "somebody who asked for it approved it")
        counted.append(vote.with_(roles=_proven_roles(item, vote, signature)))
    if not quorum.tally(item.requirement, counted, item.action_hash).is_met:
        raise NotVerified("too_few", "fewer people approved it than have to agree")
    _check_rerun(approval, item, keys)


def _approves(vote: Vote, signature: Signature) -> bool:
    is_edit = signature.verb is Verb.EDIT
    # An approval is for the call that the person saw; only an edit changes it.
    same = signature.seen in {"", vote.action_hash}
    return is_edit or (signature.verb is Verb.APPROVE and same)


def _proven_roles(item: Item, vote: Vote, signature: Signature) -> tuple[str, ...]:
    """Return the roles of a vote that the bot signed, or that its people have by id.

    The pinned list proves a role that a changed policy gave them later.
    """
    users = {one.user for one in (vote.by, *vote.on_behalf_of)}
    by_id = {role.name for role in item.requirement.roles if users & {*role.users}}
    proven = {*signature.roles, *by_id}
    return tuple(name for name in vote.roles if name in proven)


def _check_rerun(approval: Approval, item: Item, keys: Sequence[PublicKey]) -> None:
    """Check the votes for another run of an execution in doubt, if one is recorded."""
    if item.finding is not Finding.RERUN:
        # The fence names another execution, for which receipts have another id.
        if item.reconciled_fence:
            raise NotVerified("too_few", "nobody let it run again")
        return
    votes = _found_votes(approval, item, keys)
    # The call may have gone back to people since, and been approved again.
    last_ms = max((one.at_ms for one in votes), default=0)
    if votes and any(one.at_ms > last_ms for one in item.votes_now):
        return
    if not quorum.tally(item.requirement, votes, item.action_hash).is_met:
        raise NotVerified("too_few", "fewer people let it run again than have to agree")


def _found_votes(
    approval: Approval, item: Item, keys: Sequence[PublicKey]
) -> tuple[Vote, ...]:
    """Return the signed votes for the finding of the last reconciliation."""
    # The attempt that was reconciled last: the next one has a higher fence.
    found = [
        one
        for one in item.observations
        if one.finding is item.finding and one.fence == item.reconciled_fence
    ]
    votes: list[Vote] = []
    for one in found:
        signature = check(approval, item, one, keys)
        roles = _proven_roles(item, one.vote, signature)
        votes.append(one.vote.with_(roles=roles))
    return tuple(votes)

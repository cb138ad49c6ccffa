"""Precompute the approval of a call that waits, before anybody approves it.

While nobody waits for an answer, the call is approved twice, by two people who may do
that at two moments, and nothing is written. What both come to is learned as a text with
places for who and when (`store/templates.py`). A click then fills these in, signs and
seals. Whether this very person may approve is asked at the click; that the call is
still as it was is compared by the script, as of any change.

Only the plain case is precomputed: one role, nobody has voted or edited, one person is
enough. Every other one is decided as it comes.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from twokey.gateway.approvals import deciding, permission, quorum, timing
from twokey.gateway.approvals.changes import Change
from twokey.gateway.approvals.confirmation import shown_ms
from twokey.gateway.approvals.decisions import (
    AccountKind,
    Approve,
    Click,
    Gesture,
    Reviewer,
)
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.approvals.requirement import Requirement, Role
from twokey.gateway.approvals.signed_decisions import DecisionKey
from twokey.gateway.protocol.public_keys import PublicKey
from twokey.gateway.protocol.records import Person
from twokey.gateway.service.call_evaluation import CurrentEvaluation
from twokey.gateway.service.precomputed_starts import Start, precompute_start
from twokey.gateway.store.atomic_write import Loaded, Write
from twokey.gateway.store.connection import Connection
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.next_version import Unsealed, unsealed
from twokey.gateway.store.precomputed import Precomputed, precomputed
from twokey.gateway.store.record_heads import sealed
from twokey.gateway.store.record_seals import RecordSeals
from twokey.gateway.store.templates import (
    Moment,
    NotLearned,
    Samples,
    Template,
    is_plain,
)

GESTURE: Final = Gesture.BUTTON
"""How a precomputed approval is made: by the button on its card."""

_APPROVE = Approve()
_LEAST_MS = 60_000
"""A call that waits no longer than this is not precomputed."""
_AGES_MS = (3_001, 7_013)
"""How old what Slack said is in each sample."""

WriteOf = Callable[[Change, int, CurrentEvaluation], Write]
"""Returns what is written of a change of an item, by what the policy said of it."""


@dataclass(frozen=True, slots=True)
class Call:
    """A waiting call that may be approved by its button.

    Attributes:
        loaded: its approval, with what is stored of it.
        index: of its item.
        evaluated: what the policy in force says of it.
        display: digest of the card as it was last shown; "" where nobody knows.
    """

    loaded: Loaded
    index: int
    evaluated: CurrentEvaluation
    display: str

    @property
    def approval(self) -> Approval:
        """Return its approval."""
        return self.loaded.approval

    @property
    def item(self) -> Item:
        """Return its item."""
        return self.approval.items[self.index]

    @property
    def requirement(self) -> Requirement:
        """Return who has to agree, by both the old and the current policy."""
        now = self.evaluated.policy_now.requirement
        return quorum.stricter(self.item.requirement, now)

    def click(self, request: str) -> Click:
        """Return a click on its button, on the card as it was last shown."""
        return Click(
            approval=self.approval.id,
            index=self.index,
            version=self.approval.version,
            action_hash=self.item.action_hash,
            request_digest=request,
            display_digest=self.display,
        )


@dataclass(frozen=True, slots=True)
class Precomputation:
    """The approval of a call by anybody who may give it.

    Attributes:
        call: that is approved.
        keys: of its shard.
        meant: by which click, see `_meant_by`.
        write: what is written of it.
        after: the approval after it, but for who and when.
        since_ms, until_ms: for which moments it was precomputed.
        requirement: who has to agree.
        roles: that the person has to hold.
        user: who alone may approve it; "" for more than one.
        message: what is signed; None where nobody signs.
        signed_by: the key whose name stands beside the signature; "" for none.
        start: how the call is started after it; None where that comes as it comes.
        lease_ms: how long its claim stands.
    """

    call: Call
    keys: Keys
    meant: tuple[object, ...]
    write: Precomputed
    after: Approval
    since_ms: int
    until_ms: int
    requirement: Requirement
    roles: tuple[str, ...]
    user: str
    message: Template | None
    signed_by: str
    start: Precomputed | None
    lease_ms: int

    def started(self, approved: Moment, seal: bytes) -> Start | None:
        """Return the start of the call, once the approval is written with a seal."""
        if self.start is None:
            return None
        return Start(self.start, self.call.evaluated, approved, seal, self.lease_ms)

    def moment(
        self, click: Click, reviewer: Reviewer, now_ms: int, key: DecisionKey | None
    ) -> Moment | None:
        """Return the moment in which somebody approves; None: it was not precomputed.

        Args:
            click: what they saw.
            reviewer: who they are.
            now_ms: the store's clock.
            key: signs what they say.
        """
        person = reviewer.person
        if (
            not self.since_ms <= now_ms < self.until_ms
            or not self.is_meant_by(click)
            or (self.user and reviewer.user != self.user)
            or not self._may_approve(reviewer)
            # Keys may be rotated meanwhile, and a signature counts by its own alone.
            or _name_of(key) != self.signed_by
        ):
            return None
        asked_ms = now_ms - reviewer.membership_age_ms
        moment = Moment(
            now_ms, asked_ms, person.team, person.user, person.name,
            click.request_digest,
        )  # fmt: skip
        if not is_plain(moment):
            return None
        if key is None or self.message is None:
            return moment
        signature = key.sign(self.message.filled(moment).encode())
        return moment._replace(signature=_text(signature))

    def is_meant_by(self, click: Click) -> bool:
        """Return whether a click is on its button, on the card as it was last shown."""
        return _meant_by(click) == self.meant

    def _may_approve(self, reviewer: Reviewer) -> bool:
        item, requirement = self.call.item, self.requirement
        is_alone = not (reviewer.stands_in_for or reviewer.unknown_groups)
        is_member = reviewer.account is AccountKind.MEMBER
        if not (is_alone and is_member) or reviewer.gesture is not GESTURE:
            return False
        if quorum.roles_of(reviewer, requirement.roles) != self.roles:
            return False
        asked, barred = (
            self.call.approval.principals,
            permission.editors(item, requirement),
        )
        return quorum.ineligible_reason(reviewer, requirement, asked, barred) is None


@dataclass
class _Signs:
    """Stands in for the key of the bot, and notes what it signs."""

    public: PublicKey
    signature: bytes
    message: bytes = b""

    def sign(self, message: bytes) -> bytes:
        """Return the one signature that it knows."""
        self.message = message
        return self.signature


def precompute(
    conn: Connection,
    keys: Keys,
    call: Call,
    write_of: WriteOf,
    *,
    key: DecisionKey | None,
    lease_ms: int = 0,
) -> Precomputation | None:
    """Precompute the approval of a call; None where it is not the plain case.

    Args:
        conn: to the store, which is not asked.
        keys: of the approval's shard.
        call: that waits.
        write_of: returns what is written.
        key: signs what people decide.
        lease_ms: how long claims stand; 0 where this process starts no calls.
    """
    approval, item, requirement = call.approval, call.item, call.requirement
    since_ms, until_ms = call.loaded.now_ms, timing.end_of(approval, item)
    if not _is_simple(call) or until_ms - since_ms < _LEAST_MS:
        return None
    barred = (*approval.principals, *permission.editors(item, requirement))
    people = _people_of(requirement.roles, barred)
    if people is None:
        return None
    samples = Samples(
        _sample(0, people[0].user, since_ms), _sample(1, people[1].user, until_ms - 1)
    )
    found: list[tuple[Change, Unsealed, str]] = []
    for moment, person in zip((samples.first, samples.second), people, strict=True):
        signs = _signs(key, moment)
        change = _approved(call, moment, person, signs)
        if change is None:
            return None
        seen = _as_seen(call.loaded, moment.now_ms)
        what = write_of(change, call.index, call.evaluated)
        signed = signs.message.decode() if signs else ""
        found.append((change, unsealed(conn, keys, seen, what), signed))
    (change, one, said), (also, other, also_said) = found
    write = precomputed(keys, approval, samples, one, other)
    if write is None:
        return None
    try:
        message = samples.text(said, also_said) if key else None
    except NotLearned:
        return None
    start = lease_ms and precompute_start(
        conn,
        keys,
        samples,
        [(change.approval, one), (also.approval, other)],
        call.index,
        call.evaluated,
        lease_ms=lease_ms,
    )
    return Precomputation(
        call,
        keys,
        _meant_by(call.click("")),
        write,
        change.approval,
        since_ms,
        until_ms,
        requirement,
        quorum.roles_of(people[0], requirement.roles),
        people[0].user if people[0].user == people[1].user else "",
        message,
        _name_of(key),
        start or None,
        lease_ms,
    )


def whole(
    conn: Connection,
    keys: Keys,
    call: Call,
    write_of: WriteOf,
    moment: Moment,
    reviewer: Reviewer,
    key: DecisionKey | None,
    at_ms: int,
) -> Loaded | None:
    """Return what was written of a precomputation as a record, made as any other."""
    change = _approved(call, moment, reviewer, _signs(key, moment))
    if change is None:
        return None
    what = write_of(change, call.index, call.evaluated)
    after = unsealed(conn, keys, _as_seen(call.loaded, moment.now_ms), what).stored
    stored = sealed(RecordSeals(conn), call.approval.id, after)
    return Loaded(change.approval, at_ms, stored=stored)


def _meant_by(click: Click) -> tuple[object, ...]:
    """Return all that a click says but by which request."""
    return (
        click.approval, click.index, click.version, click.action_hash,
        click.display_digest, click.is_shared,
    )  # fmt: skip


def _is_simple(call: Call) -> bool:
    item, since_ms = call.item, call.loaded.now_ms
    return (
        item.is_pending
        and not (item.votes or item.edit or item.too_soon)
        # Behind that by a clock that went back, nobody is asked to look again.
        and since_ms >= shown_ms(call.approval, item)
        and len(call.requirement.roles) == 1
        and call.loaded.stored is not None
    )


def _people_of(
    roles: Sequence[Role], barred: Sequence[Person]
) -> tuple[Reviewer, Reviewer] | None:
    """Return two who may approve: the same, where one person alone may."""
    [role] = roles
    groups = frozenset(role.usergroups)
    out = {one.user for one in barred}
    users = [one for one in role.users if one not in out]
    if groups:
        users = ["UPRECOMPUTED0", "UPRECOMPUTED1"]
    if not users:
        return None
    return _reviewer(0, users[0], groups), _reviewer(1, users[-1], groups)


def _reviewer(place: int, user: str, groups: frozenset[str]) -> Reviewer:
    return Reviewer(
        team=f"TPRECOMPUTED{place}",
        user=user,
        name=f"Somebody of the precomputation {place}",
        usergroups=groups,
        account=AccountKind.MEMBER,
        membership_age_ms=_AGES_MS[place],
        gesture=GESTURE,
    )


def _sample(place: int, user: str, now_ms: int) -> Moment:
    named = _reviewer(place, user, frozenset()).person
    return Moment(
        now_ms,
        now_ms - _AGES_MS[place],
        named.team,
        user,
        named.name,
        f"sha256:{f'{place + 1:x}' * 64}",
        _text(bytes([place + 1]) * 64),
    )


def _approved(
    call: Call, moment: Moment, reviewer: Reviewer, key: DecisionKey | None
) -> Change | None:
    found = deciding.decide(
        call.approval,
        call.click(moment.request),
        _APPROVE,
        reviewer,
        now_ms=moment.now_ms,
        policy_now=call.evaluated.policy_now,
        key=key,
    )
    is_last = isinstance(found, Change) and found.resumes and found.waits_on is None
    return found if isinstance(found, Change) and is_last else None


def _as_seen(loaded: Loaded, now_ms: int) -> Loaded:
    return Loaded(loaded.approval, now_ms, remembered={}, stored=loaded.stored)


def _name_of(key: DecisionKey | None) -> str:
    return key.public.id.hex() if key else ""


def _signs(key: DecisionKey | None, moment: Moment) -> _Signs | None:
    return _Signs(key.public, base64.b64decode(moment.signature)) if key else None


def _text(signature: bytes) -> str:
    return base64.b64encode(signature).decode()

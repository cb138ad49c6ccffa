"""Replay the verdicts of a turn, and revoke those that the current policy denies.

A turn is evaluated once. A process that takes the turn over may submit it again; then a
freeze or another policy can revoke auto-approved calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from keyturn.gateway.approvals.record import Approval, approval_of
from keyturn.gateway.errors import BadJson, CorruptRecord, RefReused
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.records import Record, Tier
from keyturn.gateway.protocol.wire import (
    ProposedCall,
    Turn,
    TurnRef,
    Verdict,
    VerdictKind,
    args_hash,
)
from keyturn.gateway.service import denials
from keyturn.gateway.service.precedents import CallUsage
from keyturn.gateway.store.agent_load import AgentLoad
from keyturn.gateway.store.encryption import decrypted, encrypted, packed, unpacked
from keyturn.gateway.store.erasing import turn_key_of
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.sealing import Sealed, Sealing
from keyturn.gateway.store.store import Store
from keyturn.gateway.store.windows import Use, use_of
from keyturn.gateway.trust.seals import SEAL_BYTES

NEEDS_A_PERSON = (
    "The policy changed after this call was cleared: it needs a person now, so it "
    "does not run. If it is still needed, make it again as a new call."
)
FORBIDDEN = (
    "The policy changed after this call was cleared and no longer allows it, so it "
    "does not run."
)

ERASED = (
    "This call was proposed before and its request is over: its record was erased from "
    "the gateway, so nobody is asked again and it does not run now. Check whether it "
    "ran before; if it is still needed, make it again as a new call."
)


class StoredVerdicts(Record):
    """The verdicts on a turn and the digest of the policy that gave them, as stored.

    Attributes:
        policy: digest of the policy.
        verdicts: in the order of the calls. Empty if an approval of the turn was
            erased.
    """

    policy: str
    verdicts: tuple[Verdict, ...]

    @classmethod
    def read(cls, sealing: Sealing, turn_key: str, stored: bytes) -> StoredVerdicts:
        """Read what `dumped` wrote.

        Raises:
            CorruptRecord: when it is damaged, or not sealed as this turn's.
        """
        line, _, rest = stored.partition(b"\n")
        try:
            body = _checked(sealing, turn_key, line, rest)
            body = decrypted(sealing.conn, (Sealed.VERDICTS, turn_key), body)
            return cls.model_validate_json(unpacked(body))
        # pydantic's ValidationError is a ValueError. Its text contains stored data, so
        # only the key of the turn is passed on.
        except ValueError as error:
            raise CorruptRecord(turn_key) from error

    def dumped(self, sealing: Sealing, turn_key: str) -> bytes:
        """Return the bytes to store: a line with approval ids, then the sealed rest.

        The ids are separate because the store keeps a turn while they are open.
        """
        approvals = dict.fromkeys(
            approval_of(one.item_id)[0] for one in self.verdicts if one.item_id
        )
        return _written(sealing, turn_key, self, [*approvals])

    @property
    def is_erased(self) -> bool:
        """Return whether an approval of the turn was erased; then no call runs."""
        return not self.verdicts

    @classmethod
    def of_erased(cls, turn: Turn) -> StoredVerdicts:
        """Return denials for all calls of a turn with an erased approval."""
        return cls(policy="", verdicts=tuple(map(_over, turn.calls)))

    def about(self, turn: Turn) -> StoredVerdicts:
        """Return the verdicts on the calls of a turn that is submitted again.

        The turn may omit calls, because an agent omits calls that have ended.

        Raises:
            RefReused: when a call was not in the turn with these arguments.
        """
        given = {(it.tool_call_id, it.tool, it.args_hash): it for it in self.verdicts}
        keys = [(one.tool_call_id, one.tool, _hashed(one)) for one in turn.calls]
        for key in keys:
            if key not in given:
                raise RefReused(turn.ref.message_id, key[0])
        return self.with_(verdicts=tuple(given[key] for key in keys))

    def is_of(self, policy: Policy) -> bool:
        """Return whether these verdicts are from this policy."""
        return self.policy == policy.digest

    def halted(self, load: AgentLoad, agent: str) -> StoredVerdicts:
        """Return the verdicts, without those that a freeze stops now."""
        halted = tuple(_halted(verdict, load, agent) for verdict in self.verdicts)
        return self.with_(verdicts=halted)


def erased_turn(sealing: Sealing, approval: Approval) -> bytes:
    """Return the bytes to store for the turn of an erased approval; b"" without a turn.

    They contain no words and no calls.
    """
    if approval.is_standing:
        return b""
    over = StoredVerdicts(policy="", verdicts=())
    return _written(sealing, turn_key_of(approval), over, [approval.id])


async def read_verdicts(
    store: Store, keys: Keys, turn_key: str, stored: bytes, *, ref: TurnRef
) -> StoredVerdicts:
    """Read the stored verdicts of a turn; report them if they are not valid.

    Raises:
        CorruptRecord: when it is damaged, or not sealed as this turn's.
    """
    try:
        return StoredVerdicts.read(store.sealing, turn_key, stored)
    except CorruptRecord:
        await store.sealing.refuse(
            keys, Sealed.VERDICTS, stored, agent=ref.agent, thread=ref.thread
        )
        raise


def _written(
    sealing: Sealing, turn_key: str, found: StoredVerdicts, approvals: Sequence[str]
) -> bytes:
    line = " ".join(approvals).encode("ascii")
    body = packed(found.model_dump_json(exclude_defaults=True))
    body = encrypted(sealing.conn, (Sealed.VERDICTS, turn_key), body)
    seal = sealing.seal(Sealed.VERDICTS, _place(turn_key, line), body)
    return b"%b\n%b%b" % (line, seal, body)


def _hashed(call: ProposedCall) -> str:
    try:
        return args_hash(call.args)
    except BadJson:
        return ""


def _over(call: ProposedCall) -> Verdict:
    return Verdict(
        kind=VerdictKind.DENY,
        tool=call.tool,
        tool_call_id=call.tool_call_id,
        tier=Tier.DENY,
        args_hash=_hashed(call),
        reason=ERASED,
    )


def _checked(sealing: Sealing, turn_key: str, line: bytes, rest: bytes) -> bytes:
    """Return the packed JSON of stored verdicts after a check of their seal."""
    seal, body = rest[:SEAL_BYTES], rest[SEAL_BYTES:]
    if not sealing.is_valid(Sealed.VERDICTS, _place(turn_key, line), body, seal):
        raise ValueError("not sealed")
    return body


def _place(turn_key: str, line: bytes) -> tuple[str, str]:
    return turn_key, line.decode("ascii")


def recheck_verdict(verdict: Verdict, tier: Tier) -> Verdict:
    """Return the verdict for a call that has this tier now."""
    # Calls that need a claim keep their verdict: the claim evaluates them again.
    if not verdict.runs_unclaimed or tier.is_auto_approved:
        return verdict
    reason = FORBIDDEN if tier is Tier.DENY else NEEDS_A_PERSON
    return refused(verdict, reason)


def refused(verdict: Verdict, reason: str) -> Verdict:
    """Return the denial that replaces a verdict."""
    return verdict.with_(kind=VerdictKind.DENY, tier=Tier.DENY, reason=reason)


async def totals_with(store: Store, head: str, one: CallUsage) -> dict[str, int]:
    """Return the totals of a cleared call's windows, counting its share once.

    Args:
        store: the store with the windows.
        head: an empty key of the same tenant.
        one: the call's window usage.
    """
    counted = {use.name: await _is_counted(store, use) for use in one.reserved}
    asked = [_without_share(use) if counted[use.name] else use for use in one.reserved]
    return await store.windows.totals(head, 0, asked)


async def _is_counted(store: Store, use: Use) -> bool:
    found = await store.conn.command("ZSCORE", use.window, use.use)
    return found is not None


def _without_share(use: Use) -> Use:
    call = use.use.partition(" ")[0]
    return use_of(
        use.window, name=use.name, call=call, micro=0, within_ms=use.within_ms
    )


def _halted(verdict: Verdict, load: AgentLoad, agent: str) -> Verdict:
    if not verdict.runs_unclaimed:
        return verdict  # its claim checks freezes
    freeze = denials.freeze_of(load, agent, verdict.tool)
    return refused(verdict, denials.freeze_message(freeze)) if freeze else verdict

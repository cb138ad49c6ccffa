"""Replay the verdicts of a turn, and revoke those that the current policy denies.

A turn is evaluated once. What was auto-approved may still be asked about later,
by a process that takes the turn over; then a freeze or another policy counts.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from twokey.gateway.approvals.record import Approval, Item, approval_of, item_id
from twokey.gateway.errors import BadJson, CorruptRecord, NewerRecord
from twokey.gateway.policy.rules import Policy
from twokey.gateway.protocol import digest
from twokey.gateway.protocol.records import Record
from twokey.gateway.protocol.tiers import Tier
from twokey.gateway.protocol.wire import (
    ProposedCall,
    Turn,
    TurnRef,
    Verdict,
    VerdictKind,
    args_hash,
)
from twokey.gateway.service import denials
from twokey.gateway.service.window_usage import CallUsage
from twokey.gateway.store import codec
from twokey.gateway.store.agent_load import AgentLoad
from twokey.gateway.store.erasing import turn_key_of
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.packing import packed, unpacked
from twokey.gateway.store.sealing import Sealed, Sealing
from twokey.gateway.store.store import Store
from twokey.gateway.store.text_encryption import decrypted, encrypted
from twokey.gateway.store.windows import Use, use_of
from twokey.gateway.trust.seals import SEAL_BYTES

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

FORMAT = 5
"""Number of the format in which the verdicts of a turn are written.

They are a line with the ids of the turn's approvals, a byte with this number, their
seal, and packed JSON. It rises with every change after which an older version would
misread them. Until format 4 they had a checksum instead of a seal: who could write to
the store could let calls run. Of these, what waits for people still does, and what ran
without them does not any more.
"""

# Until format 2 nothing but packed JSON followed the line, without a checksum. It began
# with the number of its dictionary, of which there was one then, or with a brace.
_WITHOUT_CHECKSUM = (2, ord("{"))
_WITH_CHECKSUM = (3, 4)
_CHECKSUM_BYTES = 4

UNSEALED = (
    "An older version of Twokey cleared this call, and its record is not believed any "
    "more, so the call does not run now. Check whether it ran before; if it is still "
    "needed, make it again as a new call."
)


class StoredVerdicts(Record):
    """The verdicts on a turn and the digest of the policy that gave them, as stored.

    Attributes:
        policy: digest of the policy.
        verdicts: in the order of the calls. As `read` returns them they are without
            schemas, which `with_schemas` adds. Empty where an approval of the turn was
            erased.
        schemas: the digest of the shared part that has each verdict's schema, or until
            format 3 of the schema itself; "" for none.
    """

    policy: str
    verdicts: tuple[Verdict, ...]
    schemas: tuple[str, ...] = ()

    @classmethod
    def read(cls, sealing: Sealing, turn_key: str, stored: bytes) -> StoredVerdicts:
        """Read what `dumped` wrote.

        Raises:
            NewerRecord: when a newer version wrote it.
            CorruptRecord: when it is damaged, or not sealed as this turn's.
        """
        line, _, rest = stored.partition(b"\n")
        try:
            body, is_sealed = _checked(sealing, turn_key, line, rest)
            body = decrypted(sealing.conn, (Sealed.VERDICTS, turn_key), body)
            found = cls.model_validate_json(unpacked(body))
            approvals = line.decode("ascii").split()
            verdicts = tuple(_with_id(one, approvals) for one in found.verdicts)
        # pydantic's ValidationError is a ValueError. Its text would name what is
        # stored, so only the key of the turn goes on.
        except (ValueError, IndexError) as error:
            raise CorruptRecord(turn_key) from error
        if not is_sealed:
            verdicts = tuple(
                refused(one, UNSEALED) if one.runs_unclaimed else one
                for one in verdicts
            )
        return found.with_(verdicts=verdicts)

    def dumped(
        self, sealing: Sealing, turn_key: str, records: Sequence[Approval] = ()
    ) -> bytes:
        """Return what to store: a line with the ids of its approvals, then the rest.

        The ids stand apart because the store keeps a turn as long as they are open.
        """
        held = [one.item_id for one in self.verdicts if one.item_id]
        if not held:
            return _written(sealing, turn_key, self, ())
        approvals = list(dict.fromkeys(approval_of(one)[0] for one in held))
        pairs = ((one, codec.new(one).of_items) for one in records)
        shared = {
            item.id: name
            for one, names in pairs
            for item, name in zip(one.items, names, strict=True)
            if item.args_schema is not None
        }
        schemas = [shared.get(one.item_id, "") for one in self.verdicts]
        stored = self.with_(
            verdicts=tuple(_stored(one, approvals) for one in self.verdicts),
            schemas=tuple(schemas) if any(schemas) else (),
        )
        return _written(sealing, turn_key, stored, approvals)

    async def with_schemas(self, store: Store, keys: Keys) -> StoredVerdicts:
        """Return the verdicts as they were given.

        A schema lives as long as the approval that its call is in; with that gone the
        agent learns that it is only when it claims the call.
        """
        found = await store.approvals.schemas.read(keys, filter(None, self.schemas))
        names = self.schemas or ("",) * len(self.verdicts)
        parts = [found.get(name, {}).get("args_schema") for name in names]
        rows = zip(self.verdicts, parts, strict=True)
        verdicts = [one.with_(args_schema=schema) for one, schema in rows]
        return self.with_(verdicts=tuple(verdicts))

    @classmethod
    def of_record(cls, opened: Approval) -> StoredVerdicts:
        """Return what a turn was answered whose calls are all in this approval."""
        verdicts = tuple(_of_item(item) for item in opened.items)
        return cls(policy=opened.policy_digest, verdicts=verdicts)

    @property
    def is_erased(self) -> bool:
        """Return whether an approval of the turn was erased: nothing of it follows."""
        return not self.verdicts

    @classmethod
    def of_erased(cls, turn: Turn) -> StoredVerdicts:
        """Return what is answered to a turn that is over."""
        return cls(policy="", verdicts=tuple(map(_over, turn.calls)))

    def is_of(self, policy: Policy) -> bool:
        """Return whether this very policy gave these verdicts."""
        return self.policy == policy.digest

    def halted(self, load: AgentLoad, agent: str) -> StoredVerdicts:
        """Return the verdicts, without those that a freeze stops now."""
        halted = tuple(_halted(verdict, load, agent) for verdict in self.verdicts)
        return self.with_(verdicts=halted)


def erased_turn(sealing: Sealing, approval: Approval) -> bytes:
    """Return what to store of a turn of which an approval is erased; "" for no turn.

    It has no words and no calls.
    """
    if approval.is_standing:
        return b""
    over = StoredVerdicts(policy="", verdicts=())
    return _written(sealing, turn_key_of(approval), over, [approval.id])


async def read_verdicts(
    store: Store, keys: Keys, turn_key: str, stored: bytes, *, tenant: str, ref: TurnRef
) -> StoredVerdicts:
    """Read what is stored of a turn; report what is not believed.

    Raises:
        NewerRecord: when a newer version wrote it.
        CorruptRecord: when it is damaged, or not sealed as this turn's.
    """

    async def refuse() -> None:
        await store.sealing.refuse(
            keys,
            Sealed.VERDICTS,
            stored,
            tenant=tenant,
            agent=ref.agent,
            thread=ref.thread,
        )

    try:
        found = StoredVerdicts.read(store.sealing, turn_key, stored)
    except CorruptRecord:
        await refuse()
        raise
    if any(one.reason == UNSEALED for one in found.verdicts):
        await refuse()
    return found


def _written(
    sealing: Sealing, turn_key: str, found: StoredVerdicts, approvals: Sequence[str]
) -> bytes:
    line = " ".join(approvals).encode("ascii")
    body = packed(found.model_dump_json(exclude_defaults=True))
    body = encrypted(sealing.conn, (Sealed.VERDICTS, turn_key), body)
    seal = sealing.seal(Sealed.VERDICTS, _place(turn_key, line), body)
    return b"%b\n%c%b%b" % (line, FORMAT, seal, body)


def _of_item(item: Item) -> Verdict:
    return Verdict(
        kind=VerdictKind.RUN if item.is_auto_approved else VerdictKind.HOLD,
        tool=item.tool,
        tool_call_id=item.ctx.tool_call_id,
        tier=item.tier,
        args_hash=args_hash(item.requested_args),
        item_id=item.id,
        action_hash=digest.action_hash(item.requested),
        allow=item.allow,
        args_schema=item.args_schema,
    )


def _over(call: ProposedCall) -> Verdict:
    try:
        hashed = args_hash(call.args)
    except BadJson:
        hashed = ""
    return Verdict(
        kind=VerdictKind.DENY,
        tool=call.tool,
        tool_call_id=call.tool_call_id,
        tier=Tier.DENY,
        args_hash=hashed,
        reason=ERASED,
    )


def _checked(
    sealing: Sealing, turn_key: str, line: bytes, rest: bytes
) -> tuple[bytes, bool]:
    """Return the packed JSON of stored verdicts, and whether it is sealed."""
    number = rest[0] if rest else 0
    if number in _WITHOUT_CHECKSUM:
        return rest, False
    # Junk that begins with a printable character is damaged, and nobody's version.
    if FORMAT < number < ord(" "):
        raise NewerRecord(turn_key, format=number, known=FORMAT)
    if number in _WITH_CHECKSUM:
        checksum, body = rest[1:][:_CHECKSUM_BYTES], rest[1 + _CHECKSUM_BYTES :]
        if checksum != _checksum(line, body):
            raise ValueError("damaged")
        return body, False
    seal, body = rest[1:][:SEAL_BYTES], rest[1 + SEAL_BYTES :]
    place = _place(turn_key, line)
    if number != FORMAT or not sealing.is_valid(Sealed.VERDICTS, place, body, seal):
        raise ValueError("not sealed")
    return body, True


def _place(turn_key: str, line: bytes) -> tuple[str, str]:
    return turn_key, line.decode("ascii")


def _checksum(line: bytes, body: bytes) -> bytes:
    found = zlib.crc32(body, zlib.crc32(line))
    return found.to_bytes(_CHECKSUM_BYTES, "big")


def _stored(verdict: Verdict, approvals: list[str]) -> Verdict:
    """Return a verdict that names its approval by its place, and holds no schema."""
    if not verdict.item_id:
        return verdict
    approval, index = approval_of(verdict.item_id)
    place = f"{approvals.index(approval)}.{index}"
    return verdict.with_(item_id=place, args_schema=None)


def _with_id(verdict: Verdict, approvals: list[str]) -> Verdict:
    if not verdict.item_id:
        return verdict
    place, index = approval_of(verdict.item_id)
    return verdict.with_(item_id=item_id(approvals[int(place)], index))


def recheck_verdict(verdict: Verdict, tier: Tier) -> Verdict:
    """Return the verdict for a call that has this tier now."""
    # Held calls keep their verdict: their claim asks the policy again.
    if not verdict.runs_unclaimed or tier.is_auto_approved:
        return verdict
    reason = FORBIDDEN if tier is Tier.DENY else NEEDS_A_PERSON
    return refused(verdict, reason)


def refused(verdict: Verdict, reason: str) -> Verdict:
    """Return the verdict that takes another one back."""
    return verdict.with_(kind=VerdictKind.DENY, tier=Tier.DENY, reason=reason)


async def totals_with(store: Store, head: str, one: CallUsage) -> dict[str, int]:
    """Return what the windows of a cleared call come to, its own share counted once.

    Args:
        store: where the windows are.
        head: a key of the same shard that holds nothing.
        one: what the call uses.
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
        return verdict  # its claim asks
    freeze = denials.freeze_of(load, agent, verdict.tool)
    return refused(verdict, denials.freeze_message(freeze)) if freeze else verdict

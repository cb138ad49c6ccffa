"""Use approvals as agents, executors and reviewers do, and record it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from keyturn.gateway.approvals.decisions import (
    Approve,
    Changed,
    Click,
    Decided,
    Decision,
    Edit,
    Expired,
    Forbidden,
    Outcome,
    Reject,
    Respond,
    Reviewer,
    Stale,
    Voted,
)
from keyturn.gateway.approvals.record import Approval, Item, approval_of
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Result
from keyturn.gateway.protocol.wire import (
    Busy,
    Claimed,
    ClaimReply,
    ClaimRequest,
    Done,
    HandedOver,
    HandOverEnd,
    InDoubt,
    ProposedCall,
    Refused,
    Turn,
    TurnRef,
)
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.store.store import Store
from tests.linearizability.approval_model import CLAIMED, REFUSED
from tests.linearizability.history import Recorder, Value
from tests.service.harness import person

AGENT = "shop"
EXPIRES_S = 1
"""How long approvals of the tools that end in ``_soon`` wait."""
PEOPLE = ("U0ANA", "U0BEN", "U0CAI")
POLICY = load_policy(
    f"""
version: 1
defaults: {{tier: approve, expires_in: 1h, channel: C0APPROVALS, needs: support}}
roles: {{support: {{users: [{", ".join(PEOPLE)}]}}}}
tiers: {{escalate: {{needs: support}}}}
protect:
  pending_per_agent: 10000
  requests_per_10m: 100000
  same_rejected_within: 0
  pause_after_rejections: 1000
tools:
  one: {{tier: approve}}
  two: {{tier: escalate}}
  one_soon: {{tier: approve, expires_in: {EXPIRES_S}s}}
  two_soon: {{tier: escalate, expires_in: {EXPIRES_S}s}}
""",
    "policy.yml",
)
_TOOLS = {"1": "one", "2": "two"}

Found = TypeVar("Found")


@dataclass(frozen=True)
class Seen:
    """An approval as a person saw it last: the target of a click."""

    approval: str
    version: int
    action_hash: str


class Client:
    """One person or program that uses approvals, one operation after the other.

    An operation without an acknowledgement stays open in the history. The key of an
    approval begins with the number of people that it needs; an ``s`` after it marks a
    short time, and an ``h`` a call that another program runs.
    """

    def __init__(self, store: Store, recorder: Recorder, name: str) -> None:
        self.name = name
        self._recorder = recorder
        self._agents = AgentService(store, lambda: POLICY)
        self._reviews = ReviewService(store, lambda: POLICY)
        self._starts = 0

    async def submit(self, key: str) -> str | None:
        """Ask for the call of an approval, which others may ask for as well."""
        action = int(key.partition("-")[2])
        tool = _TOOLS[key[0]] + ("_soon" if key[1] == "s" else "")
        call = ProposedCall(tool=tool, args={"n": action}, tool_call_id="c")
        handed_to = "crm" if key[1] == "h" else ""
        turn = Turn(ref=_ref(key), calls=(call,), handed_to=handed_to)

        async def ask() -> str:
            (verdict,) = await self._agents.submit(turn)
            return verdict.item_id

        return await self._recorded(ask, lambda item: item, key, "submit", action)

    async def decide(
        self, key: str, seen: Seen, word: str, action: int = 0, *, by: str = PEOPLE[0]
    ) -> None:
        """Decide about the last seen version."""
        click = Click(
            approval=seen.approval,
            index=0,
            version=seen.version,
            action_hash=seen.action_hash,
        )

        async def decide() -> Outcome:
            return await self._reviews.decide(
                click, _decision(word, action), person(by), voters=_still_there
            )

        given = (by, word, seen.version, action)
        await self._recorded(decide, _outcome, key, "decide", *given)

    async def read(self, key: str, item: str) -> Seen | None:
        """Read an approval; return it as it is shown."""

        async def read() -> Approval:
            loaded = await self._reviews.read(approval_of(item)[0])
            assert loaded is not None, item
            return loaded.approval

        found = await self._recorded(read, shown, key, "read")
        if found is None:
            return None
        return Seen(found.id, found.version, found.items[0].action_hash)

    async def look(self, item: str) -> None:
        """Draw the card, so that a click in this process is decided as it shows it."""
        try:
            await self._reviews.read_as_of_now(approval_of(item)[0])
        except StoreUnavailable:
            return

    async def withdraw(self, key: str, item: str) -> None:
        """End the wait, as an agent does that dropped the call."""
        work = self._agents.withdraw_items(frozenset({item}))
        await self._recorded(lambda: work, lambda _: None, key, "withdraw")

    async def claim(self, key: str, item: str) -> tuple[str, int] | None:
        """Try to start the call; return its decider and the fence."""
        self._starts += 1
        owner = f"{self.name}.{self._starts}"
        request = ClaimRequest(
            item_id=item,
            ref=_ref(key),
            tool=_TOOLS[key[0]] + ("_soon" if key[1] == "s" else ""),
            tool_call_id="c",
            owner="0" * 32,
        ).with_(owner=owner)
        reply = await self._recorded(
            lambda: self._agents.claim(request), claim_reply, key, "claim", owner
        )
        return (owner, reply.fence) if isinstance(reply, Claimed) else None

    async def finish(self, key: str, item: str, owner: str, fence: int) -> None:
        """Report the result of the call."""
        result = Result(ok=True, summary=owner)
        await self._recorded(
            lambda: self._agents.finish(item, fence, result),
            lambda was_kept: was_kept,
            *(key, "finish", fence, owner),
        )

    async def hand_over(
        self, key: str, item: str, fence: int, *, is_taken: bool
    ) -> None:
        """Report whether the other program took the decision."""
        problem = "" if is_taken else "deleted"
        end = HandOverEnd(item_id=item, fence=fence, taken=is_taken, problem=problem)
        await self._recorded(
            lambda: self._agents.hand_over(end),
            lambda was_kept: was_kept,
            *(key, "hand_over", fence, is_taken),
        )

    async def release(self, key: str, item: str, fence: int) -> None:
        """Give the claim back unused."""
        work = self._agents.release(item, fence)
        await self._recorded(lambda: work, lambda _: None, key, "release", fence)

    async def _recorded(
        self,
        work: Callable[[], Awaitable[Found]],
        output: Callable[[Found], Value],
        key: str,
        name: str,
        *given: Value,
    ) -> Found | None:
        number = self._recorder.called(key, name, *given)
        try:
            found = await work()
        except StoreUnavailable:
            return None
        self._recorder.returned(number, output(found))
        return found


def shown(approval: Approval) -> tuple[Value, ...]:
    """Return what a reader sees of an approval, as the model has it."""
    item = approval.items[0]
    by = item.decision
    return (
        item.state.value,
        approval.version,
        _number_in(item),
        tuple(vote.by.user for vote in item.votes),
        (by.by.user, by.verb.value) if by else (),
        item.fence,
        item.result.summary if item.result else "",
    )


def claim_reply(reply: ClaimReply) -> Value:
    """Return the answer to a claim as the model has it."""
    match reply:
        case Claimed():
            number = reply.action.rpartition('"n":')[2]
            return CLAIMED, reply.fence, int(number[: number.index("}")])
        case Busy():
            return "busy"
        case Done():
            return "done", reply.result.summary
        case InDoubt():
            return "in_doubt"
        case HandedOver():
            return "handed_over", reply.taken
        case Refused():
            return REFUSED, reply.state
        case _:
            raise AssertionError(f"A claim of this call cannot end with {reply!r}.")


def _outcome(outcome: Outcome) -> Value:
    match outcome:
        case Decided():
            return "decided"
        case Voted():
            return "voted"
        case Stale():
            by = outcome.item.decision
            who = (by.by.user, by.verb.value) if by else ()
            return REFUSED, outcome.item.state.value, who
        case Changed():
            return REFUSED, "changed", outcome.version
        case Expired():
            return REFUSED, "expired", ()
        case Forbidden() if "already approved" in outcome.reason:
            return REFUSED, "voted"
        case _:
            raise AssertionError(f"Nobody here is told {outcome!r}.")


def _decision(word: str, action: int) -> Decision:
    match word:
        case "approve":
            return Approve()
        case "edit":
            return Edit(args={"n": action})
        case "reject":
            return Reject(reason="no")
        case _:
            return Respond(message="later")


async def _still_there(item: Item) -> list[Reviewer]:
    return [person(vote.by.user) for vote in item.votes]


def _number_in(item: Item) -> int:
    number = item.args["n"]
    assert isinstance(number, int)
    return number


def _ref(key: str) -> TurnRef:
    return TurnRef(agent=AGENT, thread=key, message_id="m")

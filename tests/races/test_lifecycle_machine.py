"""Any order of submits, decisions, claims and clocks, against a plain model.

Hypothesis drives the real services on a real Valkey and compares each answer with a
model of one page: the results by the lifecycle table and the quorum.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from keyturn.gateway.approvals.decisions import (
    Approve,
    Click,
    Decision,
    Edit,
    Reconcile,
    Reject,
    Respond,
    Reviewer,
)
from keyturn.gateway.policy.evaluate import effect_of
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.replay import PrecedentFold
from keyturn.gateway.protocol.records import Finding, ItemState, Result
from keyturn.gateway.protocol.run_context import HEADER, one_write
from keyturn.gateway.protocol.wire import Claimed, ClaimRequest
from keyturn.gateway.store.connection.connection import fields
from keyturn.gateway.store.limits.precedents import read
from keyturn.gateway.store.store import Store
from tests.levels import examples
from tests.service.harness import (
    ANA,
    BEN,
    CHLOE,
    EVE,
    POLICY,
    ServiceHarness,
    claim_of,
    person,
    still_members,
)
from tests.store_secrets import SECRETS
from tests.streams import audit_entries
from tests.transports import Transport

DAN_CLICKS = person("U0DAN")
PEOPLE = st.sampled_from([ANA, BEN, CHLOE, EVE, DAN_CLICKS])
SAME_BY = load_policy(
    POLICY.replace("{tier: approve}", "{tier: approve, same_by: args.amount}").replace(
        "{tier: escalate}", "{tier: escalate, same_by: args.amount}"
    ),
    "policy.yml",
)
DONE = {
    ItemState.AUTHORIZED,
    ItemState.EXECUTING,
    ItemState.EXECUTED,
    ItemState.IN_DOUBT,
}
ELIGIBLE = {
    "process_refund": {"U0ANA", "U0BEN"},
    "wire_money": {"U0ANA", "U0BEN", "U0CHLOE"},
}


@dataclass
class Expected:
    """The model of one call.

    ``seen`` is the step up to which its card showed the same call elsewhere, and
    ``done_since`` the step since which it counts as done itself; 0 for never.
    """

    tool: str
    item_id: str
    claim: ClaimRequest
    click: Click
    amount: float
    state: ItemState = ItemState.PENDING
    voters: set[str] = field(default_factory=set[str])
    fence: int = 0
    executions: int = 0
    found: dict[str, Finding] = field(default_factory=dict[str, Finding])
    reconciled_fence: int = 0
    is_reported: bool = False
    seen: int = 0
    done_since: int = 0

    def is_found(self, user: str, finding: Finding) -> bool:
        """Record a person's finding; return whether enough people found the same."""
        self.found[user] = finding
        same = {one for one, said in self.found.items() if said is finding}
        return not self.needs_two or (len(same) > 1 and "U0CHLOE" in same)

    @property
    def needs_two(self) -> bool:
        """Return whether two people, one of them senior, have to agree."""
        return self.tool == "wire_money"

    @property
    def has_quorum(self) -> bool:
        """Return whether all required people have voted."""
        if not self.needs_two:
            return bool(self.voters)
        return len(self.voters) > 1 and "U0CHLOE" in self.voters


class Lifecycle(RuleBasedStateMachine):
    """Drive one store through anything that can happen to a call."""

    calls = Bundle("calls")
    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.store = Store(self.url, secrets=SECRETS, lease_ms=60_000)
        self.harness = ServiceHarness(self.store, SAME_BY)
        self.known: list[Expected] = []
        self.steps = 0
        self.loop.run_until_complete(self.store.conn.command("FLUSHALL"))

    def teardown(self) -> None:
        self.loop.run_until_complete(self._ensure_index_is_a_fold())
        self.loop.run_until_complete(self.harness.closing.aclose())
        self.loop.run_until_complete(self.store.close())
        self.loop.close()

    @rule(target=calls, tool=st.sampled_from(sorted(ELIGIBLE)))
    def submit(self, tool: str) -> Expected:
        return self.loop.run_until_complete(self._submit(tool))

    async def _submit(self, tool: str) -> Expected:
        thread = f"t{len(self.known)}"
        ref, verdicts = await self.harness.submit((tool, {"amount": 1}), thread=thread)
        expected = Expected(
            tool=tool,
            item_id=verdicts[0].item_id,
            claim=claim_of(ref, verdicts[0]),
            click=await self.harness.click(verdicts[0]),
            amount=1,
            seen=self._step(),
        )
        self.known.append(expected)
        return expected

    @rule(call=calls, by=PEOPLE)
    def approve(self, call: Expected, by: Reviewer) -> None:
        kind = self._say(call, Approve(), by)
        if self._may(call, by) and by.user not in call.voters:
            if self._is_repeated(call, call.amount):
                assert kind == "repeated"
                call.voters, call.seen = set(), self._step()
                return
            call.voters.add(by.user)
            self._counted(call, kind)
        else:
            assert kind in {"forbidden", "stale", "expired"}

    @rule(call=calls, by=PEOPLE, amount=st.integers(2, 9))
    def edit(self, call: Expected, by: Reviewer, amount: int) -> None:
        kind = self._say(call, Edit(args={"amount": amount}), by)
        if not self._may(call, by):
            assert kind in {"forbidden", "stale", "expired"}
        elif amount == call.amount and by.user in call.voters:
            assert kind == "forbidden"
        elif self._is_repeated(call, amount):
            assert kind == "repeated"
            call.voters, call.seen, call.amount = set(), self._step(), amount
        else:
            call.voters = {by.user} | (
                call.voters if amount == call.amount else set[str]()
            )
            call.amount = amount
            self._counted(call, kind)

    @rule(call=calls, by=PEOPLE, responds=st.booleans())
    def refuse(self, call: Expected, by: Reviewer, *, responds: bool) -> None:
        decision = Respond(message="ask") if responds else Reject()
        withdraws = (
            by is DAN_CLICKS and not responds and call.state is ItemState.PENDING
        )
        kind = self._say(call, decision, by)
        if withdraws:
            # Dan asked for the call, so he may take it back.
            assert kind == "decided"
            call.state = ItemState.WITHDRAWN
        elif self._may(call, by):
            assert kind == "decided"
            call.state = ItemState.ANSWERED if responds else ItemState.REJECTED
        else:
            assert kind in {"forbidden", "stale", "expired"}

    @rule(call=calls, owner=st.sampled_from(["w1", "w2"]))
    def claim(self, call: Expected, owner: str) -> None:
        request = call.claim.with_(owner=owner)
        # Another key would be another attempt of this owner.
        with one_write({HEADER: f"{owner}-{call.item_id}"}):
            reply = self.loop.run_until_complete(self.harness.agents.claim(request))
        if call.state is ItemState.AUTHORIZED:
            assert isinstance(reply, Claimed)
            call.state, call.fence = ItemState.EXECUTING, reply.fence
            call.found.clear()
            call.claim = request
        elif call.state is ItemState.EXECUTING and owner == call.claim.owner:
            assert isinstance(reply, Claimed)
            assert reply.fence == call.fence
        else:
            assert not isinstance(reply, Claimed)

    @rule(call=calls, ok=st.booleans(), is_zombie=st.booleans())
    def finish(self, call: Expected, *, ok: bool, is_zombie: bool) -> None:
        fence = call.fence - 1 if is_zombie else call.fence
        result = Result(ok=ok)
        done = self.loop.run_until_complete(
            self.harness.agents.finish(call.item_id, fence, result)
        )
        after = ItemState.EXECUTED if ok else ItemState.FAILED
        open_ = call.state in {ItemState.EXECUTING, ItemState.IN_DOUBT}
        owned = bool(call.fence) and not is_zombie
        if owned and call.reconciled_fence == call.fence:
            # People reconciled this attempt: its report is kept next to their finding.
            assert not done
            is_left = call.state is ItemState.FAILED and ok
            if not call.is_reported and (is_left or call.state is ItemState.AUTHORIZED):
                call.state = after
            call.is_reported = True
        elif owned and open_:
            call.state = after
            call.executions += 1
            assert done
        else:
            assert done == (owned and call.state is after)

    @rule(call=calls)
    def deadline_passes(self, call: Expected) -> None:
        approval_id = call.item_id.partition(".")[0]
        self.loop.run_until_complete(self.harness.overdue(approval_id))
        self.loop.run_until_complete(self.harness.sweeper.sweep())
        if call.state is ItemState.PENDING:
            call.state = ItemState.EXPIRED

    @rule(call=calls)
    def owner_dies(self, call: Expected) -> None:
        if call.state is ItemState.EXECUTING:
            self.loop.run_until_complete(self.harness.owner_dies(call.item_id))
            self.loop.run_until_complete(self.harness.sweeper.sweep())
            call.state = ItemState.IN_DOUBT

    @rule(call=calls, finding=st.sampled_from(Finding), by=PEOPLE)
    def reconcile(self, call: Expected, finding: Finding, by: Reviewer) -> None:
        kind = self._say(call, Reconcile(finding=finding), by)
        if call.state is not ItemState.IN_DOUBT:
            assert kind == "stale"
        elif by.user not in ELIGIBLE[call.tool]:
            assert kind == "forbidden"
        elif call.found.get(by.user) is finding:
            assert kind == "forbidden", "said before, and counted"
        elif not call.is_found(by.user, finding):
            assert kind == "voted"
        else:
            assert kind == "decided"
            call.reconciled_fence = call.fence
            call.state = {
                Finding.EXECUTED: ItemState.EXECUTED,
                Finding.RERUN: ItemState.AUTHORIZED,
                Finding.SKIP: ItemState.FAILED,
            }[finding]

    @rule(call=calls)
    def thread_moves_on(self, call: Expected) -> None:
        self.loop.run_until_complete(self.harness.agents.supersede(call.claim.ref))
        if call.state is ItemState.PENDING:
            call.state = ItemState.SUPERSEDED
        elif call.state is ItemState.AUTHORIZED:
            call.state = ItemState.LAPSED

    @invariant()
    def states_are_as_the_model_says(self) -> None:
        for call in self.known[-3:]:
            item = self.loop.run_until_complete(self.harness.item(call.item_id))
            assert item.state is call.state
            assert item.args == {"amount": call.amount}
            if item.state in {ItemState.EXECUTING, ItemState.EXECUTED}:
                assert call.has_quorum

    @invariant()
    def calls_are_done_since_a_step(self) -> None:
        for call in self.known:
            if call.state not in DONE:
                call.done_since = 0
            elif not call.done_since:
                call.done_since = self._step()

    async def _ensure_index_is_a_fold(self) -> None:
        """Compare the precedents of the store with those of its log."""
        keys = self.store.keys_of_tenant("default")
        fold = PrecedentFold()
        effects: set[str] = set()
        for call in self.known:
            item = await self.harness.item(call.item_id)
            effect = effect_of(SAME_BY, agent="support", tool=item.tool, args=item.args)
            fold.opened(item.id, effect)
            effects.add(effect)
        for event in await audit_entries(self.store.conn, keys):
            fold.record(event.name, event.item, at_ms=event.at_ms, reason=event.reason)
        for effect in effects:
            key = keys.precedents(effect)
            conn = self.store.conn
            kept = read(conn, key, fields(await conn.command("HGETALL", key)))
            told = {call: one.state for call, one in fold.precedents(effect).items()}
            # The log contains decisions; a pending call is a precedent without one.
            known = {one.call: one.state for one in kept.precedents}
            waiting = {call for call in known if known[call] is ItemState.PENDING}
            assert {call: known[call] for call in known.keys() - waiting} == told

    def _step(self) -> int:
        self.steps += 1
        return self.steps

    def _is_repeated(self, call: Expected, amount: float) -> bool:
        """Return whether the same was approved elsewhere, unseen on its card."""
        seen = call.seen if amount == call.amount else 0
        return any(
            other.done_since > seen
            for other in self.known
            if (other.tool, other.amount) == (call.tool, amount) and other is not call
        )

    def _may(self, call: Expected, by: Reviewer) -> bool:
        return call.state is ItemState.PENDING and by.user in ELIGIBLE[call.tool]

    def _counted(self, call: Expected, kind: str) -> None:
        if call.has_quorum:
            call.state = ItemState.AUTHORIZED
        assert kind == ("decided" if call.has_quorum else "voted")

    def _say(self, call: Expected, decision: Decision, by: Reviewer) -> str:
        async def say() -> str:
            item = await self.harness.item(call.item_id)
            approval = await self.harness.approval(call.item_id)
            click = call.click.with_(
                version=approval.version, action_hash=item.action_hash
            )
            outcome = await self.harness.reviews.decide(
                click, decision, by, voters=still_members
            )
            return outcome.kind

        return self.loop.run_until_complete(say())


def test_no_order_of_events_leaves_the_model(
    valkey_url: str, transport: Transport
) -> None:
    Lifecycle.url = valkey_url
    run_state_machine_as_test(  # pyright: ignore[reportUnknownMemberType] - untyped by hypothesis
        Lifecycle,
        settings=settings(
            max_examples=transport.share(examples(60)),
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )

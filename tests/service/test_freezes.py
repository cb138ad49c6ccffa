"""A frozen call does not start: neither a new one, nor an authorized or cached one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.gateway.approvals.decisions import (
    AccountKind,
    Approve,
    Decided,
    Edit,
    Forbidden,
    Reviewer,
)
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.embed import running
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState, Result
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import Claimed, Done, InDoubt, Refused, VerdictKind
from keyturn.gateway.resume.langgraph_local import Runners
from keyturn.gateway.service.people.freezing import (
    FreezeService,
    ReviewerFreezes,
    unknown_name,
)
from keyturn.gateway.service.report.audit_reading import security_events
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.gateway.store.store import Store
from tests.service.audit_harness import AuditHarness
from tests.service.harness import ANA, BEN, CHLOE, EVE, RULES, ServiceHarness, claim_of
from tests.store_secrets import SECRETS
from tests.streams import audit_entries

TENANT = FreezeScope(kind=ScopeKind.TENANT)
AGENT = FreezeScope(kind=ScopeKind.AGENT, name="support")
TOOL = FreezeScope(kind=ScopeKind.TOOL, name="process_refund")
SCOPES = [TENANT, AGENT, TOOL]


@pytest.mark.parametrize("scope", SCOPES, ids=str)
async def test_no_frozen_call_runs(harness: ServiceHarness, scope: FreezeScope) -> None:
    claims = [await harness.approved(thread=f"t{n}") for n in range(8)]

    # Nothing waits in between: a new freeze applies to all of them.
    await harness.reviews.freezes.freeze(scope, "T0/U0ANA", "wrong refunds")
    replies = await asyncio.gather(*map(harness.agents.claim, claims))

    for reply in replies:
        assert isinstance(reply, Refused)
        assert "frozen by T0/U0ANA: wrong refunds" in reply.reason
        assert reply.state is ItemState.AUTHORIZED


@pytest.mark.parametrize("scope", SCOPES, ids=str)
async def test_what_is_frozen_is_denied_before_anybody_is_asked(
    harness: ServiceHarness, scope: FreezeScope
) -> None:
    await harness.reviews.freezes.freeze(scope, "T0/U0ANA", "wrong refunds")

    calls: list[tuple[str, JsonObject]] = [("process_refund", {"amount": 1})]
    if scope != TOOL:
        calls.append(("look_up_order", {}))
    _, verdicts = await harness.submit(*calls)

    for verdict in verdicts:
        assert verdict.kind is VerdictKind.DENY
        assert "wrong refunds" in verdict.reason
    assert not await harness.opened()


async def test_a_freeze_leaves_other_tools_alone(harness: ServiceHarness) -> None:
    await harness.reviews.freezes.freeze(TOOL, "a", "b")
    await harness.reviews.freezes.freeze(AGENT.with_(name="other"), "a", "b")

    _, verdicts = await harness.submit(("send_email", {}), ("look_up_order", {}))

    assert [one.kind for one in verdicts] == [VerdictKind.HOLD, VerdictKind.RUN]


async def test_a_freeze_takes_back_a_verdict_to_run(harness: ServiceHarness) -> None:
    _, before = await harness.submit(("look_up_order", {}), message_id="m1")
    await harness.reviews.freezes.freeze(TENANT, "T0/U0ANA", "stop")

    _, after = await harness.submit(("look_up_order", {}), message_id="m1")

    assert before[0].kind is VerdictKind.RUN
    assert after[0].kind is VerdictKind.DENY


async def test_the_script_that_opens_sees_a_freeze_that_came_while_evaluating(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = harness.store.agent_load.load
    readings: list[object] = []

    async def freeze_after_reading(*args: object, **kwargs: object) -> object:
        load = await read(*args, **kwargs)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - handed on as it came
        readings.append(load)
        await harness.reviews.freezes.freeze(TENANT, "a", "just now")
        return load

    monkeypatch.setattr(harness.store.agent_load, "load", freeze_after_reading)
    _, verdicts = await harness.submit(("look_up_order", {}), ("process_refund", {}))

    assert [one.kind for one in verdicts] == [VerdictKind.DENY, VerdictKind.DENY]
    assert len(readings) == 2


@pytest.mark.parametrize("scope", SCOPES, ids=str)
@pytest.mark.parametrize("decision", [Approve(), Edit(args={"amount": 2})])
async def test_nobody_approves_what_could_not_start(
    harness: ServiceHarness, scope: FreezeScope, decision: Approve | Edit
) -> None:
    click, _ = await harness.refund()
    await harness.reviews.freezes.freeze(scope, "T0/U0ANA", "wrong refunds")

    early = await harness.reviews.decide(click, decision, BEN)
    loaded = await harness.reviews.read(click.approval)
    await harness.reviews.freezes.unfreeze(scope, "T0/U0ANA")
    later = await harness.reviews.decide(click, decision, BEN)

    assert isinstance(early, Forbidden)
    assert "is frozen" in early.reason
    assert loaded is not None
    assert (loaded.approval.rev, loaded.approval.items[0].is_pending) == (1, True)
    assert isinstance(later, Decided)


async def test_a_frozen_rerun_is_in_doubt(harness: ServiceHarness) -> None:
    ref, verdicts = await harness.submit(("send_email", {"to": "a@example.org"}))
    claim = claim_of(ref, verdicts[0])
    await harness.decide(verdicts[0], Approve())
    assert isinstance(await harness.agents.claim(claim), Claimed)
    await harness.owner_dies(claim.item_id)
    await harness.reviews.freezes.freeze(TENANT, "T0/U0ANA", "wrong mails")

    reply = await harness.agents.claim(claim.with_(owner="w2"))

    assert isinstance(reply, InDoubt), "a refusal would read as if nothing had run"
    assert (await harness.item(claim.item_id)).state is ItemState.IN_DOUBT


async def test_a_frozen_call_still_reports_its_end(harness: ServiceHarness) -> None:
    claim = await harness.approved()
    granted = await harness.granted(claim)
    await harness.reviews.freezes.freeze(TENANT, "a", "b")

    is_kept = await harness.agents.finish(claim.item_id, granted.fence, Result(ok=True))

    assert is_kept
    assert isinstance(await harness.agents.claim(claim), Done)


async def test_freezes_are_in_the_audit_log_once(harness: ServiceHarness) -> None:
    freezes = harness.reviews.freezes

    done = [
        await freezes.freeze(TOOL, "T0/U0ANA", "wrong"),
        await freezes.freeze(TOOL, "T0/U0BEN", "again"),
        await freezes.unfreeze(TOOL, "T0/U0BEN", "mended"),
        await freezes.unfreeze(TOOL, "T0/U0ANA", "again"),
    ]

    audit = await harness.audited()
    assert done == [True, False, True, False]
    assert [(one.name, one.actor, one.reason, one.tool) for one in audit] == [
        (EventName.FREEZE_SET, "T0/U0ANA", "wrong", "process_refund"),
        (EventName.FREEZE_LIFTED, "T0/U0BEN", "mended", "process_refund"),
    ]


# A process that starts reads the freezes from the audit log.

OTHER = FreezeScope(kind=ScopeKind.TOOL, name="send_email")
EVERYTHING = FreezeScope(kind=ScopeKind.TENANT)
BY_ANA = "T0/U0ANA"


@dataclass
class House:
    """A store whose processes have one folder of the audit log."""

    first: Store
    folder: Path

    def started(self) -> Store:
        """Return the store as a process sees it that has just started."""
        store = Store(self.first.conn.url, secrets=SECRETS)
        store.keyring, store.tree_folder = self.first.keyring, self.first.tree_folder
        return store

    async def copied(self) -> dict[str, bytes]:
        """Return all that is stored of freezes."""
        command = self.first.conn.command
        names = cast("list[bytes]", await command("KEYS", "*frozen*"))
        return {
            key.decode(): cast("bytes", await command("DUMP", key)) for key in names
        }

    async def put_back(self, copy: dict[str, bytes]) -> None:
        """Write a copy over all that is stored of freezes."""
        for key in await self.copied():
            await self.first.conn.command("DEL", key)
        for key, stored in copy.items():
            await self.first.conn.command("RESTORE", key, 0, stored)


@pytest.fixture
async def house(store: Store, tmp_path: Path) -> AsyncGenerator[House]:
    first = Store(store.conn.url, secrets=SECRETS)
    AuditHarness(first, tmp_path)
    yield House(first, tmp_path)
    await first.close()


def freezes_of(store: Store) -> FreezeService:
    return FreezeService(store)


@pytest.mark.parametrize("is_read", [True, False], ids=["log read", "log not read yet"])
@pytest.mark.parametrize("how", ["gone", "older", "from before a lift"])
async def test_a_list_that_is_older_than_the_log_freezes_everything(
    house: House, how: str, *, is_read: bool
) -> None:
    """Until a person confirms: freezes what must stay frozen, and ends this freeze."""
    freezes = freezes_of(house.first)
    await freezes.freeze(OTHER, BY_ANA, "why")
    older = {} if how == "gone" else await house.copied()
    await freezes.freeze(TOOL, BY_ANA, "an incident")
    if how == "from before a lift":
        older = await house.copied()
        await freezes.unfreeze(TOOL, BY_ANA)
    if is_read:
        async with running(house.first, lambda: RULES, Runners({}, InMemorySaver())):
            pass
    await house.put_back(older)
    fresh = house.started()

    async with running(fresh, lambda: RULES, Runners({}, InMemorySaver())):
        _, (verdict,) = await ServiceHarness(fresh).submit(("look_up_order", {}))
        frozen = await freezes_of(fresh).frozen()
        another = house.started()
        seen_elsewhere = await freezes_of(another).frozen()
        found = [one async for one in security_events(fresh, "default")]

    assert verdict.kind is VerdictKind.DENY
    assert EVERYTHING in [one.scope for one in frozen]
    assert [one.scope for one in seen_elsewhere] == [one.scope for one in frozen]
    assert any("unfreeze everything" in one.reason for one in seen_elsewhere)
    assert ("replayed", "freezes") in [(e.reason, e.data.get("about")) for e in found]

    assert await freezes_of(another).unfreeze(EVERYTHING, BY_ANA)
    again = house.started()
    async with running(again, lambda: RULES, Runners({}, InMemorySaver())):
        _, (verdict,) = await ServiceHarness(again).submit(
            ("look_up_order", {}), thread="t2"
        )
    assert verdict.kind is VerdictKind.RUN
    for one in (fresh, another, again):
        await one.close()


async def test_a_list_that_the_log_confirms_freezes_nothing_else(house: House) -> None:
    freezes = freezes_of(house.first)
    await freezes.freeze(TOOL, BY_ANA, "an incident")
    await freezes.freeze(OTHER, BY_ANA, "why")
    await freezes.unfreeze(OTHER, BY_ANA)
    fresh = house.started()

    async with running(fresh, lambda: RULES, Runners({}, InMemorySaver())):
        frozen = await freezes_of(fresh).frozen()
    await fresh.close()

    assert [one.scope for one in frozen] == [TOOL]


# People who may review a thing may freeze it; no others, and none by default.


POLICY = """
version: 1
defaults: {needs: support}
roles:
  support: {users: [U0ANA]}
  senior: {users: [U0CHLOE]}
tiers:
  escalate: {needs: [senior, S0NIGHT]}
tools:
  wire_money: {tier: escalate, needs: senior}
  send_email: {tier: approve, needs: [U0BEN]}
  post: {tier: notify, needs: [U0EVE]}
agents:
  billing: {needs: senior, tools: {refund: {tier: approve}}}
"""
EVERYBODY = (ANA, BEN, EVE, CHLOE)


def agent(name: str) -> FreezeScope:
    return FreezeScope(kind=ScopeKind.AGENT, name=name)


def tool(name: str) -> FreezeScope:
    return FreezeScope(kind=ScopeKind.TOOL, name=name)


def stops(store: Store, policy: str = POLICY) -> ReviewerFreezes:
    loaded = load_policy(policy, "policy.yml")
    return ReviewerFreezes(store, lambda: loaded)


@pytest.mark.parametrize(
    ("scope", "people"),
    [
        (tool("wire_money"), [CHLOE]),
        (tool("send_email"), [BEN, CHLOE]),
        (tool("post"), [EVE, CHLOE]),
        (tool("refund"), [ANA, CHLOE]),
        (tool("unheard_of"), [ANA, CHLOE]),
        (agent("support"), [ANA, BEN, EVE, CHLOE]),
        (agent("billing"), [BEN, EVE, CHLOE]),
        (EVERYTHING, [ANA, BEN, EVE, CHLOE]),
    ],
    ids=str,
)
def test_somebody_who_may_review_some_of_it_may_stop_it(
    store: Store, scope: FreezeScope, people: list[Reviewer]
) -> None:
    service = stops(store)

    found = [one for one in EVERYBODY if not service.forbidden(scope, one)]

    assert found == people


async def test_somebody_else_neither_stops_nor_starts_anything(store: Store) -> None:
    service = stops(store)
    await service.freeze_by(tool("send_email"), BEN, "")

    started = await service.unfreeze_by(tool("send_email"), ANA, "")
    stopped = await service.freeze_by(tool("wire_money"), BEN, "")

    assert isinstance(started, Forbidden)
    assert isinstance(stopped, Forbidden)
    assert [one.scope for one in await FreezeService(store).frozen()] == [
        tool("send_email")
    ]


async def test_who_lets_it_run_again_can_be_named_by_itself(store: Store) -> None:
    service = stops(store, POLICY + "protect: {unfreeze: senior}\n")
    mail, billing = tool("send_email"), agent("billing")
    for scope in (mail, billing, EVERYTHING):
        assert await service.freeze_by(scope, BEN, "") is True

    tried = [await service.unfreeze_by(scope, BEN, "") for scope in (mail, EVERYTHING)]
    lifted = await service.unfreeze_by(EVERYTHING, CHLOE, "")

    for one in tried:
        assert isinstance(one, Forbidden)
        assert "Only senior" in one.reason
    assert lifted is True
    assert [one.scope for one in await FreezeService(store).frozen()] == [mail, billing]


async def test_only_the_gateways_host_freezes_without_roles(store: Store) -> None:
    service = stops(store, POLICY + "protect: {unfreeze: []}\n")
    await service.freeze_by(EVERYTHING, ANA, "")
    lifted = await service.unfreeze_by(EVERYTHING, CHLOE, "")
    assert isinstance(lifted, Forbidden)
    assert "`keyturn unfreeze`" in lifted.reason
    frozen = await stops(store, "version: 1").freeze_by(EVERYTHING, ANA, "")
    assert isinstance(frozen, Forbidden)
    assert "`keyturn freeze`" in frozen.reason


@pytest.mark.parametrize(
    "account", [one for one in AccountKind if one is not AccountKind.MEMBER]
)
async def test_only_members_stop_things(store: Store, account: AccountKind) -> None:
    service = stops(store)

    result = await service.freeze_by(EVERYTHING, ANA.with_(account=account), "")

    assert isinstance(result, Forbidden)
    assert await FreezeService(store).frozen() == ()


def test_policy_and_settings_know_tools_and_agents(store: Store) -> None:
    policy = stops(store).policy_now

    def is_known(scope: FreezeScope) -> bool:
        return not unknown_name(policy, ("support",), scope)

    assert [*map(is_known, map(tool, ("post", "refund", "x")))] == [True, True, False]
    names = ("billing", "support", "x")
    assert [*map(is_known, map(agent, names))] == [True, True, False]


async def test_the_log_names_whom_a_delegate_stands_in_for(store: Store) -> None:
    service = stops(store)
    mail = tool("send_email")
    gone = BEN.with_(account=AccountKind.DEACTIVATED)
    for_ben, for_gone = (EVE.with_(stands_in_for=(one,)) for one in (BEN, gone))
    guest = for_ben.with_(account=AccountKind.GUEST)

    refused = [await service.freeze_by(mail, one, "") for one in (for_gone, guest)]
    await service.freeze_by(mail, for_ben, "odd")
    kept = [await service.unfreeze_by(mail, one, "") for one in (for_gone, guest)]
    await service.unfreeze_by(mail, BEN.with_(stands_in_for=(CHLOE,)), "fine")

    assert all(isinstance(one, Forbidden) for one in (*refused, *kept))
    events = await audit_entries(store.conn, store.keys_of_tenant("default"))
    assert [(event.actor, event.data.get("on_behalf_of")) for event in events] == [
        ("T0/U0EVE", "T0/U0BEN"),
        ("T0/U0BEN", None),
    ]

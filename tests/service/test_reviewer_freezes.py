"""People who may review a thing may freeze it; no others, and none by default."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.decisions import AccountKind, Forbidden, Reviewer
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.service.people.freezing import (
    FreezeService,
    ReviewerFreezes,
    unknown_name,
)
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.gateway.store.store import Store
from tests.service.harness import ANA, BEN, CHLOE, EVE
from tests.streams import audit_entries

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
EVERYTHING = FreezeScope(kind=ScopeKind.TENANT)


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

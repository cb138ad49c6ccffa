"""Precomputed or not, the store comes to the same, whatever is drawn."""

from __future__ import annotations

import pytest

from tests.service.drawn_clicks import PLAIN, drawn
from tests.service.precomputed_world import played
from twokey.gateway.store.store import Store

GROUPS, OF_EACH = 5, 20
"""How many worlds are played. Some 1,000 others were when this was written."""

ASKED_AGAIN = """
version: 1
defaults: {tier: approve, expires_in: 1h, channel: C0APPROVALS, reviewers: support}
roles: {support: {users: [U0ANA, U0BEN, U0CHLOE]}}
requirements: {one: {of: [support]}}
tiers: {escalate: {needs: one, ask_again_within: 30s}}
tools: {process_refund: {tier: escalate, same_by: args.order}}
"""


@pytest.mark.parametrize("group", range(GROUPS))
async def test_the_store_comes_to_the_same(
    store: Store, valkey_url: str, group: int
) -> None:
    approved = 0
    for number in range(group * OF_EACH, (group + 1) * OF_EACH):
        world = await played(store, valkey_url, drawn(number))
        approved += world.approved

    # It would hold of a store that refuses all.
    assert approved >= 2


async def test_the_plain_case_is_approved_and_started_so(
    store: Store, valkey_url: str
) -> None:
    world = await played(store, valkey_url, PLAIN)

    assert world.approved
    assert world.started


async def test_a_clock_that_went_back_spares_nobody_the_second_look(
    store: Store, valkey_url: str
) -> None:
    """Before the moment in which a call was shown nobody is asked; after it, all."""
    what = PLAIN.with_(
        opened_by=ASKED_AGAIN,
        decided_by=ASKED_AGAIN,
        before=(
            "it waited",
            "it was shown with a call like it",
            "the clock of the store went back",
        ),
        passed_ms=10_000,
    )

    world = await played(store, valkey_url, what)

    assert not world.approved

"""A writer to the store lifts no freeze, and forges no text of one."""

from __future__ import annotations

from typing import cast

import pytest

from keyturn.gateway.protocol.wire import (
    Claimed,
    VerdictKind,
)
from keyturn.gateway.store.limits.freezes import (
    Freeze,
    FreezeList,
    FreezeScope,
    ScopeKind,
    sealed_key,
)
from keyturn.gateway.store.sealing.sealing import Sealed
from tests.security.forging import (
    LOOK_UP,
    OTHER,
    REFUND,
    REFUNDS,
    Attack,
    authorized,
    freeze,
)

# Freezes


async def _list_gone(attack: Attack) -> None:
    await attack.do("DEL", sealed_key(attack.keys))


async def _list_unsealed(attack: Attack) -> None:
    body = FreezeList(epoch=2**50).model_dump_json().encode()
    await attack.do("SET", sealed_key(attack.keys), b"\x1d" + bytes(16) + body)


async def _list_with_its_seal(attack: Attack) -> None:
    key = sealed_key(attack.keys)
    stored = cast("bytes", await attack.do("GET", key))
    await attack.do("SET", key, stored[:17] + b'{"epoch": 9}')


FORGED_FREEZES = {
    "the list deleted": _list_gone,
    "an empty list with a seal of zeros": _list_unsealed,
    "another list under the seal": _list_with_its_seal,
}


@pytest.mark.parametrize("how", FORGED_FREEZES)
async def test_a_freeze_holds_whatever_is_written_over_it(
    attack: Attack, how: str
) -> None:
    claim = await authorized(attack)
    await freeze(attack)
    await FORGED_FREEZES[how](attack)

    reply = await attack.harness.agents.claim(claim)

    assert not isinstance(reply, Claimed)
    frozen = await attack.harness.reviews.freezes.frozen()
    assert any(one.scope in (REFUNDS, _EVERYTHING) for one in frozen)
    # The list and the freeze in it may each be reported.
    assert {*await attack.found()} in (
        {("seal_wrong", "freezes")},
        {("replayed", "freezes")},
    )


_EVERYTHING = FreezeScope(kind=ScopeKind.TENANT)


async def test_an_older_list_of_freezes_lifts_none(attack: Attack) -> None:
    freezes, key = attack.harness.reviews.freezes, sealed_key(attack.keys)
    other = FreezeScope(kind=ScopeKind.TOOL, name="send_email")
    await freezes.freeze(other, "T0/U0ANA", "why")
    older = cast("bytes", await attack.do("GET", key))
    claim = await authorized(attack)
    await freeze(attack)
    await attack.do("SET", key, older)

    reply = await attack.harness.agents.claim(claim)

    assert not isinstance(reply, Claimed)
    assert await attack.found() == [("replayed", "freezes")]


async def test_the_list_of_another_tenant_lifts_no_freeze(attack: Attack) -> None:
    keys = attack.store.keys_of_tenant(OTHER)
    body = FreezeList(epoch=2**50).model_dump_json().encode()
    copied = attack.store.sealing.sealed(Sealed.FREEZES, (sealed_key(keys),), body)
    claim = await authorized(attack)
    await freeze(attack)
    await attack.do("SET", sealed_key(attack.keys), copied)

    reply = await attack.harness.agents.claim(claim)

    assert not isinstance(reply, Claimed)
    assert await attack.found() == [("seal_wrong", "freezes")]


async def test_freezing_one_thing_more_does_not_end_the_freeze_of_everything(
    attack: Attack,
) -> None:
    freezes = attack.harness.reviews.freezes
    claim = await authorized(attack)
    await freeze(attack)
    await _list_gone(attack)
    await attack.harness.agents.claim(claim)
    other = FreezeScope(kind=ScopeKind.TOOL, name="send_email")

    await freezes.freeze(other, "T0/U0ANA", "not now")
    assert not isinstance(await attack.harness.agents.claim(claim), Claimed)
    await freezes.unfreeze(other, "T0/U0ANA")
    assert not isinstance(await attack.harness.agents.claim(claim), Claimed)
    assert await freezes.unfreeze(_EVERYTHING, "T0/U0ANA")

    assert isinstance(await attack.harness.agents.claim(claim), Claimed)
    # The loss of the list is reported once, and not that ours is one.
    assert await attack.found() == [("replayed", "freezes")]


async def test_a_freeze_that_is_not_in_the_list_stops_nothing(attack: Attack) -> None:
    forged = Freeze(scope=REFUNDS, by="the CEO", reason="because")
    await attack.do("HSET", attack.keys.frozen, str(REFUNDS), forged.model_dump_json())

    _, (ran,) = await attack.harness.submit(LOOK_UP, thread="t9")
    _, (held,) = await attack.harness.submit(REFUND, thread="t8")

    assert (ran.kind, held.kind) == (VerdictKind.RUN, VerdictKind.HOLD)
    assert await attack.harness.reviews.freezes.frozen() == ()

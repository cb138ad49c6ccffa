"""People who may answer a spot check, as far as Slack identifies them."""

from __future__ import annotations

from keyturn.gateway.approvals.decisions import AccountKind, Reviewer
from keyturn.gateway.approvals.quality_checks import NOT_YOU, refusal
from keyturn.gateway.approvals.requirement import Role, SpotCheck
from keyturn.gateway.protocol.records import ItemState
from tests.approvals.builders import NOW_MS, an_approval, an_item

NIGHT = Role(name="night", usergroups=("S0NIGHT",))
EVE = Reviewer(team="T0", user="U0EVE", name="Eve", account=AccountKind.MEMBER)


def test_who_holds_the_role_answers_and_an_unknown_one_is_asked_to_try_again() -> None:
    check = SpotCheck(of=(NIGHT,), asked_at_ms=NOW_MS)
    item = an_item().with_(state=ItemState.EXECUTED, spot_check=check)

    def said_to(reviewer: Reviewer) -> str | None:
        return refusal(an_approval(item), item, reviewer, (NIGHT,))

    assert said_to(EVE.with_(usergroups=frozenset(NIGHT.usergroups))) is None
    assert said_to(EVE) == NOT_YOU
    assert said_to(EVE.with_(unknown_groups=frozenset(NIGHT.usergroups))) == (
        "Slack did not say who is in night, so nothing was recorded. "
        "Please click again in a moment."
    )

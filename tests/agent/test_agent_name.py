"""An agent has a name."""

from __future__ import annotations

from typing import Any

import pytest

from keyturn import Keyturn
from keyturn.agent import aask_questions, arequire_approval
from keyturn.agent.middleware import ApprovalMiddleware
from keyturn.gateway.errors import SettingsError

ASKED = Keyturn.remote("http://127.0.0.1:9", api_key="tk_" + "a" * 43).gateway
NO_NAMES: list[Any] = ["", " ", " a", "a\n", "a\0", "\ud800", 5, None, b"a", []]


@pytest.mark.parametrize("name", NO_NAMES)
def test_an_agent_without_a_name_is_refused(name: Any) -> None:
    with pytest.raises(SettingsError, match="needs a name") as refused:
        ApprovalMiddleware(name)

    assert repr(name) in str(refused.value)


@pytest.mark.parametrize("name", NO_NAMES)
async def test_a_step_of_an_agent_without_a_name_is_refused(name: Any) -> None:
    with pytest.raises(SettingsError, match="needs a name"):
        await arequire_approval("pay", {}, run=_pay, agent=name, gateway=ASKED)
    with pytest.raises(SettingsError, match="needs a name"):
        await aask_questions(["Which?"], agent=name, gateway=ASKED)


@pytest.mark.parametrize("name", ["a b", "ü/ß", "a" * 300])
def test_a_name_may_have_blanks_and_any_letters(name: str) -> None:
    assert ApprovalMiddleware(name).agent == name


async def _pay() -> None:
    """Pay."""

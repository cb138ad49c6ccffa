"""An agent has a name."""

from __future__ import annotations

import pytest

from twokey.agent.middleware import ApprovalMiddleware
from twokey.gateway.errors import SettingsError


@pytest.mark.parametrize("name", ["", " "])
def test_an_agent_without_a_name_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="needs a name"):
        ApprovalMiddleware(name)

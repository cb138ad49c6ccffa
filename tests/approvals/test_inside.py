"""A namespace shows the nesting of runs; a parallel run is not affected."""

from __future__ import annotations

import pytest

from keyturn.gateway.protocol.records import is_inside

INSIDE = [
    ("tools:1", ""),
    ("|step|__pregel_pull|step", ""),
    ("tools:1|tools:2", ""),
    ("tools:1|tools:2", "tools:1"),
    ("tools:1|1|tools:2", "tools:1|1"),
    ("tools:1|tools|__pregel_pull|tools", "tools:1"),
]
APART = [
    ("", ""),
    ("", "tools:1"),
    ("tools:1", "tools:1"),
    ("tools:2", "tools:1"),
    ("tools:12", "tools:1"),
    ("tools:1", "tools:1|tools:2"),
    ("tools:1|1", "tools:1"),
    ("tools:1|12|tools:2", "tools:1"),
    ("tools:2|tools:1", "tools:1"),
]


@pytest.mark.parametrize(("ns", "outer"), INSIDE)
def test_an_agent_in_a_tool_is_inside_the_tools_agent(ns: str, outer: str) -> None:
    assert is_inside(ns, outer)


@pytest.mark.parametrize(("ns", "outer"), APART)
def test_what_runs_beside_an_agent_is_not_inside_it(ns: str, outer: str) -> None:
    assert not is_inside(ns, outer)

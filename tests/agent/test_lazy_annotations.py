"""Annotations that name imports for type checkers alone break no function.

From Python 3.14 on they are evaluated when the signature is read.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
from langchain_core.tools import StructuredTool
from pydantic import BaseModel

from keyturn.agent import guarded
from keyturn.agent.grants import Grant, grant_scope
from keyturn.gateway.protocol import wire
from keyturn.gateway.resume.graphs import made_by

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 14), reason="annotations are evaluated at once"
)

MODULE = """
def pay(order: str, at: Imported = None) -> Imported: return order
async def apay(order: str, at: Imported = None) -> Imported: return order
def make() -> Imported: return 'made'
"""


class Args(BaseModel):
    """What the tool is asked with."""

    order: str


@pytest.fixture
def module() -> dict[str, Any]:
    """Return the source of a module without ``from __future__ import annotations``."""
    names: dict[str, Any] = {"__name__": "lazy"}
    exec(compile(MODULE, "lazy.py", "exec", dont_inherit=True), names)  # noqa: S102 - this file has another flag
    return names


async def test_a_function_that_makes_a_graph_is_called(module: dict[str, Any]) -> None:
    assert await made_by(module["make"], "lazy.py:make") == "made"


async def test_a_guarded_tool_runs(module: dict[str, Any]) -> None:
    made = StructuredTool.from_function(
        func=module["pay"],
        coroutine=module["apay"],
        name="pay",
        description="Pay.",
        args_schema=Args,
    )
    args = {"order": "7"}

    with grant_scope(Grant("i", "k", "h", "pay", wire.args_hash({**args}))):
        said = await guarded(made).ainvoke(args)

    assert said == "7"

"""An agent's structured answer is returned with its type."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - partly typed
from langchain.agents.structured_output import ToolStrategy
from pydantic import BaseModel
from typing_extensions import TypedDict

from keyturn.agent import ApprovalMiddleware
from keyturn.agent.scripted_model import calling, scripted
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.store.store import Store

POLICY = load_policy("version: 1\ndefaults: {needs: U0ANA}\n", "policy.yml")


class Line(BaseModel):
    """A part of an answer."""

    amount: int


class Invoice(BaseModel):
    """An answer of a pydantic type."""

    lines: list[Line]


@dataclass
class Note:
    """An answer that is a dataclass."""

    text: str


class Row(TypedDict):
    """An answer that is a dictionary."""

    text: str


JSON = {
    "title": "Row",
    "description": "A row.",
    "type": "object",
    "properties": {"text": {"type": "string"}},
}
INVOICE = Invoice(lines=[Line(amount=7)])
SHAPES: dict[str, tuple[Any, str, dict[str, Any], object]] = {
    "a model": (ToolStrategy(Invoice), "Invoice", INVOICE.model_dump(), INVOICE),
    "a type by itself": (Invoice, "Invoice", INVOICE.model_dump(), INVOICE),
    "a dataclass": (ToolStrategy(Note), "Note", {"text": "x"}, Note("x")),
    "one of two": (ToolStrategy(Invoice | Note), "Note", {"text": "x"}, Note("x")),
    "a typed dictionary": (ToolStrategy(Row), "Row", {"text": "x"}, {"text": "x"}),
    "a schema": (ToolStrategy(JSON), "Row", {"text": "x"}, {"text": "x"}),
}


def agent(shape: str) -> Any:
    given, name, args, _ = SHAPES[shape]
    return cast("Any", create_agent)(
        scripted([calling((name, args, "c1"))]),
        [],
        middleware=[ApprovalMiddleware("shop")],
        response_format=given,
    )


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
async def test_a_structured_answer_keeps_its_type(
    shape: str, store: Store, tmp_path: Path
) -> None:
    graph = agent(shape)

    async with Keyturn(policy=POLICY, url=store.conn.url, data_dir=tmp_path) as tk:
        end = await tk.run(
            graph,
            {"messages": [("user", "go")]},
            thread_id="t",
            agent="shop",
            timeout_s=60,
        )

    answer = SHAPES[shape][3]
    assert end["structured_response"] == answer
    assert type(end["structured_response"]) is type(answer)

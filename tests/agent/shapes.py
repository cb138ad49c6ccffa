"""Tools with many kinds of signature, and unusual arguments."""

from __future__ import annotations

import dataclasses
import enum
import uuid
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, NotRequired

from langchain_core.tools import (
    BaseTool,
    InjectedToolArg,
    InjectedToolCallId,
    StructuredTool,
    tool,
)
from langgraph.prebuilt import InjectedState, ToolRuntime
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

SPELLINGS: dict[str, dict[str, Any]] = {
    "an integer": {"value": 7},
    "an integer as text": {"value": "7"},
    "a float": {"value": 7.0},
    "a decimal as text": {"value": "7.0"},
    "an exponent": {"value": 1e0},
    "an exponent as text": {"value": "1e1"},
    "blanks around": {"value": " 7 "},
    "digits of another script": {"value": "\u0667"},
    "true": {"value": True},
    "true as text": {"value": "true"},
    "null": {"value": None},
    "missing": {},
    "an extra argument": {"value": 7, "extra": 1},
    "an alias": {"valueAlias": "7"},
    "JSON in text": {"value": '{"amount": "7"}'},
    "an object": {"value": {"amount": "7", "tags": ["b", "a"]}},
    "a list": {"value": ["3", 1, 2]},
    "a big integer": {"value": 2**53 - 1},
    "a big integer as text": {"value": str(2**60)},
    "a fraction": {"value": "1.10"},
    "a date": {"value": "2026-01-02"},
    "a time": {"value": "2026-01-02T03:04:05+00:00"},
    "a name of an enum": {"value": "RED"},
    "a value of an enum": {"value": "red"},
    "an injected argument": {"value": 7, "state": {"forged": True}, "runtime": 1},
}


class Colour(enum.Enum):
    """A colour."""

    RED = "red"
    SEVEN = 7


class Money(BaseModel):
    """An amount with an alias."""

    amount: Decimal = Field(alias="amount")
    tags: set[str] = Field(default_factory=set[str])


class Aliased(BaseModel):
    """Arguments that are read by another name than the function has."""

    value: int = Field(alias="valueAlias")
    note: str = ""


class Named(BaseModel):
    """Arguments that are read by both names; unknown ones are refused."""

    model_config = ConfigDict(populate_by_name=True, extra="forbid")
    value: int | None = Field(default=None, alias="valueAlias")


@dataclasses.dataclass
class Point:
    """A place."""

    amount: int
    tags: list[str] = dataclasses.field(default_factory=list[str])


class Row(TypedDict):
    """A row."""

    amount: int
    tags: NotRequired[list[str]]


MCP = {
    "type": "object",
    "properties": {"value": {"type": ["integer", "string", "object"]}},
    "required": ["value"],
}


def shapes() -> dict[str, BaseTool]:  # noqa: C901 - many functions of one line
    """Return a tool of every kind."""

    def note(**got: Any) -> str:
        return f"{got}"

    def integer(value: int, level: int = 0) -> str:
        """Take an integer."""
        return note(value=value, level=level)

    def number(value: float) -> str:
        """Take a number."""
        return note(value=value)

    def flag(value: bool) -> str:  # noqa: FBT001 - a tool's argument, passed by name
        """Take a flag."""
        return note(value=value)

    def text(value: str, limit: int = None) -> str:  # type: ignore[assignment]  # pyright: ignore[reportArgumentType] # noqa: RUF013 - people write this
        """Take a text, with a default that does not match its type."""
        return note(value=value, limit=limit)

    def money(value: Decimal) -> str:
        """Take a decimal."""
        return note(value=value)

    def moment(value: datetime | date) -> str:
        """Take a time."""
        return note(value=value)

    def choice(value: Colour) -> str:
        """Take one of a few."""
        return note(value=value)

    def either(value: int | str | None = None) -> str:
        """Take one or the other."""
        return note(value=value)

    def nested(value: Money) -> str:
        """Take a model."""
        return note(value=value)

    def several_of(value: list[Money] | Money) -> str:
        """Take a model, or several."""
        return note(value=value)

    def place(value: Point) -> str:
        """Take a dataclass."""
        return note(value=value)

    def row(value: Row) -> str:
        """Take a dictionary of known keys."""
        return note(value=value)

    def several(
        value: set[int],
        state: Annotated[dict[str, Any], InjectedState],
        runtime: ToolRuntime[Any, Any],
        call_id: Annotated[str, InjectedToolCallId],
        user: Annotated[str, InjectedToolArg] = "nobody",
        key: str = Field(default_factory=lambda: uuid.uuid4().hex),
    ) -> str:
        """Take a set, what the runtime gives, and an id that is made up."""
        return note(value=value, key=key)

    def anything(value: Any = "nothing", **more: Any) -> str:
        """Take anything."""
        return note(value=value, **more)

    plain: list[Callable[..., str]] = [
        integer,
        number,
        flag,
        text,
        money,
        moment,
        choice,
        either,
        nested,
        several_of,
        place,
        row,
        several,
        anything,
    ]
    tools = [tool(one) for one in plain]
    schemas: dict[str, Any] = {
        "aliased": Aliased,
        "named": Named,
        "described": MCP,
    }
    for name, schema in schemas.items():
        tools.append(
            StructuredTool.from_function(
                func=note, name=name, description="Note it.", args_schema=schema
            )
        )
    return {one.name: one for one in tools}

"""Arguments of any type are written as they are read, or refused with their name."""

from __future__ import annotations

import dataclasses
import math
import sys
from decimal import Decimal
from typing import Annotated, Any

import pytest
from langchain_core.tools import BaseTool, tool
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    Json,
    RootModel,
    SecretStr,
    computed_field,
)
from typing_extensions import TypedDict

from keyturn.agent.calls import schema_of
from keyturn.agent.canonical import ArgumentMismatch, SchemaFault, canonical_args
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.edits import argument_errors


class Line(BaseModel):
    """Read by one name, and written by another."""

    amount: float = Field(validation_alias="amountRead", serialization_alias="out")


class Either(BaseModel):
    """Read by either of two names."""

    amount: float = Field(validation_alias=AliasChoices("amountRead", "amt"))


class Known(BaseModel):
    """Has a field that is written and not read."""

    model_config = ConfigDict(extra="forbid")
    amount: int

    @computed_field  # type: ignore[prop-decorator]  # as pydantic's documentation has it
    @property
    def doubled(self) -> int:
        return self.amount * 2


class Tree(BaseModel):
    """Contains itself."""

    value: int = Field(validation_alias="valueIn")
    parts: list[Tree] = []


class Row(TypedDict):
    """A row."""

    line: Line


@dataclasses.dataclass
class Held:
    """A dataclass that contains a model."""

    line: Line


class Secret(RootModel[SecretStr]):
    """A secret with a name."""


class Lines(RootModel[dict[str, list[Line]]]):
    """Lines by name."""


LINE = {"amountRead": 2.5}


def noting(kind: Any, got: list[Any]) -> BaseTool:
    """Return a tool that notes its argument of this type."""

    def note(value: Any) -> str:
        got.append(value)
        return "noted"

    note.__annotations__["value"] = kind
    return tool(note, description="Note it.")


WRITTEN: list[tuple[Any, Any, Any]] = [
    (Line, LINE, LINE),
    (list[Line], [LINE], [LINE]),
    (dict[str, Line | None], {"a": LINE, "b": None}, {"a": LINE, "b": None}),
    (Either, {"amt": "2.5"}, LINE),
    (Row, {"line": LINE}, {"line": LINE}),
    (Held, {"line": LINE}, {"line": LINE}),
    (Lines, {"a": [LINE]}, {"a": [LINE]}),
    (
        Tree,
        {"valueIn": 1, "parts": [{"valueIn": "2"}]},
        {"valueIn": 1, "parts": [{"valueIn": 2, "parts": []}]},
    ),
    (Known, {"amount": "3"}, {"amount": 3}),
    (list[Known], [{"amount": 3}], [{"amount": 3}]),
    (Secret, "hunter2", "hunter2"),
    (Json[dict[str, int]], '{"a": 1}', '{"a":1}'),
    (Json[Line], '{"amountRead": 2.5}', '{"amountRead":2.5}'),
    (Json[set[str]], '["b", "a"]', '["a","b"]'),
    (Json[list[SecretStr]], '["hunter2"]', '["hunter2"]'),
    (Json[int] | None, None, None),
    (list[Json[int]], [str(2**60)], [str(2**60)]),
    (Decimal, str(10**30), str(10**30)),
]


@pytest.mark.parametrize(("kind", "given", "shown"), WRITTEN)
def test_what_is_shown_is_read_as_what_the_tool_alone_would_get(
    kind: Any, given: Any, shown: Any
) -> None:
    got: list[Any] = []
    one = noting(kind, got)

    document = canonical_args(one, {"value": given})

    assert document == {"value": shown}
    assert digest.same(canonical_args(one, document), document)
    one.invoke({"value": given})
    one.invoke(dict(document))
    assert got[0] == got[1]
    assert argument_errors(schema_of(one), document) == {}


@pytest.mark.parametrize(
    ("kind", "given"), [(int, str(2**63)), (float, "1e300"), (list[int], [str(2**70)])]
)
def test_a_number_that_no_document_can_hold_names_a_type_that_can(
    kind: Any, given: Any
) -> None:
    with pytest.raises(SchemaFault, match=r"/value.*declare it as `Decimal` or `str`"):
        canonical_args(noting(kind, []), {"value": given})


CLIENT = object()


def limited(
    to: str,
    timeout: float = math.inf,
    rows: int = sys.maxsize + 1,
    client: Any = CLIENT,
    raw: bytes = b"\xff",
) -> str:
    """Take defaults that JSON cannot represent."""
    assert client is CLIENT
    assert raw == b"\xff"
    return f"{to} {timeout} {rows}"


def test_a_default_that_no_document_can_hold_is_left_to_the_tool() -> None:
    one = tool(limited)

    document = canonical_args(one, {"to": "ada"})

    assert document == {"to": "ada"}
    assert one.invoke(dict(document)) == f"ada inf {sys.maxsize + 1}"
    schema = schema_of(one)
    assert schema
    assert schema["required"] == ["to"]
    assert argument_errors(schema, {"to": "ada", "timeout": 2.5}) == {}
    assert canonical_args(one, {"to": "ada", "timeout": "2.5"}) == {
        "to": "ada",
        "timeout": 2.5,
    }


def test_an_argument_that_has_no_document_is_named() -> None:
    kind = Annotated[Any, AfterValidator(lambda _: CLIENT)]

    with pytest.raises(SchemaFault, match="does not write 'value' as JSON"):
        canonical_args(noting(kind, []), {"value": "a"})
    with pytest.raises(ArgumentMismatch, match=r"'/value'.*not finite"):
        canonical_args(noting(float, []), {"value": "inf"})

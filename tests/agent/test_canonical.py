"""The tool's own schema makes one document of every spelling, or refuses it."""

from __future__ import annotations

import dataclasses
import datetime as dt
import ipaddress
import math
import sys
import uuid
from collections import deque
from decimal import Decimal
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.tools import BaseTool, InjectedToolArg, StructuredTool, Tool, tool
from langgraph.prebuilt import InjectedState
from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    AnyUrl,
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    Json,
    RootModel,
    SecretStr,
    computed_field,
    create_model,
    field_validator,
)
from pydantic import v1 as pydantic_v1
from typing_extensions import TypedDict

from keyturn.agent.calls import schema_of
from keyturn.agent.canonical import ArgumentMismatch, SchemaFault, canonical_args
from keyturn.agent.prepared_calls import Toolbox, prepare_calls
from keyturn.agent.scripted_model import calling
from keyturn.bot.modals.schema import moment_text
from keyturn.gateway.policy.schemas import unusable
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.edits import argument_errors, edit_errors
from tests.agent.shapes import SPELLINGS, shapes

SHAPES = shapes()


def described(model: Any) -> BaseTool:
    """Return a tool whose arguments this model describes."""

    def nothing(**_: Any) -> str:
        raise AssertionError

    return StructuredTool.from_function(
        func=nothing, name="x", description="X.", args_schema=model
    )


@pytest.mark.parametrize("spelled", [7, "7", "07", "+7", "7.0", 7.0, " 7 "])
def test_every_spelling_of_an_integer_is_one_document(spelled: object) -> None:
    args: Any = {"value": spelled}

    assert canonical_args(SHAPES["integer"], args) == {"value": 7, "level": 0}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_canonical_document_is_read_as_itself_and_fits_its_schema(shape: str) -> None:
    one = SHAPES[shape]
    fitting = 0
    for args in SPELLINGS.values():
        try:
            document = canonical_args(one, args)
        except ArgumentMismatch:
            continue
        fitting += 1
        assert digest.same(canonical_args(one, document), document)
        schema = schema_of(one)
        assert argument_errors(schema, document) == {} or shape == "described"
    assert fitting


def test_a_misfit_names_the_argument_the_value_and_what_is_expected() -> None:
    with pytest.raises(ArgumentMismatch) as error:
        canonical_args(SHAPES["integer"], {"value": "seven"})

    assert str(error.value).startswith("value: Input should be a valid integer")
    assert '(got "seven")' in str(error.value)


def test_a_schema_that_changes_its_own_output_is_refused() -> None:
    class Doubled(BaseModel):
        amount: int

        @field_validator("amount")
        @classmethod
        def double(cls, amount: int) -> int:
            return amount * 2

    with pytest.raises(
        ArgumentMismatch, match="reads its output differently at 'amount'"
    ):
        canonical_args(described(Doubled), {"amount": 50})


def test_no_correction_is_asked_for_an_unreadable_schema() -> None:
    class Position(BaseModel):
        amount_minor: int = Field(validation_alias=AliasPath("amount", "minor"))

    class Order(BaseModel):
        lines: list[Position]

    call = calling(("x", {"lines": [{"amount": {"minor": 3}}]}, "c1")).tool_calls[0]
    toolbox = Toolbox()
    toolbox.learn([described(Order)])

    problem = prepare_calls([call], toolbox)["c1"].problem

    assert "does not read its own output" in problem
    assert "lines.0.amount.minor: Field required" in problem
    assert "tell the user" in problem
    assert "Correct the arguments" not in problem


def test_a_schema_that_does_not_write_what_it_reads_is_refused() -> None:
    class Hidden(BaseModel):
        note: str = Field(default="", exclude=True)

    with pytest.raises(
        ArgumentMismatch, match="does not write 'note' the way it reads it"
    ):
        canonical_args(described(Hidden), {"note": "careful"})


class _Options(BaseModel):
    model_config = ConfigDict(extra="allow")
    dry_run: bool = Field(default=True, validation_alias="dryRun")


class _Listed(RootModel[list[_Options]]):
    """A root model hides its members from a walk over fields."""


class _Choices(BaseModel):
    model_config = ConfigDict(extra="allow")
    dry_run: bool = Field(default=True, validation_alias=AliasChoices("dryRun", "dry"))


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (_Options, {"dry_run": False}),
        (_Choices, {"dry_run": False}),
        (list[_Options], [{"dry_run": False}]),
        (dict[str, _Options], {"a": {"dry_run": False}}),
        (_Listed, [{"dry_run": False}]),
        (Json[_Options], '{"dry_run": false}'),
        (deque[_Options], [{"dry_run": False}]),
    ],
)
def test_an_extra_value_named_as_a_field_is_refused(kind: Any, given: Any) -> None:
    deploy = create_model("Deploy", options=(kind, ...))

    with pytest.raises(SchemaFault, match="does not read 'dry_run'"):
        canonical_args(described(deploy), {"options": given})


def test_a_validator_that_fails_in_its_own_way_is_a_misfit() -> None:
    class Broken(BaseModel):
        amount: int

        @field_validator("amount")
        @classmethod
        def ask(cls, amount: int) -> int:
            raise LookupError(amount)

    with pytest.raises(ArgumentMismatch, match=r"could not read them \(LookupError\)"):
        canonical_args(described(Broken), {"amount": 1})


def test_an_argument_is_written_under_the_name_that_it_is_read_by() -> None:
    class Choice(BaseModel):
        customer: int = Field(validation_alias="cid")
        shown: int = Field(default=1, serialization_alias="Shown")

        @computed_field  # type: ignore[prop-decorator]
        @property
        def total(self) -> int:
            return self.customer + self.shown

    document = canonical_args(described(Choice), {"cid": "7"})

    assert document == {"cid": 7, "shown": 1}
    schema = schema_of(described(Choice))
    assert schema
    assert schema["required"] == ["cid", "shown"]


def test_a_model_of_pydantic_1_is_refused() -> None:
    class Old(pydantic_v1.BaseModel):
        amount: Decimal

    assert schema_of(described(Old)) is None
    with pytest.raises(SchemaFault, match="no model of pydantic 2"):
        canonical_args(described(Old), {"amount": "1.10"})


def test_a_json_schema_checks_and_changes_nothing() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "callbacks": {"type": "string"}},
        "required": ["n"],
    }

    document = canonical_args(described(schema), {"n": 7.0, "callbacks": "url"})

    assert document == {"n": 7, "callbacks": "url"}
    with pytest.raises(ArgumentMismatch, match="n: '7' is not of type 'integer'"):
        canonical_args(described(schema), {"n": "7"})
    with pytest.raises(ArgumentMismatch, match="'n' is a required property"):
        canonical_args(described(schema), {})
    broken = described({"type": "object", "properties": {"n": {"$ref": "urn:x"}}})
    assert canonical_args(broken, {"n": "7"}) == {"n": "7"}, "it cannot be checked"


@pytest.mark.parametrize(
    ("declared", "fits", "misfits"),
    [
        # As Zod and others write them for the drafts 4 and 7.
        ({"type": "array", "items": [{"type": "string"}]}, ["a"], [1]),
        (
            {"items": [{"type": "string"}], "additionalItems": {"type": "number"}},
            ["a", 1],
            ["a", "b"],
        ),
        ({"minimum": 0, "exclusiveMinimum": True}, 0.5, 0),
        ({"maximum": 1, "exclusiveMaximum": False}, 1, 2),
    ],
)
def test_an_earlier_draft_is_respected(declared: Any, fits: Any, misfits: Any) -> None:
    one = described({"type": "object", "properties": {"value": declared}})

    assert canonical_args(one, {"value": fits}) == {"value": fits}
    with pytest.raises(ArgumentMismatch):
        canonical_args(one, {"value": misfits})
    schema = schema_of(one)
    assert schema
    assert unusable(schema, {}) is None
    assert argument_errors(schema, {"value": fits}) == {}
    assert argument_errors(schema, {"value": misfits})


def deploy(env: str, config: str = "test", run_manager: str = "none") -> str:
    """Deploy."""
    return f"{env} {config} {run_manager}"


def test_an_argument_that_langchain_never_hands_on_is_refused_with_its_name() -> None:
    one = tool(deploy)
    loose = described({"type": "object", "properties": {"config": {}}})

    assert "test" in one.invoke({"env": "eu", "config": "live"})
    with pytest.raises(SchemaFault, match=r"'config'.*another name"):
        canonical_args(one, {"env": "eu", "config": "live"})
    with pytest.raises(SchemaFault, match=r"'config'.*another name"):
        canonical_args(loose, {"config": {"a": 1}})
    assert canonical_args(loose, {}) == {}


def test_an_argument_in_the_place_of_an_injected_one_is_refused_as_well() -> None:
    def call(runtime: Annotated[Any, InjectedToolArg] = None, **given: Any) -> str:
        return f"{runtime} {given}"

    properties = {"runtime": {"type": "string"}, "n": {"type": "integer"}}
    one = StructuredTool(
        name="x",
        description="As the adapter of MCP's servers makes one.",
        func=call,
        args_schema={"type": "object", "properties": properties},
    )

    with pytest.raises(SchemaFault, match=r"'runtime'.*another name"):
        canonical_args(one, {"runtime": "py"})
    assert canonical_args(one, {"n": 1}) == {"n": 1}


def test_a_tool_without_a_schema_gets_what_the_model_wrote() -> None:
    bare = Tool(name="bare", func=str, description="Bare.")

    assert canonical_args(bare, {"__arg1": "7"}) == {"__arg1": "7"}
    assert schema_of(bare) is None


def test_what_is_injected_is_no_part_of_the_document() -> None:
    @tool
    def peek(n: int, state: Annotated[dict[str, Any], InjectedState]) -> str:
        """Peek."""
        return f"{n} {state}"

    assert canonical_args(peek, {"n": "1", "state": {"forged": True}}) == {"n": 1}
    schema = schema_of(peek)
    assert schema
    assert schema["properties"] == {"n": {"title": "N", "type": "integer"}}


class Line(BaseModel):
    """Read and written by another name than its field has."""

    amount: float = Field(alias="amountRead")


class Renamed(BaseModel):
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

    value: int = Field(alias="valueIn")
    parts: list[Tree] = []


class Row(TypedDict):
    """A row."""

    line: Line


@dataclasses.dataclass
class Held:
    """A dataclass that contains a model."""

    line: Line


@dataclasses.dataclass
class Tags:
    """A dataclass that contains a set."""

    line: Line
    tags: frozenset[str]


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
    (Row, {"line": LINE}, {"line": LINE}),
    (Held, {"line": LINE}, {"line": LINE}),
    (Lines, {"a": [LINE]}, {"a": [LINE]}),
    (
        Tree,
        {"valueIn": 1, "parts": [{"valueIn": "2"}]},
        {"valueIn": 1, "parts": [{"valueIn": 2, "parts": []}]},
    ),
    (Known, {"amount": "3"}, {"amount": 3}),
    (Json[dict[str, int]], '{"a": 1}', '{"a":1}'),
    (Json[Line], '{"amountRead": 2.5}', '{"amountRead":2.5}'),
    (set[str], ["b", "a"], ["a", "b"]),
    (Tags, {"line": LINE, "tags": ["b", "a"]}, {"line": LINE, "tags": ["a", "b"]}),
    (list[Json[int]], [str(2**60)], [str(2**60)]),
    (Decimal, str(10**30), str(10**30)),
]


@pytest.mark.parametrize(("kind", "given", "shown"), WRITTEN)
def test_what_is_shown_is_what_a_tool_gets(kind: Any, given: Any, shown: Any) -> None:
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
    ("kind", "given"),
    [(SecretStr, "hunter2"), (Renamed, LINE), (Either, LINE), (list[Renamed], [LINE])],
)
def test_a_value_written_otherwise_is_refused(kind: Any, given: Any) -> None:
    with pytest.raises(SchemaFault, match="are ambiguous"):
        canonical_args(noting(kind, []), {"value": given})


def test_a_default_that_is_written_otherwise_is_left_to_the_tool() -> None:
    class Signed(BaseModel):
        text: str
        key: SecretStr = SecretStr("hunter2")

    assert canonical_args(described(Signed), {"text": "a"}) == {"text": "a"}


@pytest.mark.parametrize(
    ("kind", "given"), [(int, str(2**63)), (float, "1e300"), (list[int], [str(2**70)])]
)
def test_an_unkeepable_number_names_another_type(kind: Any, given: Any) -> None:
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


def test_an_argument_that_has_no_document_is_refused() -> None:
    kind = Annotated[Any, AfterValidator(lambda _: CLIENT)]

    with pytest.raises(SchemaFault, match="does not write them as JSON"):
        canonical_args(noting(kind, []), {"value": "a"})
    with pytest.raises(ArgumentMismatch, match=r"'/value'.*not finite"):
        canonical_args(noting(float, []), {"value": "inf"})


TYPES: dict[Any, tuple[str, ...]] = {
    AnyUrl: ("https://a.example/", "https://b.example", "b.example", "urn:isbn:1"),
    HttpUrl: ("https://a.example/", "https://b.example", "HTTPS://b.example/x y"),
    uuid.UUID: (
        "12345678-1234-5678-1234-567812345678",
        "22345678123456781234567812345678",
        "{22345678-1234-5678-1234-567812345678}",
    ),
    dt.datetime: (
        "2026-03-29T02:30:00",
        "2026-03-29 03:30",
        "2026-03-29",
        "2026-03-29T03:30:00+00:00",
        "29.3.2026",
        "1767225600",
    ),
    dt.date: ("2026-03-29", "20260329", "29.3.2026", "2026-03-29T00:00:00"),
    dt.time: ("10:30:00", "10:30", "10:30:00+00:00", "half past ten"),
    Decimal: ("10.50", "11,50", " 11.50", "+11.5", "1E+3", "", "NaN", "1_000"),
    ipaddress.IPv4Address: ("192.0.2.1", "192.0.2", "192.0.2.01"),
    ipaddress.IPv6Address: ("2001:db8::1", "2001:DB8::1", "2001:db8:0::1"),
}


def tool_of(kind: Any) -> StructuredTool:
    def act(x: Any) -> str:
        return str(x)

    act.__annotations__["x"] = kind
    return StructuredTool.from_function(act, name="act", description="Act.")


def reads_as_itself(tool: StructuredTool, text: str) -> bool:
    try:
        return canonical_args(tool, {"x": text}) == {"x": text}
    except ArgumentMismatch:
        return False


@pytest.mark.parametrize(
    ("kind", "text"), [(kind, text) for kind, texts in TYPES.items() for text in texts]
)
def test_an_edit_is_accepted_if_its_tool_would_run(kind: Any, text: str) -> None:
    tool, first = tool_of(kind), TYPES[kind][0]

    errors = edit_errors(schema_of(tool), {"x": first}, {"x": text})

    assert reads_as_itself(tool, first)
    assert (errors == {}) == reads_as_itself(tool, text), errors


@given(st.integers(1_000_000_000, 9_999_999_999))
def test_the_picker_of_a_form_gives_what_the_tool_reads(s: int) -> None:
    assert reads_as_itself(tool_of(dt.datetime), moment_text(s, None))

"""The tool's own schema makes one document of every spelling, or refuses it."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any

import pytest
from langchain_core.tools import BaseTool, InjectedToolArg, StructuredTool, Tool, tool
from langgraph.prebuilt import InjectedState
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    Field,
    computed_field,
    field_validator,
)
from pydantic import v1 as pydantic_v1

from keyturn.agent.calls import schema_of
from keyturn.agent.canonical import ArgumentMismatch, SchemaFault, canonical_args
from keyturn.agent.prepared_calls import Toolbox, prepare_calls
from keyturn.agent.scripted_model import calling
from keyturn.gateway.policy.schemas import unusable
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.edits import argument_errors
from tests.agent.shapes import SPELLINGS, shapes

SHAPES = shapes([])


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
def test_a_canonical_document_is_read_as_itself_and_fits_its_schema(
    shape: str,
) -> None:
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


def test_no_correction_is_asked_for_where_a_schema_does_not_read_what_it_writes() -> (
    None
):
    class Line(BaseModel):
        amount_minor: int = Field(validation_alias=AliasPath("amount", "minor"))

    class Order(BaseModel):
        lines: list[Line]

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


def test_a_validator_that_fails_in_its_own_way_is_a_misfit() -> None:
    class Broken(BaseModel):
        amount: int

        @field_validator("amount")
        @classmethod
        def ask(cls, amount: int) -> int:
            raise LookupError(amount)

    with pytest.raises(ArgumentMismatch, match=r"could not read them \(LookupError\)"):
        canonical_args(described(Broken), {"amount": 1})


def test_a_default_of_another_type_counts_as_the_tool_reads_it() -> None:
    def pay(amount: Decimal = 0, limit: int = None, key: str = 7) -> str:  # type: ignore[assignment]  # pyright: ignore[reportArgumentType] # noqa: RUF013 - people write this
        """Pay."""
        return f"{amount} {limit} {key}"

    assert canonical_args(tool(pay), {}) == {"amount": "0"}
    assert canonical_args(tool(pay), {"key": "k"}) == {"amount": "0", "key": "k"}


def test_an_argument_is_written_under_the_name_that_it_is_read_by() -> None:
    class Choice(BaseModel):
        customer: int = Field(validation_alias=AliasChoices("cid", "customerId"))
        shown: int = Field(default=1, serialization_alias="Shown")

        @computed_field  # type: ignore[prop-decorator]
        @property
        def total(self) -> int:
            return self.customer + self.shown

    document = canonical_args(described(Choice), {"customerId": "7"})

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
def test_a_json_schema_of_an_earlier_draft_is_checked_as_that_draft_says(
    declared: Any, fits: Any, misfits: Any
) -> None:
    one = described({"type": "object", "properties": {"value": declared}})

    assert canonical_args(one, {"value": fits}) == {"value": fits}
    with pytest.raises(ArgumentMismatch):
        canonical_args(one, {"value": misfits})
    schema = schema_of(one)
    assert schema
    assert unusable(schema, {}) is None
    assert argument_errors(schema, {"value": fits}) == {}
    assert argument_errors(schema, {"value": misfits})


def deploy(
    env: str,
    config: str = "test",
    run_manager: str = "none",
) -> str:
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

"""Canonicalize the arguments of a gated action in a plain LangGraph node.

A step of a plain node has no tool, but its function may have annotations. They are
read like the schema of a tool: what people are shown is what the function gets.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from langchain_core.tools import BaseTool, StructuredTool

from twokey.agent import canonical
from twokey.agent.argument_models import argument_model
from twokey.gateway.errors import BadStep
from twokey.gateway.protocol import digest
from twokey.gateway.protocol.strict_json import JsonObject


def declared(run: Callable[..., Any], tool: str) -> BaseTool | None:
    """Return a tool with the schema of a function; None when it annotates nothing."""
    try:
        parameters = inspect.signature(run).parameters.values()
        is_open = any(one.kind is one.VAR_KEYWORD for one in parameters)
        annotated = [one for one in parameters if one.annotation is not one.empty]
        # A function with **kwargs accepts any argument: there is no schema to apply.
        if is_open or not annotated:
            return None
        return StructuredTool.from_function(func=run, name=tool, description=tool)
    except Exception:  # noqa: BLE001 - annotations may be anything; then nothing is read
        return None


def canonical_step(
    run: Callable[..., Any], args: dict[str, Any], tool: str
) -> JsonObject:
    """Return the arguments of a step as its function reads them.

    They are canonical: a step runs alike whether people were asked or not.

    Defaults are not filled in: a node runs again after a pause, and a generated default
    would differ each time and change the call's hash.

    Raises:
        BadJson: when they are not strict JSON.
        BadStep: when the function's annotations do not take them; nobody was asked.
    """
    try:
        return _read(run, canonical.plain(args), tool)
    except canonical.ArgumentMismatch as error:
        raise BadStep(
            f"The step {tool!r} was not put to anybody: {error}. Give arguments that "
            "fit the annotations of `run`."
        ) from error


def problem(run: Callable[..., Any], args: JsonObject, tool: str) -> str:
    """Return why a function would not get exactly these arguments; "" when it would."""
    try:
        made = _read(run, args, tool)
    except canonical.ArgumentMismatch as error:
        return f"the arguments do not fit ({error})"
    if not canonical.same(made, args):
        text = digest.canonical(made).decode("utf-8")
        return f"the function would read the arguments as {text}"
    return ""


def _read(run: Callable[..., Any], args: JsonObject, tool: str) -> JsonObject:
    reader = declared(run, tool)
    if reader is None:
        return args
    made = canonical.function_args(reader, args)
    return {name: value for name, value in made.items() if name in args}


def values(run: Callable[..., Any], args: JsonObject, tool: str) -> dict[str, Any]:
    """Return canonical arguments as the values that the function declares."""
    reader = declared(run, tool)
    if reader is None:
        return dict(args)
    read = argument_model(reader).read(args)
    # Only what was given: the function fills in its own defaults.
    return {name: getattr(read, name) for name in args}

"""Leave out the arguments that the runtime gives a tool, and not its caller.

Which these are is LangChain's own notion. It reads annotations anew each time, which
takes longer than anything else about the arguments of a call; so it is asked once for
tools that are made of a function.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import Any, cast

from langchain_core.tools import BaseTool, StructuredTool
from langchain_core.tools.base import (
    FILTERED_ARGS,
    _get_runnable_config_param,  # pyright: ignore[reportPrivateUsage] - LangChain's own notion of it
)
from pydantic import BaseModel

from twokey.gateway.protocol.parameters import signature_of


def without_injected(tool: BaseTool, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments without the injected ones."""
    made_of = MadeOf.of(tool)
    if made_of is None:
        return _asked(tool, args)
    injected = injected_into(made_of)
    return {name: value for name, value in args.items() if name not in injected}


class MadeOf:
    """The function and the schema of a tool: alike, they have the same arguments."""

    __slots__ = ("_hash", "key", "tool")

    def __init__(self, tool: StructuredTool) -> None:
        self.key: Hashable = (tool.func, tool.coroutine, tool.args_schema)
        self.tool = tool
        self._hash = hash(self.key)

    @classmethod
    def of(cls, tool: BaseTool) -> MadeOf | None:
        """Return what a tool is made of; None where that does not say all of it."""
        kind = type(tool)
        # A class of somebody's own may decide otherwise for each of its instances.
        is_plain = _is_plain(kind) and isinstance(tool.args_schema, type)
        if not is_plain:
            return None
        try:
            return cls(cast("StructuredTool", tool))
        except TypeError:  # a callable that cannot be hashed
            return None

    def __hash__(self) -> int:
        """Return the hash of what the tool is made of."""
        return self._hash

    def __eq__(self, other: object) -> bool:
        """Return whether both are made of the same."""
        return isinstance(other, MadeOf) and self.key == other.key


@lru_cache(maxsize=256)
def _is_plain(kind: type[BaseTool]) -> bool:
    return (
        issubclass(kind, StructuredTool)
        and kind._filter_injected_args is BaseTool._filter_injected_args  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - LangChain's own notion of injected
        and kind._injected_args_keys is StructuredTool._injected_args_keys  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType] - as above
    )


@lru_cache(maxsize=512)
def injected_into(made_of: MadeOf) -> frozenset[str]:
    """Return the names that no caller of such a tool gives, as far as it knows any."""
    schema = cast("Any", made_of.tool.args_schema)
    is_v2 = issubclass(schema, BaseModel)
    fields = schema.model_fields if is_v2 else schema.__fields__
    own = made_of.tool._injected_args_keys  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType, reportUnknownVariableType] - as above
    names = frozenset[str]({*FILTERED_ARGS, *own, *fields})
    return names.difference(_asked(made_of.tool, dict.fromkeys(names)))


def overwritten(tool: BaseTool) -> frozenset[str]:
    """Return the names under which LangChain passes values of its own to a tool.

    An argument of such a name, as of ``def deploy(config: str = "test")``, never
    reaches the function of the tool, and LangChain does not say so. Nor does one that a
    server of MCP declares and the adapter's function has injected.
    """
    names = _overwritten_by(type(tool))
    if isinstance(tool.args_schema, dict):
        names |= tool._injected_args_keys  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - LangChain's own notion of injected
    return names


@lru_cache(maxsize=256)
def _overwritten_by(kind: type[BaseTool]) -> frozenset[str]:
    methods = (kind._run, kind._arun)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - as LangChain runs it
    configs = {_get_runnable_config_param(one) for one in methods} - {None}
    managers = {"run_manager"} & {
        name for one in methods for name in signature_of(one).parameters
    }
    return frozenset(cast("set[str]", configs) | managers)


def _asked(tool: BaseTool, args: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = tool._filter_injected_args(dict(args))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - as above
    return found

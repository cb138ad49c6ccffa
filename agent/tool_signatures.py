"""Know what the function of a tool takes, instead of working it out at each run.

At each run of a tool LangChain asks for the signatures of its method and its function,
and evaluates their annotations: a tenth of a millisecond before the tool starts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any, cast, get_type_hints
from weakref import WeakKeyDictionary

from langchain_core.callbacks import AsyncCallbackManagerForToolRun
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool

from twokey.gateway.protocol.parameters import signature_of


@dataclass(frozen=True, slots=True)
class _Takes:
    """What LangChain passes on to a function beside the tool's arguments.

    Attributes:
        callbacks: it has a parameter of that name.
        config: name of its parameter for the config; "" for none.
    """

    callbacks: bool
    config: str


_KNOWN = WeakKeyDictionary[FunctionType, _Takes]()


def known_methods(plain: type[BaseTool]) -> dict[str, Any]:
    """Return the methods of a class of tools that need not look at signatures."""
    # A class that runs in another way is left alone.
    is_plain = _method_of(plain) is _method_of(StructuredTool)
    return {"_arun": _arun} if is_plain else {}


def _method_of(kind: type[BaseTool]) -> object:
    return getattr(kind, "_arun")  # noqa: B009 - it is protected, and meant for subclasses


async def _arun(
    self: StructuredTool,
    *args: Any,  # noqa: ANN401 - the shape of StructuredTool._arun
    config: RunnableConfig,
    run_manager: AsyncCallbackManagerForToolRun | None = None,
    **kwargs: Any,  # noqa: ANN401 - the shape of StructuredTool._arun
) -> Any:  # noqa: ANN401 - the shape of StructuredTool._arun
    """Run the tool as `StructuredTool` does."""
    run = self.coroutine
    if run is None:
        plain = cast("Any", _method_of(StructuredTool))
        return await plain(
            self, *args, config=config, run_manager=run_manager, **kwargs
        )
    takes = _takes(run)
    if takes.callbacks and run_manager:
        kwargs["callbacks"] = run_manager.get_child()
    if takes.config:
        kwargs[takes.config] = config
    return await run(*args, **kwargs)


cast("Any", _arun).__signature__ = inspect.signature(_arun)
# Of all annotations LangChain looks for that of the config alone; each takes time.
_arun.__annotations__ = {"config": RunnableConfig}


def _takes(function: Callable[..., Any]) -> _Takes:
    # A bound method is another object each time.
    key = getattr(function, "__func__", function)
    if not isinstance(key, FunctionType):
        return _looked_at(function)
    found = _KNOWN.get(key)
    if found is None:
        found = _KNOWN[key] = _looked_at(function)
    return found


def _looked_at(function: Callable[..., Any]) -> _Takes:
    annotated = function.func if isinstance(function, partial) else function
    try:
        hints = get_type_hints(annotated)
    except Exception:  # noqa: BLE001 - as LangChain: it then has no such parameter
        hints = {}
    names = [name for name, kind in hints.items() if kind is RunnableConfig]
    has_callbacks = "callbacks" in signature_of(cast("Any", function)).parameters
    return _Takes(has_callbacks, names[0] if names else "")

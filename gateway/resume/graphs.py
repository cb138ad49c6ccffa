"""Find the graph that a setting names and make it ready to run under our care."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard, cast

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel

from gateway.errors import GraphError
from gateway.resume.strict_state import allowed_types

Graph = Pregel[Any, Any, Any, Any]


async def load_graph(ref: str, base: Path) -> Graph:
    """Import the graph behind ``path/to/file.py:name`` or ``package.module:name``.

    The name may be a compiled graph, a `StateGraph`, or a function without arguments
    that returns one, synchronous or not.

    Args:
        ref: what the settings say.
        base: the folder that a relative path starts from.

    Raises:
        GraphError: one sentence that says what is missing or went wrong.
    """
    place, colon, name = ref.rpartition(":")
    if not (place and colon and name):
        raise GraphError(f"{ref!r} names no graph; write 'folder/file.py:name'.")
    if place.endswith(".py"):
        module = _module_of_file((base / place).resolve(), ref)
    else:
        module = _module_named(place, base, ref)
    try:
        found: object = getattr(module, name)
    except AttributeError:
        raise GraphError(_not_there(module, name, ref)) from None
    return await as_graph(found, ref)


async def as_graph(found: object, ref: str) -> Graph:
    """Turn what a name stands for into a compiled graph.

    Raises:
        GraphError: when it is no graph, or pauses in a way that cannot be told from
            a crash.
    """
    if callable(found) and not _is_graph(found):
        found = await _made_by(found, ref)
    found = _compiled(found)
    if not _is_compiled(found):
        raise GraphError(
            f"{ref!r} is a {type(found).__name__}, not a graph; name what "
            "create_agent(...) or StateGraph(...).compile() returned, or a function "
            "without arguments that returns it."
        )
    if found.interrupt_before_nodes or found.interrupt_after_nodes:
        raise GraphError(
            f"{ref!r} is compiled with interrupt_before or interrupt_after. Such a "
            "pause cannot be told from a crash, so it would be run through; put the "
            "tools behind ApprovalMiddleware instead."
        )
    return found


def attached(graph: Graph, saver: BaseCheckpointSaver[Any]) -> Graph:
    """Return a copy of a graph that keeps its threads in this checkpointer.

    Only types that the graph's own state declares are built when a checkpoint is
    read; anything else stays plain data.
    """
    strict = saver.with_allowlist(allowed_types(graph))
    return graph.copy(update={"checkpointer": strict})


def _is_graph(found: object) -> bool:
    return isinstance(found, Pregel | StateGraph)


def _is_compiled(found: object) -> TypeGuard[Graph]:
    return isinstance(found, Pregel)


def _compiled(found: Any) -> object:  # noqa: ANN401 - its four type parameters are the user's
    return found.compile() if isinstance(found, StateGraph) else found  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - as above


def _module_of_file(path: Path, ref: str) -> ModuleType:
    if not path.is_file():
        raise GraphError(f"There is no file {str(path)!r}, which {ref!r} names.")
    # The same name at every start: checkpoints refer to classes by module. A name of
    # our own, because a user's bot.py must not stand for our package.
    tail = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    name = f"twokey_graph_{path.stem}_{tail}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise GraphError(f"{str(path)!r} cannot be imported as Python.")
    _reachable(path.parent)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        raise _import_failed(ref, error) from error
    return module


def _module_named(name: str, base: Path, ref: str) -> ModuleType:
    _reachable(base)
    try:
        return importlib.import_module(name)
    except BaseException as error:
        raise _import_failed(ref, error) from error


def _import_failed(ref: str, error: BaseException) -> BaseException:
    if not isinstance(error, Exception | SystemExit):
        return error
    text = f": {error}" if str(error) else ""
    return GraphError(
        f"Importing {ref!r} raised {type(error).__name__}{text}. "
        "Import it on its own to see where."
    )


def _reachable(folder: Path) -> None:
    # As Python does for a script, but last: nothing of the user's hides ours.
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _not_there(module: ModuleType, name: str, ref: str) -> str:
    names = [one for one in vars(module) if not one.startswith("_")]
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "define it there."
    return f"{ref!r}: the module has no {name!r}; {hint}"


async def _made_by(factory: object, ref: str) -> object:
    maker = cast("Any", factory)
    try:
        inspect.signature(maker).bind()
    except (TypeError, ValueError):
        raise GraphError(
            f"{ref!r} is a {type(factory).__name__} that cannot be called without "
            "arguments; name a graph, or a function without arguments that returns one."
        ) from None
    try:
        made = maker()
        return await made if inspect.isawaitable(made) else made
    except Exception as error:
        raise GraphError(
            f"Calling {ref!r} raised {type(error).__name__}: {error}."
        ) from error

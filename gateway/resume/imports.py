"""Import a configured object: ``folder/file.py:name`` or ``package.module:name``."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from twokey.gateway.errors import GraphError
from twokey.gateway.protocol.parameters import signature_of


def named(ref: str, base: Path, *, what: str = "graph") -> object:
    """Return what a setting names, as it stands in its module.

    Args:
        ref: what the settings say.
        base: the folder that a relative path starts from.
        what: what it should be, for the sentences of errors.

    Raises:
        GraphError: one sentence that says what is missing or went wrong.
    """
    place, colon, name = ref.rpartition(":")
    if not (place and colon and name):
        raise GraphError(f"{ref!r} names no {what}; write 'folder/file.py:name'.")
    if place.endswith(".py"):
        module = _module_of_file((base / place).resolve(), ref)
    else:
        module = _module_named(place, base, ref)
    try:
        return getattr(module, name)
    except AttributeError:
        raise GraphError(_not_there(module, name, ref)) from None


async def made_by(factory: object, ref: str, *, what: str = "graph") -> object:
    """Call a function without arguments, synchronous or not, that makes something.

    Raises:
        GraphError: when it needs arguments, or raises.
    """
    maker = cast("Any", factory)
    try:
        # Asked before the call: a TypeError inside the function would look the same.
        signature_of(maker).bind()
    except (TypeError, ValueError):
        raise GraphError(
            f"{ref!r} is a {type(factory).__name__} that cannot be called without "
            f"arguments; name a {what}, or a function without arguments that returns "
            "one."
        ) from None
    try:
        made = maker()
        return await made if inspect.isawaitable(made) else made
    except Exception as error:
        raise GraphError(
            f"Calling {ref!r} raised {_described(error)}. Call it on its own to see "
            "where."
        ) from error


def _module_of_file(path: Path, ref: str) -> ModuleType:
    if not path.is_file():
        raise GraphError(
            f"There is no file {str(path)!r}, which {ref!r} names. Correct the name; a "
            "relative one starts at the folder of the settings file."
        )
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
    # Before it runs, as `import` does: dataclasses and pydantic look up their module.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        # Or the next load would get half a module.
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
    # A module that calls sys.exit() must not end the gateway.
    if not isinstance(error, Exception | SystemExit):
        return error
    return GraphError(
        f"Importing {ref!r} raised {_described(error)}. Import it on its own to see "
        "where."
    )


def _described(error: BaseException) -> str:
    """Return type and text, without the full stop that a sentence adds."""
    text = f": {error}".rstrip(".") if str(error) else ""
    return f"{type(error).__name__}{text}"


def _reachable(folder: Path) -> None:
    # As Python does for a script, but last: nothing of the user's hides ours.
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _not_there(module: ModuleType, name: str, ref: str) -> str:
    names = [one for one in vars(module) if not one.startswith("_")]
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "define it there."
    return f"{ref!r}: the module has no {name!r}; {hint}"

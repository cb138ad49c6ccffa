"""Check before submission that a function accepts an action's arguments as keywords.

A step is approved by people and then called with keyword arguments. A mistake in the
signature has to show before anybody is asked, not after the approval.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from twokey.gateway.errors import BadStep
from twokey.gateway.protocol.parameters import signature_of
from twokey.gateway.protocol.strict_json import JsonObject


def check(run: Callable[..., Any], args: JsonObject, tool: str) -> None:
    """Refuse a function that cannot be called with a step's arguments.

    Raises:
        BadStep: names the function, the argument and what to change.
    """
    problem = binding_problem(run, args)
    if problem:
        raise BadStep(
            f"The step {tool!r} was not put to anybody: {problem}. `run` is called "
            "with one keyword argument for each member of `args`; give both the same "
            "names, or take them all: run=lambda **args: ..."
        )


def check_synchronous(run: Callable[..., Any], tool: str) -> None:
    """Refuse a coroutine function where nothing would await it.

    Raises:
        BadStep: says what to use instead.
    """
    # An object with an asynchronous `__call__` is not a coroutine function itself.
    called = getattr(run, "__call__", run)  # noqa: B004 - its kind is asked, not whether there is one
    if inspect.iscoroutinefunction(run) or inspect.iscoroutinefunction(called):
        raise BadStep(
            f"The step {tool!r} was not put to anybody: {_name(run)} is a coroutine "
            "function, which `require_approval` does not await. Use "
            "`await arequire_approval(...)` in an async node."
        )


def binding_problem(run: Callable[..., Any], args: JsonObject) -> str:
    """Return why a function cannot be called with these keywords; "" when it can."""
    if not callable(run):
        return f"{run!r} is not a function"
    try:
        signature = signature_of(run)
    except (TypeError, ValueError):
        return ""  # some built-in functions do not tell; the call itself will
    try:
        signature.bind(**args)
    except TypeError as error:
        return f"{_name(run)} does not take these arguments ({error})"
    return ""


def _name(run: Callable[..., Any]) -> str:
    return str(getattr(run, "__qualname__", type(run).__qualname__))

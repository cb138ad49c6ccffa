"""Convert a tool's non-exception errors into an exception.

A library that calls ``sys.exit``, or a cancelled task inside the tool, raises an error
that is not an `Exception`. asyncio and LangGraph would treat it as the end of the
process or of the run. It is a failure of the tool.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import signal
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any


class ToolEscape(RuntimeError):
    """A tool called exit or cancelled itself; the text names the error."""


class contained:  # noqa: N801 - used as a function, in `with`
    """Raise `ToolEscape` if a tool inside calls exit or cancels itself.

    An outer cancellation of the task and a signal that ends the process pass unchanged.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Convert the error if the tool caused it."""
        is_own = isinstance(error, asyncio.CancelledError) and not _is_cancelled()
        is_exit = isinstance(error, SystemExit) and not _is_of_a_signal(error)
        if is_own or is_exit:
            said = f": {error}" if str(error) else ""
            raise ToolEscape(f"{type(error).__name__}{said}") from error


def contained_method(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a tool whose escapes are exceptions.

    The check is inside the tool, since LangChain runs the tool in a task. If a task
    raises `SystemExit`, asyncio stops the loop before any caller can catch it.
    """
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def awaited(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - any tool
            with contained():
                return await method(*args, **kwargs)

        return _annotated_as(method, awaited)

    @functools.wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - any tool
        with contained():
            return method(*args, **kwargs)

    return _annotated_as(method, called)


def _annotated_as(
    method: Callable[..., Any], wrapper: Callable[..., Any]
) -> Callable[..., Any]:
    """Give a wrapper the annotations that LangChain uses to inject arguments."""
    # Since Python 3.14, `functools.wraps` copies the function that computes them.
    # Assigned annotations have no such function, and reading lazy ones would evaluate
    # them.
    if getattr(method, "__annotate__", None) is None:
        wrapper.__annotations__ = getattr(method, "__annotations__", {})
    return wrapper


def _is_cancelled() -> bool:
    """Return True if the running task is cancelled, not only a task inside it."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # in a thread without an event loop
        return False
    return task is not None and bool(task.cancelling())


def _is_of_a_signal(error: SystemExit) -> bool:
    """Return True if a signal handler raised the error while the tool was running.

    A process that receives a signal to end has to end.
    """
    handlers = map(signal.getsignal, signal.valid_signals())
    codes = {getattr(one, "__code__", None) for one in handlers} - {None}
    raised_in = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code in codes for frame, _ in raised_in)

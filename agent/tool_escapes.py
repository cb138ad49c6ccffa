"""Turn what a tool raises beside exceptions into one.

A library that calls ``sys.exit``, or a task of the tool itself that was cancelled,
raises what is no `Exception`: asyncio and LangGraph take it for the end of the process,
or of the run. It is a failure of the tool.
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
    """A tool ended its program, or was cancelled by itself; the text says which."""


class contained:  # noqa: N801 - used as a function, in `with`
    """Raise `ToolEscape` where a tool inside ends its program or is cancelled.

    Not where somebody else cancels the task, or a signal ends the process.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Look at what was raised."""
        is_own = isinstance(error, asyncio.CancelledError) and not _is_cancelled()
        is_exit = isinstance(error, SystemExit) and not _is_of_a_signal(error)
        if is_own or is_exit:
            said = f": {error}" if str(error) else ""
            raise ToolEscape(f"{type(error).__name__}{said}") from error


def contained_method(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a tool whose escapes are exceptions.

    Inside the tool, since LangChain runs it in a task: asyncio stops its loop for a
    task that raises `SystemExit`, before anybody can catch it.
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
    """Give a wrapper the annotations by which LangChain knows what to pass to it."""
    # From Python 3.14 on `functools.wraps` copies the function that makes them. There
    # is none where they were assigned, and to ask for the others would evaluate them.
    if getattr(method, "__annotate__", None) is None:
        wrapper.__annotations__ = getattr(method, "__annotations__", {})
    return wrapper


def _is_cancelled() -> bool:
    """Return whether somebody cancels the running task, and not only inside it."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # in a thread
        return False
    return task is not None and bool(task.cancelling())


def _is_of_a_signal(error: SystemExit) -> bool:
    """Return whether the handler of a signal raised it, while the tool happened to run.

    A process that was told to end has to end.
    """
    handlers = map(signal.getsignal, signal.valid_signals())
    codes = {getattr(one, "__code__", None) for one in handlers} - {None}
    raised_in = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code in codes for frame, _ in raised_in)

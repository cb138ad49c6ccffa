"""Set a context variable for the code inside a block.

A call of a tool enters ten such blocks. What `contextlib.contextmanager` makes of a
generator takes four times as long.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Generic, TypeVar

T = TypeVar("T")


class Inside(Generic[T]):
    """Give a variable a value inside a block, and its former one after it.

    Args:
        variable: of the context.
        value: inside the block.
    """

    __slots__ = ("_token", "_variable", "value")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable = variable
        self.value = value
        self._token: Token[T] | None = None

    def __enter__(self) -> T:
        """Set the value, and return it."""
        self._token = self._variable.set(self.value)
        return self.value

    def __exit__(self, *_: object) -> None:
        """Set back the former value."""
        if self._token is not None:
            self._variable.reset(self._token)

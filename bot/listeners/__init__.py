"""One gesture of a person a file; `register` is its only public name."""

from collections.abc import Callable
from typing import Final

from bot.listeners import approve, unknown
from bot.listeners.doors import Doors

LISTENERS: Final[tuple[Callable[[Doors], None], ...]] = (
    approve.register,
    unknown.register,
)
"""In the order in which they are asked; `unknown` takes what nobody took."""

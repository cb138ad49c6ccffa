"""Simulate failures: of a method, and a panic of Rust, which is no `Exception`."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest


class Panic(BaseException):
    """What `pyo3_runtime.PanicException` is, without a library that panics."""


def panic(*_args: object, **_kwargs: object) -> NoReturn:
    """Panic at every call."""
    raise Panic("unwrap failed")


async def apanic(*_args: object, **_kwargs: object) -> NoReturn:
    """Panic once it is awaited."""
    panic()


def failing(
    patch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    error: BaseException,
    *,
    times: float = float("inf"),
) -> list[str]:
    """Make an async method raise an error as often as this, and work afterwards.

    Returns:
        A list to which each call adds the name of the method.
    """
    real, tries = getattr(owner, name), list[str]()

    async def tried(*args: Any, **named: Any) -> Any:
        tries.append(name)
        if len(tries) <= times:
            raise error
        return await real(*args, **named)

    patch.setattr(owner, name, tried)
    return tries

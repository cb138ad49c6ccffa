"""Simulate a panic of a library in Rust, which is no `Exception`."""

from __future__ import annotations

from typing import NoReturn


class Panic(BaseException):
    """What `pyo3_runtime.PanicException` is, without a library that panics."""


def panic(*_args: object, **_kwargs: object) -> NoReturn:
    """Panic at every call."""
    raise Panic("unwrap failed")


async def apanic(*_args: object, **_kwargs: object) -> NoReturn:
    """Panic once it is awaited."""
    panic()

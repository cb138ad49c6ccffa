"""The list of guarantees, and the run that proves each of them.

A guarantee is an async function whose docstring is the proven sentence. It attacks a
scratch tenant and raises `Broken` if the attack succeeds. Any other error also counts
as broken: a guarantee that could not be checked is not proven.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from keyturn.cli.verify.scratch import Scratch
from keyturn.gateway.errors import KeyturnError
from keyturn.gateway.protocol.records import Record

LONGEST_S = 20.0
"""Time limit of one guarantee."""

Check = Callable[[Scratch], Awaitable[None]]


class Broken(Exception):
    """An attack succeeded, or an allowed act failed; the text is the reason."""


class Proof(Record):
    """The result of one guarantee; ``broken`` is the reason, empty if it holds."""

    name: str
    group: str
    sentence: str
    broken: str = ""


GUARANTEES: dict[str, tuple[Proof, Check]] = {}
"""All guarantees by name, in the order of the table, with the proof if they hold."""


def guarantee(group: str) -> Callable[[Check], Check]:
    """Return a decorator that adds a function to the guarantees of a group."""

    def add(check: Check) -> Check:
        name = getattr(check, "__name__", "")
        sentence = (check.__doc__ or "").partition("\n")[0]
        GUARANTEES[name] = (Proof(name=name, group=group, sentence=sentence), check)
        return check

    return add


def expect(condition: object, reason: str) -> None:
    """Raise `Broken` with a reason unless the condition is true."""
    if not condition:
        raise Broken(reason)


def expect_is(found: object, kind: type) -> None:
    """Raise `Broken` unless an outcome has the expected type."""
    wanted = kind.__name__
    expect(isinstance(found, kind), f"It is {type(found).__name__}, not {wanted}.")


async def prove(scratch: Scratch, name: str) -> Proof:
    """Prove one guarantee of the list."""
    return await prove_by(scratch, *GUARANTEES[name])


async def prove_by(scratch: Scratch, proof: Proof, check: Check) -> Proof:
    """Prove one guarantee by its check."""
    try:
        async with asyncio.timeout(LONGEST_S):
            await check(scratch)
    except (Broken, KeyturnError) as error:
        return proof.with_(broken=" ".join(str(error).split()))
    except Exception as error:  # noqa: BLE001 - it is not proven then
        why = f"It could not be checked: {type(error).__name__}: {error}"
        return proof.with_(broken=why)
    return proof

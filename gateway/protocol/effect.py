"""What a call does to the world; of several, the gravest counts."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Effect(StrEnum):
    """What a call does to the world, from least to most.

    ``read`` changes nothing, ``reversible`` can be taken back, ``irreversible`` cannot.
    A tool without a class of its own counts as irreversible.
    """

    READ = "read"
    REVERSIBLE = "reversible"
    IRREVERSIBLE = "irreversible"


_RANKS = {effect: rank for rank, effect in enumerate(Effect)}


def gravest(effects: Iterable[Effect]) -> Effect:
    """Return what several calls do together; ``irreversible`` for none."""
    # By rank: as texts, "irreversible" < "read".
    return max(effects, key=_RANKS.__getitem__, default=Effect.IRREVERSIBLE)

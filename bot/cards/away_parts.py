"""Say what a list lacks: shards that do not answer, and what a newer version wrote."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from twokey.bot.text import fit
from twokey.bot.text_types import Label, label

_AGENTS_CHARS = 300

NEWER = label(
    "⚠️ Incomplete: calls wait that a newer version of Twokey wrote, and this version "
    "cannot show them. Nothing of them is lost: they can be decided as soon as the "
    "newer version runs again. Please tell the gateway's operator."
)
"""What a list says where it leaves out what a newer version wrote."""


def incomplete(shards: Collection[str], of: int, agents: Sequence[str]) -> Label:
    """Return what a list says of what it lacks.

    Args:
        shards: those that do not answer.
        of: how many the tenant has.
        agents: those whose calls are there, as far as they are known here.
    """
    names = fit(", ".join(agents), _AGENTS_CHARS)
    whose = f"{names}, and of other agents there," if names else "some agents"
    return label(
        f"⚠️ Incomplete: {len(shards)} of {of} shards of the store do not answer, so "
        f"calls of {whose} may be missing."
    )

"""Describe the marks of calls in words, for cards, forms and confirmations.

The names of arguments are untrusted: they are on one line and cut.
"""

from __future__ import annotations

from collections.abc import Container

from keyturn.bot.cards.listing import one_line
from keyturn.bot.cards.refs import calls_named
from keyturn.bot.text import fit
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.policy.marks import Mark, marks_of

_NAME = 40
_CALLS = 60
_LINE = 180


def mark_text(mark: Mark) -> str:
    """Describe a mark without its call: untrusted text."""
    name, other = map(_named, (mark.name, mark.other))
    calls = fit(calls_named(mark.like).text, _CALLS) if mark.like else ""
    return mark.kind.format(
        name=name,
        other=other,
        of=f" of the same {other}" if mark.other else "",
        usual=mark.usual,
        calls=calls,
        like=f": see {calls}" if calls else "",
    )


def _named(name: str) -> str:
    """Return the name of an argument; prose in a name is quoted."""
    # `marks` writes "host of link" for a part of an argument.
    part, _, whole = name.rpartition(" of ")
    is_plain = part in {"", "host", "domain"} and not set(whole) & set(" \n\t")
    shown = fit(one_line(name), _NAME)
    return shown if is_plain else f'"{shown}"'


def mark_lines(approval: Approval, among: Container[int] | None = None) -> list[str]:
    """Describe the marks of a card, one line for each kind: untrusted texts.

    Args:
        approval: the calls of the card.
        among: indexes of the calls to describe; None for all.
    """
    found: dict[str, list[int]] = {}
    for mark in marks_of(approval):
        if among is None or mark.index in among:
            found.setdefault(mark_text(mark), []).append(mark.index)
    named = {text: calls_named(calls).text for text, calls in found.items()}
    return [
        fit(f"{fit(calls, _CALLS).capitalize()}: {text}.", _LINE)
        for text, calls in named.items()
    ]

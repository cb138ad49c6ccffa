"""Write what `approve.lua` is told of a precomputed approval: one text after another.

Only of the plain change: one call waited and is authorized. What is told of another one
is JSON, see `next_version.lua`: nothing of it may be left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, cast

from twokey.gateway.approvals.record import Approval
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.store.connection import Argument
from twokey.gateway.store.filling import Fill, Filling, Piece, Pieces
from twokey.gateway.store.keys import KEEP_MS, KeptText, Keys
from twokey.gateway.store.next_version import script_keys_of
from twokey.gateway.store.record_heads import is_raw
from twokey.gateway.store.record_seals import SEAL
from twokey.gateway.store.script import Keyed, Script
from twokey.gateway.store.templates import Later, Template

APPROVE = Script("approve")

_BETWEEN: Final = "\0"
"""Stands between texts, and in none of them: moments are checked by `is_plain`."""

_TOLD: Final = frozenset(
    {
        "id", "rev", "seen_ms", "before_ms", "as_read", "states", "uses", "job",
        "rejection", "queues", "fields", "events", "precedents",
    }
)  # fmt: skip
_ASSUMED: Final = ("place", "display", "alone", "delegations", "unseen")
_ENDS: Final = {"ends": True}
_NO_USES: Final[Mapping[str, object]] = {"rows": "[]", "totals": []}

_Text = str | int | Template | Later | Pieces


class _AnotherShape(Exception):
    """The change says what `approve.lua` knows nothing of."""


@dataclass(frozen=True)
class ApproveTexts:
    """What `approve.lua` is told of one approval, but for what is of the moment.

    Attributes:
        script: is told it.
        _fill: what was precomputed of it.
    """

    script: Keyed
    _fill: Fill

    def told(
        self,
        texts: Sequence[str],
        *,
        unfrozen: Sequence[str],
        assumed: Mapping[str, object],
        kept: Sequence[KeptText],
    ) -> list[Argument] | None:
        """Return all that the script is told; None where it compares less than that.

        Args:
            texts: what the moment says, and what is made of that.
            unfrozen: from `compared`.
            assumed: from `assumptions`.
            kept: texts to keep beside the record.
        """
        if not assumed.keys() <= {*_ASSUMED}:
            return None
        return [
            *self._fill(texts).split(_BETWEEN),
            *[cast("str", assumed.get(name, "")) for name in _ASSUMED],
            len(unfrozen),
            *unfrozen,
            *[one for row in kept for one in row],
        ]


def approve_texts(
    keys: Keys, before: Approval, document: Mapping[str, object], filling: Filling
) -> ApproveTexts | None:
    """Return what is told of a change; None where `approve.lua` cannot write it.

    Args:
        keys: of the approval's shard.
        before: the approval.
        document: what `change.lua` is told, without what is empty.
        filling: the places of its texts.
    """
    try:
        rows = [_pieces(one) for one in _in_order(document)]
    except _AnotherShape:
        return None
    if any(isinstance(one, str) and _BETWEEN in one for row in rows for one in row):
        return None
    pieces = [one for row in rows for one in (_BETWEEN, *row)]
    of_change = script_keys_of(keys, before)
    named = {name: of_change[name] for name in APPROVE.keys}
    return ApproveTexts(APPROVE.with_keys(**named), filling.compiled(pieces[1:]))


def _in_order(document: Mapping[str, object]) -> list[_Text]:
    """Return what the script is told, in its order.

    Raises:
        _AnotherShape: when it would not be told all of it.
    """
    needed = _TOLD - {"uses", "queues", "precedents"}
    if not needed <= document.keys() <= _TOLD or document["rejection"] != _ENDS:
        raise _AnotherShape
    as_read = dict(cast("Mapping[str, _Text]", document["as_read"]))
    fields = dict(cast("Mapping[str, _Text | bool]", document["fields"]))
    seal_read, seal = as_read.pop(SEAL, ""), fields.pop(SEAL, "")
    names = fields.keys() | as_read.keys()
    if not (seal_read and seal) or any(map(is_raw, names)):
        raise _AnotherShape
    written = [one for row in fields.items() for one in row]
    leaves, precedents = _leaves(document), _precedents(document)
    events = cast("Sequence[Pieces]", document["events"])
    found = [
        document["id"],
        document["rev"],
        document["seen_ms"],
        document["before_ms"],
        _index(document),
        KEEP_MS,
        document["job"],
        seal_read,
        seal,
        len(as_read),
        len(written),
        len(leaves),
        len(precedents),
        len(events),
        *as_read.keys(),
        *as_read.values(),
        *written,
        *leaves,
        *chain.from_iterable(precedents),
        *chain.from_iterable(map(_text_and_seal, events)),
    ]
    return cast("list[_Text]", found)


def _index(document: Mapping[str, object]) -> str:
    states = cast("Mapping[str, str]", document["states"])
    uses = cast("Mapping[str, object]", document.get("uses", {}))
    if [*states.values()] != [ItemState.AUTHORIZED]:
        raise _AnotherShape
    if any(one != _NO_USES for one in uses.values()):
        raise _AnotherShape
    [index] = states
    return index


def _leaves(document: Mapping[str, object]) -> Sequence[str]:
    queues = cast("Mapping[str, Sequence[str]]", document.get("queues", {}))
    if queues.get("enters"):
        raise _AnotherShape
    return queues.get("leaves", ())


def _precedents(document: Mapping[str, object]) -> Sequence[Sequence[_Text]]:
    return cast("Sequence[Sequence[_Text]]", document.get("precedents", ()))


def _text_and_seal(event: Pieces) -> tuple[Pieces, Pieces]:
    *text, _newline, seal = event.pieces
    return Pieces(text), Pieces([seal])


def _pieces(one: object) -> Sequence[Piece]:
    match one:
        case bool():
            # A field that is deleted, or a precedent that is one no more.
            raise _AnotherShape
        case str():
            return (one,)
        case int():
            return (str(one),)
        case Later():
            return (one,)
        case Template() | Pieces():
            return one.pieces
        case _:
            raise _AnotherShape

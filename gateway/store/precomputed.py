"""A change that was computed before somebody makes it, but for who and when.

It is learned from two changes as they would be written (`templates`). What is left to
do is to fill in a few texts, to seal, and to compare what the script compares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from twokey.gateway.approvals.record import Approval
from twokey.gateway.store.atomic_write import Assumed
from twokey.gateway.store.audit_seals import sealed_text
from twokey.gateway.store.connection import Connection
from twokey.gateway.store.freeze_list import compared
from twokey.gateway.store.keys import KeptText, Keys
from twokey.gateway.store.next_version import (
    Unsealed,
    assumptions,
    script_keys_of,
    without_empty,
)
from twokey.gateway.store.precedents import Row, encrypted_rows
from twokey.gateway.store.record_seals import (
    SEAL,
    RecordSeals,
    Stored,
    content_of,
    row,
    sealed_names,
)
from twokey.gateway.store.templates import (
    Moment,
    NotLearned,
    Samples,
    Template,
    filled,
)

_OF_THE_MOMENT = frozenset({"unfrozen", "assumed", "kept"})
"""What scripts compare or keep, which is not precomputed."""


@dataclass(frozen=True)
class Beside:
    """What belongs to a change and is of the moment in which it is written.

    Attributes:
        assumed: what has to be as it was assumed to be.
        unfrozen: names of which none may be frozen.
        kept: texts to keep beside the record.
    """

    assumed: Assumed
    unfrozen: Sequence[str] = ()
    kept: Sequence[KeptText] = ()


@dataclass(frozen=True)
class Precomputed:
    """One change of one version of an approval.

    Attributes:
        before: the version.
        script_keys: keys of the change, by their names in its script.
        _constant: what the script is told in any case.
        _told: what else it is told.
        _fields: of the head, to write in any case.
        _texts: what else is written into which field.
        _events: the text of each, and its ``rev``.
        _precedents: rows.
        _content: what is sealed: rows, and names of fields of which there is a text.
        _pinned: of the record.
    """

    before: Approval
    script_keys: Mapping[str, str]
    _constant: Mapping[str, object]
    _told: Mapping[str, object]
    _fields: Mapping[str, str | bool]
    _texts: Mapping[str, Template]
    _events: object
    _precedents: object
    _content: Sequence[bytes | str]
    _pinned: bytes

    def told(
        self, conn: Connection, keys: Keys, moment: Moment, beside: Beside
    ) -> tuple[dict[str, object], bytes]:
        """Return what the script is told, and the seal of the next version."""
        before = self.before
        texts = {name: one.filled(moment) for name, one in self._texts.items()}
        rows = [
            one if isinstance(one, bytes) else row(one, texts[one].encode())
            for one in self._content
        ]
        content = content_of(rows, self._pinned)
        seal = RecordSeals(conn).of_content(before.id, content)
        events = cast("list[tuple[str, int]]", filled(self._events, moment))
        precedents = cast("list[Row]", filled(self._precedents, moment))
        values = {
            **self._constant,
            **{name: filled(one, moment) for name, one in self._told.items()},
            "fields": {**self._fields, **texts, SEAL: seal.hex()},
            "events": [sealed_text(conn, keys, one, rev=rev) for one, rev in events],
            "precedents": encrypted_rows(conn, precedents),
            "unfrozen": compared(conn, keys, before.tenant, beside.unfrozen),
            "assumed": assumptions(keys, before, beside.assumed, large={}),
            "kept": beside.kept,
        }
        return without_empty(values), seal


def precomputed(
    keys: Keys, before: Approval, samples: Samples, one: Unsealed, other: Unsealed
) -> Precomputed | None:
    """Return a change as both samples of it are; None where that cannot be learned."""
    try:
        told = {
            name: samples.learned(one.values.get(name), other.values.get(name))
            for name in one.values.keys() | other.values.keys()
            if name not in _OF_THE_MOMENT
        }
        fields = samples.learned(dict(one.fields), dict(other.fields))
        events = samples.learned(one.events, other.events)
        precedents = samples.learned(one.precedents, other.precedents)
        found = cast("dict[str, str | bool | Template]", fields)
        texts = {name: one for name, one in found.items() if isinstance(one, Template)}
        _ensure_as_written(one, texts)
        _ensure_as_written(other, texts)
        _ensure_same(one.stored, other.stored, texts)
    except NotLearned:
        return None
    return Precomputed(
        before,
        script_keys_of(keys, before),
        {name: value for name, value in told.items() if value is one.values.get(name)},
        {
            name: value
            for name, value in told.items()
            if value is not one.values.get(name)
        },
        {name: value for name, value in one.fields.items() if name not in texts},
        texts,
        events,
        precedents,
        [
            name if name in texts else row(name, one.stored.head[name])
            for name in sealed_names(one.stored.head)
        ],
        one.stored.pinned,
    )


def _ensure_as_written(sample: Unsealed, texts: Mapping[str, Template]) -> None:
    """Refuse a text that is not stored as scripts are told it."""
    head = sample.stored.head
    names = set(sealed_names(head))
    for name in texts:
        written = sample.fields[name]
        is_text = isinstance(written, str) and name in names
        if not is_text or head[name] != str(written).encode():
            raise NotLearned


def _ensure_same(one: Stored, other: Stored, texts: Mapping[str, Template]) -> None:
    """Refuse samples that differ in more than these texts."""
    names = one.head.keys() | other.head.keys()
    is_same = all(one.head.get(n) == other.head.get(n) for n in names - texts.keys())
    if not is_same or one.pinned != other.pinned:
        raise NotLearned

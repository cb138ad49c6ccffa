"""A change that was computed before somebody makes it, but for who and when.

It is learned from two changes as they would be written (`templates`). What is left to
do is to fill in a few texts, to seal, and to compare what the script compares. What the
script is told is one text of JSON with places, and is not written anew each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

from pydantic_core import to_json

from twokey.gateway.approvals.record import Approval
from twokey.gateway.store.agent_load import FAILED_MS
from twokey.gateway.store.approve_texts import ApproveTexts, approve_texts
from twokey.gateway.store.atomic_write import Assumed, Loaded
from twokey.gateway.store.audit_seals import entry_seal
from twokey.gateway.store.connection import Argument, Connection, Reply
from twokey.gateway.store.filling import (
    Fill,
    Filling,
    Made,
    Pieces,
    json_pieces,
    pieces_of,
)
from twokey.gateway.store.freeze_list import compared
from twokey.gateway.store.keys import KEEP_MS, KeptText, Keys
from twokey.gateway.store.next_version import (
    CHANGE,
    FENCED_CHANGE,
    Unsealed,
    assumptions,
    script_keys_of,
    without_empty,
)
from twokey.gateway.store.precedents import seal_of_body
from twokey.gateway.store.record_seals import (
    SEAL,
    Stored,
    begin_of_content,
    row,
    seal_of_content,
    sealed_names,
)
from twokey.gateway.store.resume_jobs import NO_OFFER
from twokey.gateway.store.script import Prepared
from twokey.gateway.store.templates import (
    Moment,
    NotLearned,
    Samples,
    Template,
)

_Event = tuple[str | Template, int]
"""The text of an event, and its ``rev``."""

_Precedent = tuple[str, str, str | bool, str | Template, int]
"""A row of precedents as it was learned."""

_Sealed = bytes | tuple[str, Fill]
"""A piece of what a seal is over: as it is, or a field with what fills it in."""


class _OfTheMoment(NamedTuple):
    """What scripts compare or keep, which is not precomputed, by its names there."""

    unfrozen: Sequence[str]
    assumed: Mapping[str, object]
    kept: Sequence[KeptText]


@dataclass(frozen=True, slots=True)
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


class MadeOnce:
    """Makes a record once, at whatever times of the store it is asked for."""

    def __init__(self, make: Callable[[int], Loaded | None]) -> None:
        self._make: Callable[[int], Loaded | None] | None = make
        self._made: Loaded | None = None

    def __call__(self, at_ms: int) -> Loaded | None:
        """Return the record as it stands at a time."""
        if self._make is not None:
            self._made, self._make = self._make(at_ms), None
        return self._made and replace(self._made, now_ms=at_ms)


@dataclass(frozen=True, slots=True)
class Precomputed:
    """One change of one version of an approval.

    Attributes:
        before: the version.
        _script: writes it, given what it is told; None: it is fenced.
        plain: what `approve.lua` is told, which takes half as long; None where the
            change says more than that knows of.
        _places: what its texts say of a moment.
        _document: what the script is told but for what is of the moment: JSON without
            its last brace.
        _content: what is sealed, in its pieces: as it is, or the name of a field and
            what is written into it.
        _events: each with its ``rev``.
        _precedents: the body of each, with its key and call.
    """

    before: Approval
    _script: Prepared | None
    plain: ApproveTexts | None
    _places: Filling
    _document: Fill
    _content: Sequence[_Sealed]
    _events: Sequence[tuple[Fill, int]]
    _precedents: Sequence[tuple[Fill, str, str]]

    @property
    def is_fenced(self) -> bool:
        """Return whether the holder of a thread's lease writes it, who resumes none."""
        return self._script is None

    def told(
        self, conn: Connection, keys: Keys, moment: Moment, beside: Beside
    ) -> tuple[bytes, bytes]:
        """Return what `change.lua` is told, and the seal of the next version."""
        texts, seal = self._filled(conn, keys, moment)
        return self._json(texts, self._of_the_moment(conn, keys, beside)), seal

    async def write(
        self, conn: Connection, keys: Keys, moment: Moment, beside: Beside
    ) -> tuple[list[Reply], bytes]:
        """Return the answer of the script that writes it, and the seal.

        Raises:
            StoreUnavailable: when it is not known to be written.
        """
        texts, seal = self._filled(conn, keys, moment)
        values = self._of_the_moment(conn, keys, beside)
        if self.plain is not None:
            plain = self.plain.told(
                texts,
                unfrozen=values.unfrozen,
                assumed=values.assumed,
                kept=values.kept,
            )
            if plain is not None:
                return await self.plain.script(conn, plain), seal
        told = self._json(texts, values)
        if self._script is not None:
            return await self._script(conn, told), seal
        reply = await FENCED_CHANGE(
            conn, change=told, **_beside_change(keys, self.before)
        )
        return reply, seal

    def _filled(
        self, conn: Connection, keys: Keys, moment: Moment
    ) -> tuple[list[str], bytes]:
        """Return what a moment says and the seals of that, and the seal of the head."""
        before, texts = self.before, self._places.texts(moment)
        content = [
            one if isinstance(one, bytes) else row(one[0], one[1](texts).encode())
            for one in self._content
        ]
        seal = seal_of_content(conn, before.id, b"".join(content))
        made = [seal.hex()]
        made += [
            entry_seal(conn, keys, fill(texts), rev=rev) for fill, rev in self._events
        ]
        made += [
            seal_of_body(conn, key, call, fill(texts))
            for fill, key, call in self._precedents
        ]
        return [*texts, *made], seal

    def _of_the_moment(
        self, conn: Connection, keys: Keys, beside: Beside
    ) -> _OfTheMoment:
        before = self.before
        return _OfTheMoment(
            compared(conn, keys, before.tenant, beside.unfrozen),
            assumptions(keys, before, beside.assumed, large={}),
            beside.kept,
        )

    def _json(self, texts: Sequence[str], values: _OfTheMoment) -> bytes:
        of_the_moment = to_json(without_empty(values._asdict()))[1:]
        own = self._document(texts).encode()
        separator = b"," if len(of_the_moment) > 1 else b""
        return b"%b%b%b" % (own, separator, of_the_moment)


def precomputed(
    keys: Keys,
    before: Approval,
    samples: Samples,
    one: Unsealed,
    other: Unsealed,
    *,
    is_fenced: bool = False,
) -> Precomputed | None:
    """Return a change as both samples of it are; None where that cannot be learned."""
    try:
        told = {
            name: samples.learned(one.values.get(name), other.values.get(name))
            for name in one.values.keys() | other.values.keys()
            if name not in _OfTheMoment._fields
        }
        told["fields"] = samples.learned(dict(one.fields), dict(other.fields))
        events = samples.learned(one.events, other.events)
        precedents = samples.learned(one.precedents, other.precedents)
        texts = _sealed_texts(samples, one.stored, other.stored)
    except (NotLearned, UnicodeDecodeError):
        return None
    return _compiled(
        keys, before, one.stored, None if is_fenced else _script(keys, before),
        told, texts, cast("list[_Event]", events),
        cast("list[_Precedent]", precedents),
    )  # fmt: skip


def _compiled(
    keys: Keys,
    before: Approval,
    after: Stored,
    script: Prepared | None,
    told: Mapping[str, object],
    texts: Mapping[str, Template],
    events: Sequence[_Event],
    precedents: Sequence[_Precedent],
) -> Precomputed:
    """Return what was learned with one text for all that the script is told."""
    bodies = [(key, call, body) for key, call, _, body, _ in precedents if body]
    made = [Made(place) for place in range(1 + len(events) + len(bodies))]
    filling, seals = Filling(len(made)), iter(made)
    fields = cast("Mapping[str, str | bool | Template]", told["fields"])
    # In the order in which they are made.
    document: dict[str, object] = {
        **told,
        "fields": {**fields, SEAL: Pieces((next(seals),))},
        "events": [Pieces((*pieces_of(body), "\n", next(seals))) for body, _ in events],
        "precedents": [
            (*what, body and Pieces((next(seals), *pieces_of(body))), keep_ms)
            for *what, body, keep_ms in precedents
        ],
    }
    document = without_empty(document)
    return Precomputed(
        before,
        script,
        approve_texts(keys, before, document, filling) if script else None,
        filling,
        filling.compiled(json_pieces(document)[:-1]),
        _sealed(
            after,
            {name: filling.compiled(one.pieces) for name, one in texts.items()},
        ),
        [(filling.compiled(pieces_of(body)), rev) for body, rev in events],
        [(filling.compiled(pieces_of(body)), key, call) for key, call, body in bodies],
    )


def _sealed(after: Stored, texts: Mapping[str, Fill]) -> list[_Sealed]:
    """Return what is sealed of a record, with as few pieces as there can be."""
    names = sealed_names(after.head)
    # Between these pieces stand rows of the same length in any case.
    found: list[_Sealed] = [begin_of_content(len(names))]
    for name in names:
        last = found[-1]
        if name in texts:
            found.append((name, texts[name]))
        elif isinstance(last, bytes):
            found[-1] = last + row(name, after.head[name])
        else:
            found.append(row(name, after.head[name]))
    return [*found, after.pinned]


def _script(keys: Keys, before: Approval) -> Prepared:
    return CHANGE.prepared("change", **_beside_change(keys, before))


def _beside_change(
    keys: Keys, before: Approval
) -> dict[str, Argument | Sequence[Argument]]:
    """Return what `change.lua` is given but for the change; nobody takes a job."""
    return {
        **script_keys_of(keys, before),
        "thread": NO_OFFER.thread,
        "failed_ms": FAILED_MS,
        "keep_ms": KEEP_MS,
        "taker": NO_OFFER.taker,
    }


def _sealed_texts(samples: Samples, one: Stored, other: Stored) -> dict[str, Template]:
    """Return what is sealed of a head where both samples differ.

    Raises:
        NotLearned: they differ in what is not known of them.
    """
    names = sealed_names(one.head)
    if names != sealed_names(other.head) or one.pinned != other.pinned:
        raise NotLearned
    pairs = {name: (one.head[name], other.head[name]) for name in names}
    return {
        name: samples.text(own.decode(), their.decode())
        for name, (own, their) in pairs.items()
        if own != their
    }

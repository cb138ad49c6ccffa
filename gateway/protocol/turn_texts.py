"""Check the texts of a turn: in the gateway, and before one is sent there."""

from __future__ import annotations

from collections.abc import Iterator

from twokey.gateway.errors import NotAllowed
from twokey.gateway.protocol.wire import Turn


def check_texts(turn: Turn) -> None:
    """Check what names a turn and its calls, and what is said of them.

    Raises:
        NotAllowed: when the turn is not named, or a string is not Unicode.
    """
    for name in ("agent", "thread", "message_id"):
        if not getattr(turn.ref, name):
            raise NotAllowed(
                f"A turn was submitted with {name}='', so no call was evaluated or "
                "ran. Submit it with the name that it has."
            )
    # All at once: two halves that come together here are no pair.
    if _is_unicode("".join(_all_texts(turn))):
        return
    where, text = next(row for row in _texts(turn) if not _is_unicode(row[1]))
    raise NotAllowed(
        f"The {where} {text!r} holds half of a surrogate pair, so nothing of this turn "
        "was evaluated or ran. Submit it as Unicode."
    )


def _all_texts(turn: Turn) -> list[str]:
    """Return what `_texts` names, in the same order; nearly every turn is sound."""
    ref = turn.ref
    texts = [*ref.names.values()]
    for run in (ref.nested_in, turn.enclosing_run):
        if run is not None:
            texts += (run.agent, run.thread)
    texts.append(turn.says)
    for call in turn.calls:
        texts += (call.tool, call.tool_call_id, call.problem)
        if call.hint is not None:
            texts.append(call.hint.description)
    texts += turn.schemas
    return texts


def _texts(turn: Turn) -> Iterator[tuple[str, str]]:
    yield from turn.ref.names.items()
    for run in (turn.ref.nested_in, turn.enclosing_run):
        if run is not None:
            yield "agent outside", run.agent
            yield "thread outside", run.thread
    yield "text", turn.says
    for call in turn.calls:
        yield from (("tool", call.tool), ("call id", call.tool_call_id))
        yield "problem", call.problem
        if call.hint is not None:
            yield "description", call.hint.description
    yield from (("schema of the tool", tool) for tool in turn.schemas)


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True

"""Remember how threads pause, so that a pause that is found again is not worked out.

To tell where a thread stands, LangGraph prepares all tasks that come next. Which of
them ask people, and whether others were cut off beside them, follows from the
checkpoint and from which tasks wrote questions beside it. That is kept of a thread that
waits; its newest checkpoint and what it asks are read each time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, cast

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import INTERRUPT
from langgraph.types import Interrupt

from twokey.gateway.resume.runner import ThreadState
from twokey.gateway.resume.thread_states import INPUT_KEY, pending_of

MOST_THREADS: Final = 10_000
"""Of how many threads it is kept at most; each takes about a kilobyte."""


@dataclass(frozen=True, slots=True)
class _Pause:
    """How a thread pauses.

    Attributes:
        askers: the tasks that ask, each with the ids of its questions.
        order: the ids of all questions as they are shown.
        state: where it stands, without its questions.
    """

    askers: frozenset[tuple[str, str]]
    order: tuple[str, ...]
    state: ThreadState


class KnownPauses:
    """How the threads of one graph pause."""

    def __init__(self) -> None:
        self._by_thread = OrderedDict[str, _Pause]()

    def __contains__(self, thread: str) -> bool:
        """Return whether it is kept how a thread pauses."""
        return thread in self._by_thread

    def keep(
        self, thread: str, found: CheckpointTuple | None, state: ThreadState
    ) -> None:
        """Keep how a thread pauses, if nothing but questions is beside its checkpoint.

        Args:
            thread: its name.
            found: its newest checkpoint.
            state: where the thread stands by it.
        """
        self.forget(thread)
        questions = None if found is None else _questions(found)
        order = tuple(one.id for one in state.pending)
        if not questions or sorted(order) != sorted(
            one.id for one in questions.values()
        ):
            return
        plain = replace(state, pending=())
        self._by_thread[thread] = _Pause(frozenset(questions), order, plain)
        if len(self._by_thread) > MOST_THREADS:
            self._by_thread.popitem(last=False)

    def forget(self, thread: str) -> None:
        """Forget a thread, which goes on or is gone."""
        self._by_thread.pop(thread, None)

    def again(self, thread: str, found: CheckpointTuple | None) -> ThreadState | None:
        """Return where a thread stands; None when it is not as it was kept."""
        pause = self._by_thread.get(thread)
        if pause is None or found is None:
            return None
        questions = _questions(found)
        if (
            questions is None
            or pause.state.checkpoint != found.checkpoint["id"]
            or pause.askers != questions.keys()
        ):
            return None
        by_id = {one.id: pending_of(one) for one in questions.values()}
        metadata = cast("Mapping[str, object]", found.metadata)
        return replace(
            pause.state,
            pending=tuple(by_id[one] for one in pause.order),
            taken=str(metadata.get(INPUT_KEY, "")),
        )


def _questions(found: CheckpointTuple) -> dict[tuple[str, str], Interrupt] | None:
    """Return the questions beside a checkpoint by task and id; None: there is more."""
    questions: dict[tuple[str, str], Interrupt] = {}
    for task, channel, value in found.pending_writes or ():
        if channel != INTERRUPT or not isinstance(value, list | tuple):
            return None
        for one in cast("list[object]", value):
            if not isinstance(one, Interrupt):
                return None
            questions[task, one.id] = one
    return questions

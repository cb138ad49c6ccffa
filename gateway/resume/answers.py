"""Find available answers to a thread's pending interrupts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from twokey.gateway.approvals.record import Approval
from twokey.gateway.protocol.records import RunRef
from twokey.gateway.resume.questions import Answers, question_of
from twokey.gateway.resume.runner import PendingInterrupt
from twokey.gateway.service.answering import Asked, find_answer
from twokey.gateway.store.store import Store


async def answers_for(
    store: Store,
    agent: str,
    thread: str,
    pending: Sequence[PendingInterrupt],
    read: Mapping[str, Approval] | None = None,
) -> Answers:
    """Collect the answers of all decided items that this thread asks about.

    A question counts only when our own record says that its item belongs to this
    thread's run and to this hash: the question itself is the agent's word.
    ``read`` are approvals by id that were just read.

    Raises:
        GraphError: when the agent gives itself another name than the settings do.
    """
    answers, run = Answers(), RunRef(agent=agent, thread=thread)
    # The calls of a turn share a card: it is read once, not once for each of them.
    cards: dict[str, Approval | None] = {**(read or {})}
    for one in pending:
        question = question_of(one)
        if question is None:
            continue
        asked = Asked(question.kind, question.item_id, question.action_hash)
        found = await find_answer(store, run, asked, cards)
        if found is None:
            continue
        if found.is_lost:
            answers.lost.append(question.item_id)
        if found.is_unknown:
            answers.add(question, found.answer, times=found.times)
        else:
            # After a revocation the same answer is a new one, and not a refused one.
            answers.offer(question, found.answer, one.schema, times=found.times)
    return answers

"""Put the questions of graphs that ask by themselves to people.

A stock graph pauses with LangChain's middleware, or with `interrupt`, and runs the
approved calls by itself. The caller has the thread's lease, so an earlier process that
claimed a call is no longer at work.

A decision is sent once. The checkpoints of the step that gets it name its question, so
a later process knows whether the graph took it. Only a process that dies while the
graph's own node works on a decision leaves the question open; the decision is then sent
again, as LangGraph itself runs an interrupted node again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from keyturn.gateway.dialects import dialects
from keyturn.gateway.dialects.asked import Question
from keyturn.gateway.errors import GraphError, ThreadUnavailable
from keyturn.gateway.protocol import wire
from keyturn.gateway.protocol.http_api import OpenQuestion
from keyturn.gateway.protocol.records import ItemState, RunRef
from keyturn.gateway.resume.hand_over import Claim, Delivery, Ending, HandOver, Shown
from keyturn.gateway.resume.langgraph_local import Runner
from keyturn.gateway.resume.threads import Threads, ThreadState, question_of


class StoppedInside(GraphError):
    """A graph stopped with an error while it worked on a decision.

    A call may have run, so the decision is not sent again.
    """


CANNOT_ASK_AGAIN = (
    "This agent cannot ask again by itself. Send it a message: it then drops this "
    "question."
)
"""LangGraph would run an open question with the answer that it has, and one that is
asked anew together with the other calls of its step, which may have run.
"""


class OwnGates(HandOver):
    """The questions of graphs that ask by themselves, as turns of a gateway.

    The caller has the lease of the thread in every method.

    Args:
        threads: the gateway's records of the threads.
    """

    def __init__(self, threads: Threads) -> None:
        super().__init__(threads.gateway, threads.found, threads.withdraw)
        self._threads = threads

    async def ready(self, run: RunRef, state: ThreadState) -> list[Delivery]:
        """Ask people all questions of a thread; return those to answer now, claimed.

        Raises:
            ThreadUnavailable: another process may be handing one over.
        """
        shown = await self._ask(run, state)
        if not shown:
            return []
        begun = await self._take_back(run, state)
        ready: list[Delivery] = []
        for one in shown:
            decided = await self.decided(one)
            if decided is None or not decided.is_written():
                continue  # `unanswerable` returns it
            decided.is_begun = one.name in begun
            if not await self._is_claimed(decided):
                continue
            ready.append(decided)
            if one.question and one.question.schema is not None:
                # If one of several answers is refused, LangGraph may have run the
                # calls of the others: an answer that it checks is sent alone.
                await self.release(ready[:-1])
                return [decided]
        return ready

    async def waiting(
        self, run: RunRef, state: ThreadState
    ) -> tuple[OpenQuestion, ...]:
        """Return the questions about a thread's calls that people have to decide."""
        return tuple(each for one in await self._ask(run, state) for each in one.asks)

    async def unanswerable(
        self, run: RunRef, state: ThreadState
    ) -> dict[str, Question]:
        """Return the questions that no answer can come for, by id.

        They are unknown, or decided in a way that their format has no word for.
        """
        left = {one.id: one for one in state.pending if question_of(one) is None}
        for one in await self._ask(run, state):
            decided = await self.decided(one)
            if decided is None or decided.is_written():
                left.pop(one.ref.ns, None)
        return left

    async def stopped(
        self, run: RunRef, runner: Runner, ready: Sequence[Delivery], error: Exception
    ) -> None:
        """Record what became of decisions when the step that got them failed.

        Raises:
            StoppedInside: the graph failed while it worked on one of them.
        """
        asked = names_of((await runner.probe(run.thread)).pending)
        inside = [one for one in ready if one.mark in asked]
        for one in ready:
            # Without its question, it failed later.
            failed = Ending("failed", f"{type(error).__name__}: {error}")
            await self.end(one, failed if one in inside else Ending())
        if inside or await runner.stopped_in_tools(run.thread):
            raise StoppedInside(
                f"The agent {run.agent!r} stopped with {type(error).__name__} while it "
                f"worked on a decision in its thread {run.thread!r}. A call may have "
                "run, and Try again could run it a second time: look first. Or send "
                "the agent a message, which drops the call."
            ) from error

    async def settle(self, run: RunRef, runner: Runner, state: ThreadState) -> None:
        """End the calls whose question is no longer open; the thread rests."""
        asked = names_of(state.pending)
        handed = await self._threads.handed(run)
        left = [one for one in handed if one.ctx.message_id not in asked]
        for one in left:
            if one.state is ItemState.HANDING_OVER:
                is_taken = await runner.has_taken_answer(run.thread, one.ctx.message_id)
                ending = Ending("" if is_taken else "answered_elsewhere")
                await self.report([Claim(one.id, one.fence)], ending)
        dropped = tuple(
            one.id for one in left if one.state is not ItemState.HANDING_OVER
        )
        if dropped:
            await self._withdraw(run, dropped)

    async def _ask(self, run: RunRef, state: ThreadState) -> list[Shown]:
        """Open a turn for each question that a dialect knows; repeating it is safe."""
        asked = state.pending if state.hands_over else ()
        shown = [
            await self.ask(one, run, f"agent {run.agent}", state.schemas)
            for one in asked
        ]
        return [one for one in shown if one is not None]

    async def _is_claimed(self, one: Delivery) -> bool:
        """Claim the approved calls of a question; False if it is not to be answered."""
        match await self.claim(one):
            case None:
                # Written again: a claim may have been refused.
                if one.is_written():
                    return True
                await self.release([one])
            case wire.Busy():
                raise ThreadUnavailable("Another process hands it over.")
            case wire.HandedOver():
                await self._refuse_to_ask_again(one)
            case _:
                pass  # it went back to people, or may have been handed over
        return False

    async def _refuse_to_ask_again(self, one: Delivery) -> None:
        """Tell people who want it that the agent does not ask again."""
        for item_id in [call.item_id for call in one.about.verdicts if call.item_id]:
            report = wire.AskedAgain(item_id=item_id, ok=False, detail=CANNOT_ASK_AGAIN)
            await self._gateway.report_asked_again(report)

    async def _take_back(self, run: RunRef, state: ThreadState) -> set[str]:
        """Free the calls that a dead process claimed; return their open questions."""
        asked, begun = names_of(state.pending), set[str]()
        for one in await self._threads.handed(run):
            name = one.ctx.message_id
            if one.state is ItemState.HANDING_OVER and name in asked:
                begun.add(name)
                await self._gateway.release(one.id, one.fence, has_begun=False)
        return begun


def names_of(pending: Iterable[Question]) -> set[str]:
    """Return the names of the turns of all questions of other libraries."""
    return {dialects.message_id(one) for one in pending if question_of(one) is None}

"""Gate calls inside a workflow: ask people, wait, and run the approved activity once.

A workflow must be deterministic, so it reads neither the policy nor the decisions.
Activities ask the gateway, and an Update only makes the workflow ask again. This module
imports no other module of Keyturn, so Temporal's sandbox can load it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, Literal

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError

SUBMIT, DECIDED, WITHDRAW = "keyturn_submit", "keyturn_decided", "keyturn_withdraw"
"""The activities of `keyturn.connect.temporal.plugin`."""

DECISION, WAITING = "keyturn_decision", "keyturn_waiting"
"""The Update that wakes a workflow, and the query for its open calls."""

HEARTBEAT = timedelta(seconds=30)
"""An attempt without a heartbeat for this long counts as dead."""

ANSWER_WITHIN = timedelta(seconds=20)
_WITHDRAW_WITHIN = timedelta(minutes=5)
_RETRIES = RetryPolicy(maximum_interval=timedelta(minutes=1))


@dataclass(frozen=True)
class Call:
    """A proposed call.

    A replay or a reset finds the same approval by ``thread`` and ``key``.
    """

    agent: str
    thread: str
    key: str
    tool: str
    args: dict[str, Any]


@dataclass(frozen=True)
class Held:
    """A call in progress; ``item_id`` is "" until the gateway has recorded the call.

    ``in_doubt`` is True while people check whether an interrupted attempt ran.
    ``pause`` tells an agent that floods people to slow down, else "".
    """

    call: Call
    item_id: str = ""
    action_hash: str = ""
    in_doubt: bool = False
    pause: str = ""


@dataclass(frozen=True)
class Outcome:
    """The end of a call.

    Attributes:
        kind: ``ran``, ``failed``, ``refused``, ``reject``, ``respond``, ``expired``,
            ``superseded``, ``withdrawn``, ``lapsed``, or ``unknown`` for a call that
            was interrupted and not run again.
        text: text for a model: the decision, the edit and the result.
        value: the return value of the tool; None unless it ran.
    """

    kind: str
    text: str
    value: Any = None


@dataclass(frozen=True)
class Step:
    """The next step of a call: ``wait`` for people, ``run`` it, or its ``end``."""

    next: Literal["wait", "run", "end"]
    held: Held
    outcome: Outcome | None = None


@dataclass(frozen=True)
class Carry:
    """The open calls that a workflow passes on when it continues as new."""

    thread: str
    count: int
    open: list[Held]


@dataclass
class _State:
    """The calls of a workflow.

    Attributes:
        thread: the thread of all calls.
        count: number of calls with a number as their key.
        open: calls in progress, by key.
        carried: open calls of the previous run.
        knocked: ids of items with an Update.
        submitting: number of calls without a known item.
    """

    thread: str
    count: int = 0
    open: dict[str, Held] = field(default_factory=dict[str, Held])
    carried: list[Held] = field(default_factory=list[Held])
    knocked: set[str] = field(default_factory=set[str])
    submitting: int = 0

    def begin(self, agent: str, tool: str, args: dict[str, Any], key: str) -> Held:
        """Open a call: a carried one if it is equal, or else a new one."""
        for held in self.carried:
            call = held.call
            is_meant = call.key == key if key else call.key.startswith("#")
            if is_meant and (call.tool, call.args) == (tool, args):
                self.carried.remove(held)
                break
        else:
            self.count += not key
            key = key or f"#{self.count}"
            held = Held(Call(agent, self.thread, key, tool, args))
        if held.call.key in self.open:
            text = f"The call {key!r} is in progress; give each call another key."
            raise ApplicationError(text, non_retryable=True)
        self.open[held.call.key] = held
        return held

    @property
    def known(self) -> set[str]:
        """Return the ids of the open calls."""
        return {held.item_id for held in self.open.values()}


class Gated:
    """Mix-in for a workflow whose calls people approve.

        @workflow.defn
        class Refund(Gated, agent="billing"):
            @workflow.run
            async def run(self, order: str) -> str:
                return (await self.gated("refund", {"order": order})).text

    ``agent`` is the agent's name in policy, cards and API key. A waiting call asks the
    gateway once per ``poll``, in case an Update is lost.
    """

    keyturn_agent: ClassVar[str] = ""
    keyturn_poll: ClassVar[timedelta] = timedelta(minutes=10)

    def __init_subclass__(
        cls, *, agent: str = "", poll: timedelta | None = None
    ) -> None:
        """Read the agent's name, also from a base class."""
        super().__init_subclass__()
        cls.keyturn_agent = agent or cls.keyturn_agent
        cls.keyturn_poll = poll or cls.keyturn_poll
        if not cls.keyturn_agent:
            raise TypeError(f'Name the agent: class {cls.__name__}(Gated, agent="…")')

    async def gated(
        self,
        tool: str,
        args: dict[str, Any],
        *,
        key: str = "",
        start_to_close_timeout: timedelta = timedelta(minutes=10),
        task_queue: str | None = None,
    ) -> Outcome:
        """Propose a call, wait for people if the policy demands it, and run it once.

        Args:
            tool: name of the tool and of its activity.
            args: arguments by name, strict JSON.
            key: name of this call in the workflow; the same key is the same call. By
                default the calls are numbered.
            start_to_close_timeout: longest time of one attempt.
            task_queue: queue of the activity; by default that of the workflow.

        Raises:
            ActivityError: when the gateway refuses the request itself, such as the same
                key with other arguments.
        """
        state = self._keyturn
        held = state.begin(self.keyturn_agent, tool, args, key)
        submitting = asyncio.ensure_future(self._submitted(held))
        try:
            step = await asyncio.shield(submitting)
            while step.outcome is None:
                held = state.open[held.call.key] = step.held
                if step.next == "run":
                    step = await _asked(
                        tool,
                        held,
                        start_to_close_timeout=start_to_close_timeout,
                        heartbeat_timeout=HEARTBEAT,
                        task_queue=task_queue,
                    )
                else:
                    await self._next_knock(held.item_id)
                    step = await _asked(DECIDED, held)
        except asyncio.CancelledError:
            # Shielded: a second cancellation must not leave a card without a workflow.
            await asyncio.shield(asyncio.ensure_future(_withdrawn(submitting)))
            raise
        finally:
            del state.open[held.call.key]
        return step.outcome

    def carry(self) -> Carry:
        """Return the open calls, so that the next run continues with their approvals.

        Pass them to `workflow.continue_as_new`, and in the next run to `continue_from`.
        """
        state = self._keyturn
        held = [*state.carried, *state.open.values()]
        return Carry(state.thread, state.count, held)

    def continue_from(self, carry: Carry | None) -> None:
        """Take over the previous run's open calls; then make the same calls again."""
        if carry is not None:
            state = self._keyturn
            state.thread, state.count = carry.thread, carry.count
            state.carried = [*carry.open]

    @workflow.update(name=DECISION)
    async def keyturn_decision(self, item_id: str) -> None:
        """Make the workflow ask the gateway about a call; this decides nothing."""
        self._keyturn.knocked.add(item_id)

    @keyturn_decision.validator
    def _check_decision(self, item_id: str) -> None:
        # A refused Update leaves no event in the history.
        state = self._keyturn
        # While a call is being submitted, any unknown item may belong to it.
        if item_id in state.knocked or not (item_id in state.known or state.submitting):
            raise ValueError("The gateway is asked already, or this call is not open.")

    @workflow.query(name=WAITING)
    def keyturn_waiting(self) -> list[Held]:
        """Return the calls in progress."""
        return self.carry().open

    @property
    def _keyturn(self) -> _State:
        # Made on first use: a workflow's `__init__` may not call `super().__init__()`,
        # and an Update may arrive before `run`.
        found: _State | None = self.__dict__.get("_keyturn_state")
        if found is None:
            info = workflow.info()
            # This run id survives a reset, and differs for each run of a schedule.
            thread = f"{info.workflow_id}/{info.original_execution_run_id}"
            found = self.__dict__["_keyturn_state"] = _State(thread)
        return found

    async def _submitted(self, held: Held) -> Step:
        if held.item_id:
            return await _asked(DECIDED, held)
        state = self._keyturn
        state.submitting += 1
        try:
            step = await _asked(SUBMIT, held)
            # Before the count falls: an early Update may name this item.
            if held.call.key in state.open:
                state.open[held.call.key] = step.held
        finally:
            state.submitting -= 1
            if not state.submitting:
                # Drop early Updates that named unknown items.
                state.knocked &= state.known
        return step

    async def _next_knock(self, item_id: str) -> None:
        knocked, task = self._keyturn.knocked, asyncio.current_task()
        before = task.cancelling() if task else 0
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: item_id in knocked, timeout=self.keyturn_poll
            )
        if task and task.cancelling() > before:
            # On old servers the wait may report only the timer or the Update.
            raise asyncio.CancelledError
        # Before the request: a later Update then causes another request.
        knocked.discard(item_id)


async def _asked(activity: str, held: Held, **options: Any) -> Step:  # noqa: ANN401
    options.setdefault("start_to_close_timeout", ANSWER_WITHIN)
    step: Step = await workflow.execute_activity(
        activity, held, result_type=Step, retry_policy=_RETRIES, **options
    )
    return step


async def _withdrawn(submitting: asyncio.Future[Step]) -> None:
    """Withdraw a call of a cancelled workflow, if it has not started."""
    with suppress(ActivityError):
        await workflow.execute_activity(
            WITHDRAW,
            (await submitting).held,  # its item may not be known yet
            schedule_to_close_timeout=_WITHDRAW_WITHIN,
            retry_policy=_RETRIES,
        )

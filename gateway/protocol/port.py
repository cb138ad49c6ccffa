"""Gateway interface for agents, and lookup of this process's gateway.

The in-process gateway and the HTTP client of a gateway in another process implement it.
Every method may be called from any event loop.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from keyturn.gateway.arguments import check_tool_names, require
from keyturn.gateway.protocol.records import EditRecord, Result, RunRef
from keyturn.gateway.protocol.run_context import excepting, in_run
from keyturn.gateway.protocol.wire import (
    AgentNote,
    AskedAgain,
    CallBegun,
    CallEnd,
    CallOutcome,
    CallProgress,
    ClaimReply,
    ClaimRequest,
    EditsKnown,
    HandOverEnd,
    LateReport,
    Turn,
    TurnRef,
    Verdict,
)


class Gateway(Protocol):
    """The gateway's interface for agents.

    Every method raises `keyturn.gateway.errors.KeyturnError` when the gateway cannot
    answer; the caller then refuses to run the tool.
    """

    async def submit(self, turn: Turn) -> tuple[Verdict, ...]:
        """Evaluate all calls of a turn at once; open approvals for those that wait.

        Idempotent by the turn's ref: the same turn submitted again gets the same
        verdicts. Waiting calls of the agent's older turns, and inside its tools, are
        superseded.
        """
        ...

    async def claim(self, request: ClaimRequest) -> ClaimReply:
        """Ask for the right to execute an authorized call once."""
        ...

    async def heartbeat(self, item_id: str, fence: int) -> bool:
        """Keep a claim; return False when the caller has lost it."""
        ...

    async def finish(self, item_id: str, fence: int, result: Result) -> bool:
        """Record the result of an execution; return False when the claim is lost."""
        ...

    async def release(
        self, item_id: str, fence: int, *, has_begun: bool = True
    ) -> None:
        """Give a claim back unused, for a pause inside the tool.

        ``has_begun`` is False if the tool was not begun; this attempt then does not
        extend the authorization.
        """
        ...

    def keeps_calls(self) -> bool:
        """Return whether calls without a record need `report_progress` in this context.

        True under a lease that decides on them. If False, each of them may run as often
        as its agent runs it.
        """
        ...

    async def report_progress(self, progress: CallProgress) -> CallBegun:
        """Ask to run a call without a record, or report a step of one."""
        ...

    async def ended(self, end: CallEnd) -> None:
        """Report how a call without a record ended."""
        ...

    async def outcomes(self, ref: TurnRef) -> tuple[CallOutcome, ...]:
        """Return the outcomes of the held calls of a message.

        The message may belong to another agent, because agents share messages: then the
        whole run is searched for the calls.
        """
        ...

    async def supersede(self, ref: TurnRef) -> None:
        """Supersede waiting calls of this turn and inside it: the thread moved on.

        For another agent's message, waiting calls of that agent's turn are superseded.
        """
        ...

    async def history(self, run: RunRef, within: str = "") -> tuple[EditRecord, ...]:
        """Return the edits of those calls of a run that ran, oldest first.

        It is bounded: older edits are known from the messages about them.

        Args:
            run: the run.
            within: namespace of a conversation; only its calls and calls inside it
                count.
        """
        ...

    async def edits_known(self, ref: TurnRef, edits: Mapping[str, str]) -> EditsKnown:
        """Return the recorded edits of a run, which people really made.

        Args:
            ref: the agent that asks, about its calls and those inside its tools; the
                message is ignored. Edits of other threads, and of other agents with a
                thread of the same name, are not returned.
            edits: hash of an edit record (`keyturn.gateway.protocol.edits.edit_hash`)
                to the id of its item, a blank, and the seal of the record.
        """
        ...

    async def late_reports(
        self, ref: TurnRef, item_ids: Collection[str]
    ) -> tuple[LateReport, ...]:
        """Return reports of executors that came after people reconciled these calls.

        Only calls of the ref's run are included.
        """
        ...

    async def note(self, agent: str) -> AgentNote:
        """Return the tools to name in the system prompt, for this agent's gate."""
        ...


class HandingGateway(Gateway, Protocol):
    """A gateway that records how hand-overs to other programs end."""

    async def hand_over(self, end: HandOverEnd) -> bool:
        """Record the end of a hand-over; return False if the claim is lost.

        It replaces `finish` for a claimed call of a turn with ``handed_to``.
        """
        ...

    async def report_asked_again(self, report: AskedAgain) -> bool:
        """Record that an agent asked again as a person wanted, or why it could not.

        Returns False if no person wanted the call to be asked again.
        """
        ...


def check_gateway(gateway: object) -> None:
    """Check a gateway argument; None means the `connected` one or one set elsewhere.

    Raises:
        SettingsError: when it is not a gateway.
    """
    require(
        gateway is None
        or (
            not isinstance(gateway, type)
            and all(callable(getattr(gateway, one, None)) for one in _ASKED)
        ),
        "gateway",
        gateway,
        "give the URL of one as text, 'https://…', or `gateway` of Keyturn.remote(…), "
        "or `service` of Keyturn(…)",
    )


_ASKED = ("submit", "claim", "finish")

_current: ContextVar[Gateway | None] = ContextVar("keyturn_gateway", default=None)


@contextmanager
def connected(
    gateway: Gateway, run: RunRef | None = None, *, ungated: Collection[str] = ()
) -> Generator[None]:
    """Make a gateway the default for middleware in this context.

    ``run`` is the run of all agents inside the block; if None, each agent finds its
    run. ``ungated`` names the tools that those agents may start without a gate.
    """
    check_gateway(gateway)
    check_tool_names("ungated", ungated)
    token = _current.set(gateway)
    try:
        with in_run(run), excepting(ungated):
            yield
    finally:
        _current.reset(token)


def connected_gateway() -> Gateway | None:
    """Return the gateway of this context, or None."""
    return _current.get()

"""Gateway interface for agents, and lookup of this process's gateway.

The in-process gateway implements it, and an HTTP client of one in another process.
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
    CallBegun,
    CallEnd,
    CallOutcome,
    CallProgress,
    ClaimReply,
    ClaimRequest,
    EditsKnown,
    LateReport,
    Turn,
    TurnRef,
    Verdict,
)


class Gateway(Protocol):
    """What the agent's side asks of a gateway.

    Every method raises `keyturn.gateway.errors.KeyturnError` when the gateway cannot
    answer; the caller then refuses to run the tool.
    """

    async def submit(self, turn: Turn) -> tuple[Verdict, ...]:
        """Evaluate all calls of a turn at once; open approvals for those that wait.

        Idempotent by the turn's ref: the same turn submitted again gets the same
        verdicts. What still waits of the agent's older turns, and inside its tools, is
        superseded.
        """
        ...

    async def claim(self, request: ClaimRequest) -> ClaimReply:
        """Ask for the right to execute an authorized call once."""
        ...

    async def heartbeat(self, item_id: str, fence: int) -> bool:
        """Keep a claim; False when it is no longer ours."""
        ...

    async def finish(self, item_id: str, fence: int, result: Result) -> bool:
        """Record what an execution came to; False when the claim is not ours."""
        ...

    async def release(
        self, item_id: str, fence: int, *, has_begun: bool = True
    ) -> None:
        """Give a claim back unused, for a pause inside the tool.

        ``has_begun`` is False where the tool was not even begun: then its authorization
        waits no longer than without this attempt.
        """
        ...

    def keeps_calls(self) -> bool:
        """Return whether a lease decides in this context about calls without a record.

        False where each of them may run as often as its agent runs it: then nobody
        needs to ask with `report_progress` whether one may begin.
        """
        ...

    async def report_progress(self, progress: CallProgress) -> CallBegun:
        """Ask to run a call without a record, or say what happens to one."""
        ...

    async def ended(self, end: CallEnd) -> None:
        """Report how a call without a record ended."""
        ...

    async def outcomes(self, ref: TurnRef) -> tuple[CallOutcome, ...]:
        """Return the outcomes of the held calls of a message.

        Agents share messages, so the message may be another agent's: then the calls
        are looked for in the whole run.
        """
        ...

    async def supersede(self, ref: TurnRef) -> None:
        """End what still waits of this turn and inside it: the thread moved on.

        For another agent's message, what waits of that agent's turn is ended.
        """
        ...

    async def history(self, run: RunRef, within: str = "") -> tuple[EditRecord, ...]:
        """Return the edits of those calls of a run that ran, oldest first.

        It is bounded: older ones are known from the messages that they are about.

        Args:
            run: the run.
            within: namespace of a conversation; only its calls and those inside count.
        """
        ...

    async def edits_known(self, ref: TurnRef, edits: Mapping[str, str]) -> EditsKnown:
        """Return which edits people really made in a run, by our record.

        Args:
            ref: names the agent to be told, of its own calls and of those inside its
                tools; its message is ignored. An edit of another thread, or of another
                agent whose thread has the same name, is not returned.
            edits: hash of an edit record (`keyturn.gateway.protocol.edits.edit_hash`)
                to the id of the item that it is about, followed by a blank and the seal
                of the record.
        """
        ...

    async def late_reports(
        self, ref: TurnRef, item_ids: Collection[str]
    ) -> tuple[LateReport, ...]:
        """Return what executors reported after people had reconciled these calls.

        Only calls of the run that the ref stands in are answered about.
        """
        ...

    async def note(self, agent: str) -> AgentNote:
        """Return what the system prompt should say about this agent's gate."""
        ...


def check_gateway(gateway: object) -> None:
    """Check what is given as a gateway; None is the one `connected` or named elsewhere.

    Raises:
        SettingsError: when it is none.
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
    """Make a gateway the one that middleware without its own finds in this context.

    ``run`` is the run that all agents in it belong to; None: each finds its own.
    ``ungated`` names the tools that those agents may start without a gate.
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
    """Return the gateway of this context, None when there is none."""
    return _current.get()

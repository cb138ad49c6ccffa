"""Call a tenant's services for a request, after checking its permissions."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from keyturn.gateway.api.refusals import Refusal
from keyturn.gateway.errors import BadJson
from keyturn.gateway.policy.schemas import parts_of
from keyturn.gateway.protocol.http_api import (
    LEASE_HEADER,
    OPERATIONS,
    Attendance,
    ClaimedCall,
    Operation,
    Scope,
    SettleQuestion,
    read_lease,
)
from keyturn.gateway.protocol.http_problems import (
    FORBIDDEN,
    LEASE_LOST,
    MALFORMED,
    NOT_FOUND,
)
from keyturn.gateway.protocol.records import Record, RunRef
from keyturn.gateway.protocol.strict_json import parse
from keyturn.gateway.protocol.wire import (
    AskedAgain,
    CallEnd,
    CallProgress,
    ClaimRequest,
    HandOverEnd,
    ReportedOutcome,
    Turn,
    TurnRef,
)
from keyturn.gateway.service.report.event_feed import EventFeed
from keyturn.gateway.service.run.agents import AgentService, RemoteRunService
from keyturn.gateway.service.run.approval_readings import ApprovalReadings
from keyturn.gateway.store.scripts.fences import holding, while_unheld
from keyturn.gateway.trust.api_keys import ApiKey

Q = TypeVar("Q")

BY_PATH = {operation.path: operation for operation in OPERATIONS}

_MANY = 1000
"""Most misfits of a body for which the first is named."""

MAX_NAME = 2000
"""Longest name, such as of a thread, in characters: names are stored."""

MAX_CALLS = 1000
"""Most calls of a turn: all are evaluated together."""

MAX_SCHEMA_PARTS = 10_000
"""Most schemas, with their parts, for all tools of a turn."""

CALLS_OF_ONE = 10
"""Number of calls in a turn that count as one request."""

_BYTES_OF_A_WRITE = 1024
_BYTES_OF_A_CALL = 4096
"""Stored for a write, and for a call with its audit entries, besides the body."""

ENDS_WORK = {"finish", "hand_over", "release", "ended"}
"""Operations that report the result of an allowed call."""

_RENEWED = {"heartbeat", "attend", "settle", "thread_lease"}
"""Operations that only replace what an earlier one of them stored."""

WRITES = {one.name for one in OPERATIONS if one.scope is not Scope.READ} - _RENEWED
"""Operations that store more. Each is safe to repeat by the names in its body."""


@dataclass(frozen=True)
class Tenant:
    """The services for the agents of one tenant.

    Attributes:
        port: the port, as for agents in the gateway's process.
        runs: for programs that run threads themselves.
        readings: approvals, for their owners.
        events: events of approvals.
    """

    port: AgentService
    runs: RemoteRunService
    readings: ApprovalReadings
    events: EventFeed


SPREAD = {
    *("heartbeat", "finish", "release", "history", "edits_known", "late_reports"),
    *("keep_definitions", "note", "pending", "supersede_run", "settle"),
}
"""Operations whose question only carries the parameters of the service's method."""


async def ask(key: ApiKey, tenant: Tenant, name: str, question: Any) -> Any:  # noqa: ANN401 - as the operation declares them
    """Call the service's method with the name of an operation."""
    match name:
        case "submit":
            # Regardless of the request: jobs of the gateway cannot reach its process.
            question = question.with_(resumes_itself=True)
        case "answers":
            return await tenant.runs.answers(question, key.may_be)
        case "withdraw":
            ids = question.item_ids
            return await tenant.runs.withdraw(question.run, ids, resumes=False)
        case _:
            pass
    method = getattr(tenant.runs, name, None) or getattr(tenant.port, name)
    return await (method(**dict(question)) if name in SPREAD else method(question))


def read(adapter: TypeAdapter[Q], body: bytes) -> Q:
    """Parse a body, strictly.

    Raises:
        Refusal: when it is invalid.
    """
    try:
        return adapter.validate_python(parse(body))
    except BadJson as error:
        raise Refusal(MALFORMED, str(error)) from error
    except ValidationError as error:
        raise misfit(error) from error


def misfit(error: ValidationError) -> Refusal:
    """Return the refusal of a body that does not fit."""
    # pydantic describes all places or none. For a body of megabytes this takes half a
    # second, which blocks other requests.
    if (places := error.error_count()) > _MANY:
        return Refusal(MALFORMED, f"The body does not fit at {places} places.")
    # Without the value, which may be an argument.
    first = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(map(str, first["loc"])) or "the whole"
    return Refusal(MALFORMED, f"The body does not fit at {place}: {first['msg']}.")


def calls_in(question: Record) -> int:
    """Return the number of calls that a question proposes."""
    return len(question.calls) if isinstance(question, Turn) else 0


def stored_bytes(operation: Operation[Any, Any], calls: int, body: bytes) -> int:
    """Return roughly how many bytes a request stores; 0 for a reading."""
    if operation.name not in WRITES:
        return 0
    return len(body) + _BYTES_OF_A_WRITE + calls * _BYTES_OF_A_CALL


async def check(key: ApiKey, tenant: Tenant, question: Record) -> None:
    """Refuse a question about other agents' calls.

    Raises:
        Refusal: when the key does not cover them, or the question is too large.
    """
    _check_size(question)
    # Also of its runs: the principals of an enclosing run are shown with the calls, and
    # its name is enough to end waiting calls there.
    check_agents(key, (text for at, text in _texts(question) if at == "agent"))
    for tool in _tools(question):
        if not key.may_use(tool):
            raise Refusal(
                FORBIDDEN, f"The key {key.name!r} may not use the tool {tool!r}."
            )
    # One answer for missing ids and ids of others, so that they cannot be told apart.
    if not await _is_known(key, tenant, question):
        raise Refusal(NOT_FOUND, "There is no such call for this key.")


def _check_size(question: Record) -> None:
    """Refuse a question that would block others.

    Raises:
        Refusal: when it has too many calls, too large schemas, or too long a name.
    """
    if calls_in(question) > MAX_CALLS:
        raise Refusal(MALFORMED, f"A turn may have {MAX_CALLS} calls.")
    if isinstance(question, Turn) and (
        sum(map(parts_of, question.schemas.values())) > MAX_SCHEMA_PARTS
    ):
        raise Refusal(
            MALFORMED,
            f"The schemas of a turn may have {MAX_SCHEMA_PARTS} parts; send those of "
            "the tools that it calls.",
        )
    if any(len(text) > MAX_NAME for at, text in _texts(question) if at != "says"):
        raise Refusal(MALFORMED, f"A name may have {MAX_NAME} characters.")


def _texts(record: Record) -> Iterator[tuple[str, str]]:
    """Yield the texts of a question, and of its turn and its runs, by their fields.

    Texts in calls are excluded: only the call with a long name is denied.
    """
    for field, value in record:
        if isinstance(value, str):
            yield field, value
        elif isinstance(value, RunRef | TurnRef):
            yield from _texts(value)


async def _is_known(key: ApiKey, tenant: Tenant, question: Record) -> bool:
    """Return whether a call named by a question belongs to the key's agents.

    The gateway's record decides, because a request may name another tool.
    """
    match question:
        case (
            ClaimRequest()
            | ClaimedCall()
            | HandOverEnd()
            | ReportedOutcome()
            | AskedAgain()
            | Attendance()
        ):
            owner = await tenant.port.owner_of(question.item_id)
            if owner is None:
                return False
            agent, tool = owner
            return key.may_be(agent) and key.may_use(tool)
        case CallProgress() | CallEnd() if not key.may_use_all:
            tools = await tenant.port.tools_of(question.ref, question.tool_call_id)
            return bool(tools) and all(map(key.may_use, tools))
        case _:
            return True


def check_agents(key: ApiKey, agents: Iterable[str]) -> None:
    """Refuse agents that a key does not cover.

    Raises:
        Refusal: when one of them is not covered.
    """
    for agent in agents:
        if not key.may_be(agent):
            raise Refusal(
                FORBIDDEN,
                f"The key {key.name!r} does not speak for the agent {agent!r}.",
            )


@contextmanager
def under_lease(
    key: ApiKey, tenant: Tenant, text: str | None, question: Record
) -> Generator[None]:
    """Fence the writes of a request with the lease in its header.

    Settling a thread needs its lease: a replaced process, or one without a lease, would
    end calls that the thread has proposed since. Other requests need none, because a
    program may run its threads without leases. Proposing, running or superseding calls
    in a thread is refused while another process has its lease.

    Raises:
        Refusal: when the lease is invalid, missing, or for another agent or thread.
    """
    ref = None if text is None else read_lease(text)
    if ref is None and text is not None:
        raise Refusal(MALFORMED, f"The header {LEASE_HEADER} is no lease.")
    if ref is not None:
        check_agents(key, [ref.run.agent])
    if isinstance(question, SettleQuestion):
        if ref is None:
            raise Refusal(LEASE_LOST, f"Name the thread's lease: {LEASE_HEADER}.")
        if ref.run != question.run:
            raise Refusal(LEASE_LOST, "This is the lease of another thread.")
    with ExitStack() as fences:
        if ref is not None:
            fences.enter_context(holding(tenant.runs.held(ref)))
        run = _run_of(question)
        # An agent inside a tool has a separate thread, and works under its caller's
        # lease.
        if run is not None and (ref is None or ref.run != run):
            fences.enter_context(while_unheld(tenant.runs.lease_key(run)))
        yield


def _run_of(question: Record) -> RunRef | None:
    """Return the run that a question acts for; None if leases do not matter.

    A granted claim has a separate fence. Questions from outside a thread need no lease.
    """
    match question:
        case Turn() | ClaimRequest() | CallProgress():
            return question.ref.run_ref
        case TurnRef():
            return question.run_ref
        case _:
            return None


def _tools(question: Record) -> Iterable[str]:
    match question:
        case Turn():
            return (call.tool for call in question.calls)
        case ClaimRequest() | CallProgress() | CallEnd():
            return (question.tool,)
        case _:
            return ()

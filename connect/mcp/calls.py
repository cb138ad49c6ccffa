"""Assign each request of a client to a call: an earlier one, or a new one.

A client may time out, retry under another id, or return with a ticket. A request
belongs to the first of these calls: the call of its sealed state; the call of its
ticket; the call with the client's id; an identical call without a waiting caller and
with an uncollected result. Otherwise it is a new call. The gateway knows whether a
caller waits at another gate.

Ids are random, or derived from the client's id. With an id made of the arguments alone,
an intended second call would get the result of the first one. Part of each id is a
keyed hash of caller, tool and arguments, so an id fits one call only. The gateway
stores this hash as the id of the tool call, so a restarted gate finds its open calls.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from mcp.shared.dispatcher import ProgressFnT
from mcp_types import CallToolResult

from keyturn.gateway.errors import KeyturnError, NotAllowed
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import TurnRef, Verdict

KEPT_S = 24 * 3600.0
"""Seconds that a result is kept for its caller."""

BETWEEN_LEGS_S = 5.0
"""Seconds that a client may take to send the next leg; clients take 0.25 seconds."""

MOST_OF_A_CALLER = 1000
"""Largest number of a caller's calls, including those with uncollected results."""

_RANDOM_BYTES = 8
_MARK = 32
_PART = 8
_ID = re.compile(r"[0-9a-f]{24}", re.ASCII)


class Caller(NamedTuple):
    """The caller: a name that binds calls and tickets, and the person, if known."""

    principal: str = ""
    person: Person | None = None

    @property
    def bound(self) -> str:
        """Return the name that calls and tickets are bound to.

        Gates with one API key may be configured for several people.
        """
        return self.principal or (self.person.user if self.person else "")


@dataclass(eq=False)
class Call:
    """One call of a client, from its first request until its result is collected.

    Attributes:
        id: its name in the gateway: thread and message.
        server: name of the upstream.
        tool: name in the policy.
        name: the upstream's name of the tool.
        args: the client's arguments.
        mark: keyed hash of caller, tool and arguments.
        caller: the caller.
        client: name of the client program, unverified.
        waiting: number of requests that now wait for the call.
        gone_s: after this time, a caller without a waiting request counts as gone.
        verdict: the gateway's verdict, after the submission.
        result: the result for the client, after the end.
        trouble: the error of the latest attempt; nothing ran.
        work: the running attempt.
        is_in_doubt: an earlier attempt was interrupted, and people check its effect.
        progress: passes on the progress of the upstream.
        definition: the tool's definition at the proposal; None before it.
        may_have_run: its sealed state is from an earlier process, or its result was
            collected.
    """

    id: str
    server: str
    tool: str
    name: str
    args: JsonObject
    mark: str
    caller: Caller
    client: str = ""
    waiting: int = 0
    gone_s: float = 0.0
    verdict: Verdict | None = None
    result: CallToolResult | None = None
    trouble: KeyturnError | None = None
    work: asyncio.Task[None] | None = None
    is_in_doubt: bool = False
    progress: ProgressFnT | None = None
    definition: JsonObject | None = None
    may_have_run: bool = False
    begun_s: float = 0.0
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def ref(self, agent: str) -> TurnRef:
        """Return the turn of this call; each call has a separate thread."""
        return turn_of(agent, self.server, self.id)

    def end(self, result: CallToolResult) -> None:
        """Set the result of the call, and wake the requests that wait for it."""
        self.result = result
        self.woken.set()


def turn_of(agent: str, server: str, call_id: str) -> TurnRef:
    """Return the turn of a call by its id."""
    thread = f"mcp/{server}/{call_id}"
    return TurnRef(agent=agent, thread=thread, message_id=call_id)


def call_id_of(thread: str) -> str:
    """Return the id of the call that has this thread; "" for other threads."""
    head, _, call_id = thread.rpartition("/")
    return call_id if head.startswith("mcp/") and _ID.fullmatch(call_id) else ""


class Calls:
    """The gate's calls whose results are not collected.

    Args:
        secret: key of marks and tickets; the same after a restart.
        clock_s: a clock that never goes back.

    Attributes:
        left_open: open calls of other processes, by mark: the gateway's item by call.
    """

    def __init__(self, secret: bytes, *, clock_s: Callable[[], float]) -> None:
        self._secret = secret
        self._clock_s = clock_s
        self._by_id = dict[str, Call]()
        self.left_open = dict[str, dict[str, str]]()

    def all(self) -> list[Call]:
        """Return the calls, oldest first."""
        return list(self._by_id.values())

    def get(self, call_id: str) -> Call | None:
        """Return a call by its id; None if it is unknown or collected."""
        return self._by_id.get(call_id)

    def mark(self, caller: Caller, tool: str, args: JsonObject) -> str:
        """Return the keyed hash of caller, tool and arguments."""
        return self._keyed("call", caller.bound, tool, args)[:_MARK]

    def ticket(self, caller: Caller, server: str, call_id: str) -> str:
        """Return the ticket for a call; it works only for its caller."""
        proof = self._keyed("ticket", caller.bound, server, call_id)
        return f"{server}.{call_id}.{proof[:_PART]}"

    def read_ticket(self, text: str, caller: Caller) -> tuple[str, str] | None:
        """Return upstream and id of a ticket; None unless it is one of this caller."""
        server, call_id, _ = f"{text.strip()}..".split(".", 2)
        right = self.ticket(caller, server, call_id)
        is_right = hmac.compare_digest(text.strip().encode(), right.encode())
        return (server, call_id) if is_right else None

    def id_of(self, known: str, call: Call) -> str:
        """Return the id of a call by the client's name for it; "" for no name."""
        made = self._keyed("known", call.caller.bound, call.tool, known)
        return made[: 2 * _RANDOM_BYTES] + call.mark[:_PART] if known else ""

    def find(self, wanted: Call) -> Call | None:
        """Return the call of this process that a request continues, if any."""
        self._drop_old()
        now_s, named = self._clock_s(), self._by_id.get(wanted.id)
        if named is not None or wanted.may_have_run:
            return named
        same = (one for one in self._by_id.values() if one.mark == wanted.mark)
        left = (one for one in same if not one.waiting and one.gone_s <= now_s)
        return next(left, None)

    def begin(self, wanted: Call) -> Call:
        """Add a call to those of this process; it gets an id, unless it has one.

        Raises:
            NotAllowed: the caller has too many calls.
        """
        # One client must not use up the memory of the gate.
        of_caller = sum(one.caller == wanted.caller for one in self._by_id.values())
        if of_caller >= MOST_OF_A_CALLER:
            raise NotAllowed(
                f"{of_caller} calls of this client wait, or nobody collected their "
                "results."
            )
        # This request continues the open call, so the next equal call is a new one.
        self.left_open.get(wanted.mark, {}).pop(wanted.id, None)
        wanted.id = wanted.id or secrets.token_hex(_RANDOM_BYTES) + wanted.mark[:_PART]
        wanted.begun_s = self._clock_s()
        self._by_id[wanted.id] = wanted
        return wanted

    def comes_back(self, call: Call) -> None:
        """Record that a client will send the next leg of a call by itself."""
        call.gone_s = self._clock_s() + BETWEEN_LEGS_S

    def collected(self, call: Call) -> None:
        """Forget a call whose caller has the result; the gateway keeps its record."""
        if self._by_id.get(call.id) is call:
            del self._by_id[call.id]

    def _drop_old(self) -> None:
        # The oldest call is first.
        oldest = self._clock_s() - KEPT_S
        for call in list(self._by_id.values()):
            if call.begun_s > oldest:
                return
            if not call.waiting and (call.work is None or call.work.done()):
                self.collected(call)

    def _keyed(self, what: str, *parts: str | JsonObject) -> str:
        text = digest.canonical([what, *parts])
        return hmac.new(self._secret, text, hashlib.sha256).hexdigest()


def gate_secret(api_key: str, purpose: str) -> bytes:
    """Return a key of this gate, equal in each process with the same API key.

    The gate has no other secret: Keyturn's keys must not be on an agent's machine.
    """
    text = f"keyturn/mcp/{purpose}".encode()
    return hmac.new(api_key.encode(), text, hashlib.sha256).digest()

"""One-time grants: a guarded tool runs only with the right to run once.

The middleware opens a grant around each execution that it has cleared. A `guarded` tool
uses up the grant: same tool, same arguments, first use. If the middleware is removed,
replaced or bypassed, there is no grant, and the tool does not run.

Nested starts. A middleware gates only the agent that it was given to. An agent inside a
tool, such as the general-purpose subagent that deepagents adds, has separate tools and
no gate. While a gated agent runs a tool or calls its model, all code below it inherits
a LangChain callback handler (`StartCheck`). LangChain adds the handler to each callback
manager (``register_configure_hook``), including those in tasks and in threads that copy
the context; child runs inherit it from their parents' configuration. LangChain calls
the handler before a tool runs, and an error from the handler replaces the run.

A start is allowed only by the grant that a gate has opened for exactly this call: same
tool, same arguments, first start. A policy tier ``auto`` is not enough: auto-approved
calls are evaluated, counted and audited at a gate, one by one. A tool that another
tool's code starts has no grant either; such a tool must be listed as an exception.

Code that starts no LangChain tool is not checked: a plain function, or the wrapped
function of a tool. Starts in a thread that copies neither context nor configuration are
not checked either; `guarded` tools refuse to run there.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import signal
import threading
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tools import BaseTool
from langchain_core.tools import tool as make_tool
from langchain_core.tracers.context import register_configure_hook

from keyturn.agent.canonical import caller_args
from keyturn.gateway.arguments import require
from keyturn.gateway.client.bridge import PORT_TIMEOUT_S, Shell
from keyturn.gateway.errors import (
    BadJson,
    NotAllowed,
    NotStarted,
    StateUnknown,
    StoreUnavailable,
    UngatedTool,
)
from keyturn.gateway.failures import any_failure, log_failure
from keyturn.gateway.gates.gate import GuardedTool
from keyturn.gateway.protocol import digest, strict_json, wire
from keyturn.gateway.protocol.digest import MAX_STATE_BYTES, BusinessState
from keyturn.gateway.protocol.receipts import META_KEY
from keyturn.gateway.protocol.run_context import Scope, excepted, inside
from keyturn.gateway.protocol.strict_json import JsonObject

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Grant:
    """The right to execute one call once.

    Attributes:
        item_id: the approved item; "" when the policy auto-approves the call.
        idempotency_key: the same for every attempt at this authorization; pass it to
            the system that the tool changes.
        action_hash: hash of the approved action; "" when the policy auto-approves the
            call.
        tool: name of the authorized tool.
        args_hash: hash of the authorized arguments.
        receipt: the gateway's proof for a process elsewhere that executes the call; see
            `current_receipt`.
    """

    item_id: str
    idempotency_key: str
    action_hash: str
    tool: str
    args_hash: str
    receipt: str = ""


@dataclass(slots=True)
class _GrantUse:
    grant: Grant
    is_open: bool = True
    is_taken: bool = False
    started: UUID | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


_INSTANCE_STATE = (
    "__dict__",
    "__pydantic_extra__",
    "__pydantic_fields_set__",
    "__pydantic_private__",
)
"""The attributes with the state of a pydantic model instance."""

_RECHECK = "_keyturn_recheck"

_current: ContextVar[_GrantUse | None] = ContextVar("keyturn_grant", default=None)


@contextmanager
def grant_scope(given: Grant) -> Generator[None]:
    """Make this grant available, once, to the tool that runs in this context."""
    use = _GrantUse(given)
    try:
        with inside(_current, use):
            yield
    finally:
        # A thread or task that outlives the call keeps this context; a closed grant is
        # useless there.
        use.is_open = False


def grant() -> Grant:
    """Return the grant of the running tool.

    Raises:
        NotAllowed: outside an execution that the middleware cleared.
    """
    use = _current.get()
    if use is None or not use.is_open:
        raise NotAllowed(
            "There is no grant here. Only a tool that is run by an agent with "
            "`ApprovalMiddleware` has one."
        )
    return use.grant


def current_receipt() -> str:
    """Return the receipt of the running call, to pass on with it.

    A tool that acts through another process passes the receipt to that process, which
    verifies it with `keyturn.receipts` and refuses the call without one. The receipt is
    "" if no gate cleared this call, if the policy auto-approved it (tier ``auto``), or
    if the gateway has no keys.
    """
    use = _current.get()
    return use.grant.receipt if use is not None and use.is_open else ""


def receipt_meta() -> dict[str, str]:
    """Return ``_meta`` with the receipt, for a tool call to an MCP server.

    Use it as ``session.call_tool(name, args, meta=receipt_meta())``. It is empty when
    `current_receipt` is.
    """
    text = current_receipt()
    return {META_KEY: text} if text else {}


def is_granted_start(tool: str, args: object, run_id: UUID) -> bool:
    """Return True if this run is the first that this context's grant allows.

    Args:
        tool: the name of the tool that starts.
        args: its arguments, without injected ones.
        run_id: LangChain's id of the run; asking again for the same run is safe.
    """
    use = _current.get()
    if use is None or not use.is_open or use.grant.tool != tool:
        return False
    # A guarded tool compares its arguments itself, right before it starts.
    if not use.is_taken and not _has_args(use.grant, args):
        return False
    # Threads that copied the context share the grant, and only one may use it.
    with use.lock:
        if use.started is None:
            use.started = run_id
        return use.started == run_id


def guarded(
    tool: BaseTool | Callable[..., Any], *, recheck: Recheck | None = None
) -> BaseTool:
    """Return a copy of a tool that runs only under a matching grant.

    The copy keeps its name, schema and class. `guarded` is also a decorator, above
    ``@tool`` or instead of it.

    Args:
        tool: the tool, or a function to convert to one.
        recheck: a function, synchronous or asynchronous, that takes the tool's
            arguments as keywords and returns JSON: the state that must not change until
            the tool runs, such as a version or a balance. The card of a held call shows
            this state. If it differs right before the run, the call goes back to
            reviewers. The function has ten seconds; if it fails, the call does not run.

    The returned tool raises `keyturn.gateway.errors.NotAllowed` when it runs without a
    grant, with a grant for another tool or other arguments, or twice under one grant.
    """
    needed = "give a tool, or a function to make one of"
    require(isinstance(tool, BaseTool) or callable(tool), "tool", tool, needed)
    is_usable = recheck is None or callable(recheck)
    require(is_usable, "recheck", recheck, "give a function that returns the state")
    plain = tool if isinstance(tool, BaseTool) else make_tool(tool)
    if isinstance(plain, _Guarded) and recheck is None:
        return plain
    # A copy: other agents may use the same tool unguarded.
    copy = plain.model_copy()
    # Only run() and arun() differ, so the class is replaced in place: a proxy would
    # have to repeat every attribute that LangChain inspects.
    if not isinstance(plain, _Guarded):
        object.__setattr__(copy, "__class__", _guarded_class(type(plain)))
    if recheck is not None:
        # A private attribute cannot collide with a field of the tool's class.
        private = {**(copy.__pydantic_private__ or {}), _RECHECK: recheck}
        object.__setattr__(copy, "__pydantic_private__", private)
    return copy


def recheck_of(tool: BaseTool | None) -> Recheck | None:
    """Return the function that reads a tool's business state, or None."""
    private = tool.__pydantic_private__ if isinstance(tool, _Guarded) else None
    return cast("Recheck | None", (private or {}).get(_RECHECK))


def share_guarded(tool: BaseTool) -> BaseTool:
    """Return a guarded tool that shares its instance state with this one.

    `guarded` makes a copy instead. With shared state, a tool that counts or caches
    across calls behaves the same in both.
    """
    if isinstance(tool, _Guarded):
        return tool
    shared = object.__new__(_guarded_class(type(tool)))
    for slot in _INSTANCE_STATE:
        object.__setattr__(shared, slot, getattr(tool, slot))
    return shared


class _Guarded(GuardedTool, BaseTool):
    """Mixin of a guarded tool class: use up the grant before each run."""

    def run(self, tool_input: str | dict[str, Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the shape of BaseTool.run
        self._take(tool_input)
        return super().run(tool_input, *args, **kwargs)

    async def arun(
        self,
        tool_input: str | dict[str, Any],
        *args: Any,  # noqa: ANN401 - the shape of BaseTool.arun
        **kwargs: Any,  # noqa: ANN401 - the shape of BaseTool.arun
    ) -> Any:  # noqa: ANN401 - the shape of BaseTool.arun
        self._take(tool_input)
        return await super().arun(tool_input, *args, **kwargs)

    def _take(self, tool_input: str | dict[str, Any]) -> None:
        use = _current.get()
        if use is None or not use.is_open:
            raise NotAllowed(
                f"The tool {self.name!r} is guarded and this call was not cleared, so "
                "it did not run. Give the agent `ApprovalMiddleware`, listed last."
            )
        is_own = use.grant.tool == self.name
        # A bare text has no argument names to compare with the grant's.
        is_same = not isinstance(tool_input, str) and _has_args(
            use.grant, caller_args(self, tool_input)
        )
        if not (is_own and is_same):
            # The tool with the grant started another tool, which is refused here. The
            # first one may already have had an effect.
            refused = NotStarted if is_own and not use.is_taken else NotAllowed
            raise refused(
                f"The call of {self.name!r} differs from the cleared one, so the tool "
                "did not run. List `ApprovalMiddleware` last."
            )
        with use.lock:
            if use.is_taken:
                raise NotAllowed(
                    f"The tool {self.name!r} already ran under this grant, so it did "
                    "not run again. List retrying middleware before "
                    "`ApprovalMiddleware`."
                )
            use.is_taken = True


def _has_args(given: Grant, args: object) -> bool:
    try:
        return wire.args_hash(strict_json.accept_object(args)) == given.args_hash
    except BadJson:
        return False


@lru_cache(maxsize=256)
def _guarded_class(plain: type[BaseTool]) -> type[BaseTool]:
    contained = {
        name: contained_method(getattr(plain, name)) for name in ("_run", "_arun")
    }
    made = type(f"Guarded{plain.__name__}", (_Guarded, plain), contained)
    return cast("type[BaseTool]", made)


class StartCheck(BaseCallbackHandler):
    """Refuse tool starts without a grant.

    Args:
        agent: the outermost gated agent, for the refusal's text.
        excepted: names of the tools that may start without a grant.
    """

    # Otherwise LangChain only logs a handler's exception, and runs the tool.
    raise_error = True
    run_inline = True
    """An asynchronous manager otherwise calls the handler in a thread, too late."""

    def __init__(self, agent: str, excepted: frozenset[str]) -> None:
        self._agent = agent
        self._excepted = excepted

    @property
    def ignore_chat_model(self) -> bool:
        """Return True: LangChain then does not format every message as a string."""
        return True

    @property
    def ignore_llm(self) -> bool:
        """Return True: only tool starts are checked."""
        return True

    @property
    def ignore_chain(self) -> bool:
        """Return True: only tool starts are checked."""
        return True

    def on_tool_start(
        self,
        serialized: dict[str, Any] | None,
        input_str: str,  # noqa: ARG002 - LangChain's signature
        *,
        run_id: UUID,
        inputs: dict[str, Any] | None = None,
        **kwargs: Any,  # noqa: ANN401 - LangChain's signature
    ) -> None:
        """Refuse a start that no gate has cleared.

        Raises:
            UngatedTool: instead of the tool's run.
        """
        tool = str((serialized or {}).get("name") or kwargs.get("name") or "")
        # A tool without a name matches no grant and is refused.
        if tool in self._excepted or is_granted_start(tool, inputs, run_id):
            return
        logger.warning("tool.ungated agent=%s tool=%s", self._agent, tool)
        raise UngatedTool(self._agent, tool)


_check: ContextVar[StartCheck | None] = ContextVar("keyturn_tool_starts", default=None)
register_configure_hook(_check, inheritable=True)


def checked_starts(agent: str) -> Scope:
    """Check every tool start below this block; the outermost agent's check applies."""
    return inside(_check, _check.get() or _check_of(agent, excepted()))


@lru_cache(maxsize=64)
def _check_of(agent: str, names: frozenset[str]) -> StartCheck:
    # Shared: the handler has no state for each start.
    return StartCheck(agent, names)


# Convert a tool's non-exception errors into an exception.
#
# A library that calls ``sys.exit``, or a cancelled task inside the tool, raises an
# error that is not an `Exception`. asyncio and LangGraph would treat it as the end of
# the process or of the run. It is a failure of the tool.


class ToolEscape(RuntimeError):
    """A tool called exit or cancelled itself; the text names the error."""


@contextmanager
def contained() -> Generator[None]:
    """Raise `ToolEscape` if a tool inside calls exit or cancels itself.

    An outer cancellation of the task and a signal that ends the process pass unchanged.
    """
    try:
        yield
    except (asyncio.CancelledError, SystemExit) as error:
        is_exit = isinstance(error, SystemExit)
        is_from_outside = _is_of_a_signal(error) if is_exit else _is_cancelled()
        if is_from_outside:
            raise
        said = f": {error}" if str(error) else ""
        raise ToolEscape(f"{type(error).__name__}{said}") from error


def contained_method(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a tool whose escapes are exceptions.

    The check is inside the tool, since LangChain runs the tool in a task. If a task
    raises `SystemExit`, asyncio stops the loop before any caller can catch it.
    """
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def awaited(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - any tool
            with contained():
                return await method(*args, **kwargs)

        return _annotated_as(method, awaited)

    @functools.wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - any tool
        with contained():
            return method(*args, **kwargs)

    return _annotated_as(method, called)


def _annotated_as(
    method: Callable[..., Any], wrapper: Callable[..., Any]
) -> Callable[..., Any]:
    """Give a wrapper the annotations that LangChain uses to inject arguments."""
    # Since Python 3.14, `functools.wraps` copies the function that computes them.
    # Assigned annotations have no such function, and reading lazy ones would evaluate
    # them.
    if getattr(method, "__annotate__", None) is None:
        wrapper.__annotations__ = getattr(method, "__annotations__", {})
    return wrapper


def _is_cancelled() -> bool:
    """Return True if the running task is cancelled, not only a task inside it."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # in a thread without an event loop
        return False
    return task is not None and bool(task.cancelling())


def _is_of_a_signal(error: BaseException) -> bool:
    """Return True if a signal handler raised the error while the tool was running.

    A process that receives a signal to end has to end.
    """
    handlers = map(signal.getsignal, signal.valid_signals())
    codes = {getattr(one, "__code__", None) for one in handlers} - {None}
    raised_in = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code in codes for frame, _ in raised_in)


# Recheck functions: read the business state that an approval depends on.
#
# A `recheck` takes the arguments of the call as keywords and returns JSON. It is called
# when the call is submitted, and again right before the call would run. If it fails,
# the call does not run: the current state may differ from the approved one.

Recheck = Callable[..., Any]
"""A synchronous or asynchronous function: arguments as keywords in, JSON out."""


async def read(
    shell: Shell, recheck: Recheck, tool: str, args: JsonObject
) -> BusinessState:
    """Return the state for these arguments.

    A synchronous function runs in a thread. If it hangs, it blocks neither the event
    loop nor the conversation's thread for longer than `PORT_TIMEOUT_S`.

    Raises:
        StateUnknown: when it raises, takes longer, or does not return small JSON.
    """

    async def called() -> BusinessState:
        try:
            return _validated(await _value(recheck, args))
        except any_failure() as error:
            # The application's function may raise anything: the state is unknown.
            log_failure(logger, error, "recheck.failed tool=%s", tool)
            raise StateUnknown(
                f"The state that {tool!r} depends on could not be read "
                f"({type(error).__name__}), so the call did not run."
            ) from error

    try:
        return await shell.ask(called)
    except StoreUnavailable as error:
        raise StateUnknown(
            f"The state that {tool!r} depends on could not be read within "
            f"{PORT_TIMEOUT_S:.0f} s, so the call did not run."
        ) from error


async def _value(recheck: Recheck, args: JsonObject) -> object:
    if inspect.iscoroutinefunction(recheck):
        return await recheck(**args)
    returned = await asyncio.to_thread(recheck, **args)
    return await returned if inspect.isawaitable(returned) else returned


def _validated(value: object) -> BusinessState:
    found = strict_json.accept(value)
    # The state becomes part of the action that is hashed, stored and shown on the card.
    size = len(digest.canonical(found))
    if size > MAX_STATE_BYTES:
        raise BadJson(f"the state is {size} bytes, {MAX_STATE_BYTES} are allowed")
    return BusinessState(value=found)

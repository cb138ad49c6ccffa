"""Run LangGraph agents in this process.

Every call names the thread only, never a checkpoint: resuming an old checkpoint forks
the thread and runs its tools again. Answers are sent by interrupt id, strictly, and
each superstep is on disk before the next begins (``durability="sync"``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import UnknownInterruptError, is_invalid_resume
from langgraph.types import Command, Interrupt, PregelTask, StateSnapshot, StreamMode
from pydantic import JsonValue

from keyturn.gateway.arguments import is_a
from keyturn.gateway.dialects.asked import Question
from keyturn.gateway.errors import GraphError
from keyturn.gateway.gates.reachable import holds_tools
from keyturn.gateway.protocol.run_context import excepting
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.resume.fence_tables import fenced_graph
from keyturn.gateway.resume.graphs import Graph, IsFree, as_graph, attached, check_gates
from keyturn.gateway.resume.threads import AnswerRefused, ThreadState
from keyturn.gateway.resume.tool_schemas import schemas_of

logger = logging.getLogger(__name__)

AGENT_KEY = "keyturn_agent"
"""Checkpoint metadata: name of the thread's agent."""

_OURS = ("checkpoint_ns", "checkpoint_id", "checkpoint_map")
"""Keys of a place in a thread; a user's config must not change it."""

_STRICT = "__pregel_strict_resume"
"""Refuse answers to questions that are not open (langgraph >= 1.2.20, private)."""


STREAM_END = object()
"""Ends the queue of `Runner.streaming`; its reader puts it there."""


class Runner:
    """One agent's graph, with a checkpointer; the caller has the thread's lease.

    Args:
        graph: the graph.
        config: for every step of a thread, besides the thread: callbacks, tags,
            metadata, a recursion limit, ``configurable``; see `check_config`.
        context: the run's context, for a graph with a ``context_schema``.
        ungated: names of the tools that may start without a gate.
        agent: its name, which its checkpoints keep; "" keeps none.
        hands_over: questions of other libraries are put to people.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        agent: str = "",
        config: RunnableConfig | None = None,
        context: object = None,
        ungated: Collection[str] = (),
        hands_over: bool = False,
    ) -> None:
        self._schemas = schemas_of(graph) if hands_over else None
        self._graph = fenced_graph(graph)
        self._agent = agent
        self._ungated = ungated
        self._given: RunnableConfig = config or {}
        self._context = context
        self._chunks: asyncio.Queue[object] | None = None
        self._stream_options: dict[str, Any] = {}

    def check_gates(self, ref: str, own_gate: IsFree) -> None:
        """Check the graph against another policy; see `graphs.check_gates`."""
        check_gates(self._graph, ref, self._ungated, own_gate)

    @contextmanager
    def streaming(
        self, modes: StreamMode | Sequence[StreamMode], *, subgraphs: bool
    ) -> Generator[asyncio.Queue[object]]:
        """Yield a queue of the chunks that this runner's steps stream in the block."""
        chunks: asyncio.Queue[object] = asyncio.Queue()
        self._chunks = chunks
        self._stream_options = {"stream_mode": modes, "subgraphs": subgraphs}
        try:
            yield chunks
        finally:
            self._chunks = None

    async def probe(self, thread: str) -> ThreadState:
        """Read the state of a thread."""
        state = state_of(await self._snapshot(thread))
        return replace(state, schemas=self._schemas)

    async def values(self, thread: str) -> dict[str, Any]:
        """Return the thread's whole state.

        Open questions are under ``__interrupt__``, as in the result of LangGraph's
        ``invoke``.
        """
        snapshot = await self._snapshot(thread)
        values = cast("dict[str, Any]", snapshot.values)
        if not snapshot.interrupts:
            return values
        return {**values, "__interrupt__": list(snapshot.interrupts)}

    async def has_taken(self, thread: str, key: str) -> bool:
        """Return True if this key ever started the thread.

        The key is read from the checkpoints, which are written together with the input,
        so a message is known as long as its thread exists. With a checkpointer that
        keeps only the newest checkpoint, only the last message is known.
        """
        if (await self.probe(thread)).taken == key:
            return True
        # Only if the newest checkpoint has another key: this may read the whole
        # history.
        return await self._has_checkpoint(thread, INPUT_KEY, key)

    async def has_taken_answer(self, thread: str, name: str) -> bool:
        """Return True if a step that got the answer to this question saved anything."""
        return await self._has_checkpoint(thread, _answer_key(name), name)

    async def stopped_in_tools(self, thread: str) -> bool:
        """Return True if the last step of a thread failed while tools ran."""
        tasks = (await self._snapshot(thread)).tasks
        failed = [one.name for one in tasks if one.error is not None]
        return any(holds_tools(self._graph, name) for name in failed)

    async def follows_answer(self, thread: str) -> bool:
        """Return True if a thread rests where a step left it that got an answer."""
        metadata = (await self._snapshot(thread)).metadata or {}
        return any(key.startswith(ANSWER_KEY) for key in metadata)

    async def _has_checkpoint(self, thread: str, key: str, value: str) -> bool:
        found = self._saver.alist(_config(thread), filter={key: value}, limit=1)
        return bool([one async for one in found])

    async def start(self, thread: str, text: str, *, key: str) -> None:
        """Give a thread a person's message and run until it rests."""
        # A fixed id: a repeated message replaces itself instead of being added.
        message = HumanMessage(text, id=f"in-{key}")
        await self.give(thread, {"messages": [message]}, key=key)

    async def give(self, thread: str, given: object, *, key: str) -> None:
        """Give a thread any input of its graph and run until it rests."""
        await self._run(thread, given, key)

    async def resume(
        self,
        thread: str,
        answers: Mapping[str, JsonValue],
        *,
        key: str,
        names: Collection[str] = (),
    ) -> None:
        """Answer open questions by interrupt id and run until the thread rests.

        The checkpoints of this step keep the ``names`` of the questions that it
        answers; see `has_taken_answer`.

        Raises:
            AnswerRefused: a question is not open, or its answer does not fit. Other
                answers of the same map may have been taken: read the thread again.
        """
        try:
            # LangGraph takes a map whose keys are not all interrupt ids as one answer.
            await self._run(thread, Command(resume=dict(answers)), key, names)
        except UnknownInterruptError as error:
            raise AnswerRefused(
                f"Thread {thread!r} now asks something else.", is_stale=True
            ) from error
        except Exception as error:
            if not is_invalid_resume(error):
                raise
            raise AnswerRefused(
                f"An answer does not fit its question in thread {thread!r}.",
                is_stale=False,
            ) from error

    async def nudge(self, thread: str, *, key: str) -> None:
        """Continue a thread that was interrupted."""
        await self._run(thread, None, key)

    async def delete(self, thread: str) -> None:
        """Delete all checkpoints of a thread, including those of its subgraphs."""
        with _asynchronous(self._saver):
            await self._saver.adelete_thread(thread)

    @property
    def _saver(self) -> BaseCheckpointSaver[Any]:
        # Such a graph always has a checkpointer here; its own types are partial.
        return cast("BaseCheckpointSaver[Any]", cast("Any", self._graph).checkpointer)

    async def _snapshot(self, thread: str) -> StateSnapshot:
        with _asynchronous(self._saver):
            return await self._graph.aget_state(_config(thread))

    async def _run(
        self, thread: str, given: object, key: str, names: Collection[str] = ()
    ) -> None:
        config = self._step_config(thread, key, names)
        with excepting(self._ungated):
            await self._invoke(given, config)

    def _step_config(
        self, thread: str, key: str, names: Collection[str]
    ) -> RunnableConfig:
        mine = self._given
        return {
            **mine,
            "configurable": {
                **mine.get("configurable", {}),
                # Last: a user's config must not change the thread, or disable strict
                # resuming.
                **_configurable(thread),
                _STRICT: True,
            },
            "metadata": {
                **mine.get("metadata", {}),
                INPUT_KEY: key,
                AGENT_KEY: self._agent,
                **{_answer_key(name): name for name in names},
            },
        }

    async def _invoke(self, given: object, config: RunnableConfig) -> None:
        graph, chunks = cast("Any", self._graph), self._chunks
        options = {"context": self._context, "durability": "sync"}
        if chunks is None:
            await graph.ainvoke(given, config, **options)
            return
        options |= self._stream_options
        async for chunk in graph.astream(given, config, **options):
            chunks.put_nowait(chunk)


MAX_LEFT = 100_000
"""Number of threads remembered as ended or as resumed by the program. The oldest are
forgotten; jobs for them are then put back instead of acknowledged.
"""


class Runners:
    """The runners of agents and of single threads; a thread's runner takes precedence.

    A settings file names one graph for all threads of an agent. A program passes its
    graph to each run, and two runs of one agent may use different graphs: tools with
    one user's credentials, another model, another checkpointer. Such a graph serves
    only its own thread, so no thread ever runs with another user's graph.

    Args:
        agents: agent name to the runner of all its threads; may change later.
        saver: the checkpoints of those agents.
    """

    def __init__(
        self, agents: Mapping[str, Runner], saver: BaseCheckpointSaver[Any]
    ) -> None:
        self.saver = saver
        self._agents = agents
        self._threads: dict[tuple[str, str], Runner] = {}
        # True: the thread has ended. False: the program resumes it itself.
        self._left: dict[tuple[str, str], bool] = {}

    def keep(self, agent: str, thread: str, runner: Runner) -> None:
        """Run this thread with this runner from now on; the last runner counts.

        The caller has the thread's lease, here and in `release`: otherwise the end of
        one turn could release the runner of the next turn.
        """
        self._threads[agent, thread] = runner

    def release(self, agent: str, thread: str) -> None:
        """Forget the runner of a thread that has ended."""
        self._threads.pop((agent, thread), None)
        self.leave(agent, thread, has_ended=True)

    def leave(self, agent: str, thread: str, *, has_ended: bool = False) -> None:
        """Leave a thread to the program, which resumes it unless it has ended."""
        # Removed first: a key that is set again would keep its old place in the order.
        self._left.pop((agent, thread), None)
        self._left[agent, thread] = has_ended
        if len(self._left) > MAX_LEFT:
            del self._left[next(iter(self._left))]

    def has_ended(self, agent: str, thread: str) -> bool | None:
        """Return True if the thread ended in this process, which no longer runs it.

        Another process may have begun another turn since then. False if the program
        resumes the thread itself; None if a runner here resumes it, or if unknown.
        """
        if self.of(agent, thread) is not None:
            return None
        return self._left.get((agent, thread))

    def of(self, agent: str, thread: str) -> Runner | None:
        """Return the runner of a thread; None if this process does not run it."""
        return self._threads.get((agent, thread)) or self._agents.get(agent)

    def is_of_a_program(self, agent: str, thread: str) -> bool:
        """Return True if a program in this process runs this thread itself."""
        return (agent, thread) in self._threads

    @property
    def agents(self) -> tuple[str, ...]:
        """Return the names of the agents whose threads all run here."""
        return tuple(self._agents)

    def serves(self, agent: str) -> bool:
        """Return True if this process runs every thread of an agent."""
        return agent in self._agents


async def kept_graph(
    graph: object,
    ref: str,
    saver: BaseCheckpointSaver[Any] | None,
    ungated: Collection[str],
    own_gate: IsFree | None = None,
) -> Graph:
    """Return a program's compiled graph with a checkpointer: its own, else ``saver``.

    Raises:
        GraphError: it is not a usable graph, or there is no checkpointer for it; the
            text names ``ref``.
    """
    compiled = await as_graph(graph, ref, ungated, own_gate)
    own: object = getattr(compiled, "checkpointer", None)
    if isinstance(own, InMemorySaver):
        _warn_of_memory()
    # Test the type: LangGraph also accepts True and False as a checkpointer.
    if isinstance(own, BaseCheckpointSaver):
        return compiled
    if saver is None:
        raise GraphError(
            f"The {ref} keeps its threads nowhere: compile it with a checkpointer of "
            "its own, such as AsyncPostgresSaver."
        )
    return attached(compiled, saver)


@cache
def _warn_of_memory() -> None:
    """Warn once in a process that threads in memory end with the process."""
    logger.warning(
        "checkpoints.in_memory saver=InMemorySaver: threads that wait for people are "
        "lost when this process ends; compile the graph with a durable checkpointer, "
        "or in `Keyturn` without one"
    )


@contextmanager
def _asynchronous(saver: BaseCheckpointSaver[Any]) -> Generator[None]:
    """Turn the error of a synchronous-only checkpointer into a `GraphError`.

    Every step reads the thread before it runs, so no step has run.
    """
    try:
        yield
    except NotImplementedError as error:
        name = type(saver).__name__
        raise GraphError(
            f"The graph keeps its threads with {name}, which has no asynchronous "
            "methods; compile it with one that has, such as AsyncSqliteSaver or "
            "AsyncPostgresSaver, or without a checkpointer to get Keyturn's."
        ) from error


def check_config(config: RunnableConfig, thread: str) -> None:
    """Check a user's config for the steps of a thread.

    Raises:
        GraphError: it is not a config, or names another thread, a checkpoint, or a
            setting of LangGraph's own.
    """
    is_usable = is_a(config, Mapping) and is_a(config.get("configurable", {}), Mapping)
    wrong = [
        name
        for name, value in (config.get("configurable", {}).items() if is_usable else ())
        if name in _OURS
        or str(name).startswith("__")
        or (name == "thread_id" and value != thread)
    ]
    if wrong or not is_usable:
        raise GraphError(
            f"The config of the thread {thread!r} cannot be used; give a mapping, such "
            "as {'recursion_limit': 50, 'configurable': {...}}"
            + (f", without {wrong!r} in config['configurable']." if wrong else ".")
        )


def _answer_key(name: str) -> str:
    # A key for each question: a step may answer several, and only whole values of the
    # metadata can be searched for.
    return f"{ANSWER_KEY}{name.partition('.')[0]}"


def _config(thread: str) -> RunnableConfig:
    return {"configurable": _configurable(thread)}


def _configurable(thread: str) -> dict[str, str]:
    return {"thread_id": thread, "checkpoint_ns": ""}


ANSWER_KEY = "keyturn_answer_"
"""Checkpoint metadata: begin of the keys of the questions that its step answered."""

INPUT_KEY = "keyturn_input"
"""Checkpoint metadata: key of the last input that started the thread."""


def state_of(snapshot: StateSnapshot) -> ThreadState:
    """Return the state of a thread."""
    if snapshot.metadata is None:
        return ThreadState(exists=False)
    metadata = cast("Mapping[str, object]", snapshot.metadata)
    configurable = snapshot.config.get("configurable", {})
    return ThreadState(
        exists=True,
        pending=tuple(pending_of(one) for one in snapshot.interrupts),
        has_tasks=bool(snapshot.tasks),
        is_cut_off=_is_cut_off(snapshot),
        checkpoint=str(configurable.get("checkpoint_id", "")),
        taken=str(metadata.get(INPUT_KEY, "")),
        final_message=_final_message(snapshot.values),
    )


def _is_cut_off(snapshot: StateSnapshot) -> bool:
    """Return True if work is left that no answer would advance.

    Such work includes tasks that have all ended: their process died before it wrote the
    checkpoint with their results.
    """
    tasks = snapshot.tasks
    if not any(task.interrupts for task in tasks):
        return bool(tasks)
    return any(_waits_for_nobody(task, snapshot) for task in tasks)


def _waits_for_nobody(task: PregelTask, snapshot: StateSnapshot) -> bool:
    """Return True if a task has not ended and has no question.

    A result of None is ambiguous, because a task may end with it. Tasks that ended are
    no longer in ``snapshot.next``.
    """
    has_ended = task.result is not None or task.name not in snapshot.next
    return not task.interrupts and not has_ended


def pending_of(interrupt: Interrupt) -> Question:
    """Return an open question in the worker's form."""
    schema: object = interrupt.response_schema
    return Question(
        id=interrupt.id,
        value=interrupt.value,
        schema=cast("JsonObject", schema) if isinstance(schema, dict) else None,
    )


def _final_message(values: object) -> str:
    """Return the last text since the last human message: the model's, else a tool's."""
    if not isinstance(values, Mapping):
        return ""
    messages = cast("Mapping[str, object]", values).get("messages")
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        return ""
    from_a_tool = ""
    for message in reversed(cast("Sequence[object]", messages)):
        if not isinstance(message, BaseMessage) or isinstance(message, HumanMessage):
            break
        text = str(message.text).strip()
        if isinstance(message, AIMessage) and text:
            return text
        if isinstance(message, ToolMessage):
            # An agent may end with a tool's answer (return_direct).
            from_a_tool = from_a_tool or text
    return from_a_tool

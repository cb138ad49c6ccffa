"""A LangGraph Agent Server, over its HTTP API, also in the cloud.

The server runs each agent and its tools by itself. This module finds the paused threads
and resumes them; `keyturn.connect.hand_over` decides when. An answer is one run:

- The run copies the configuration, the assistant and the webhook of the paused run.
  Without them, a tool would run as another user.
- ``multitask_strategy="reject"``: an answer never interrupts another run.
- No ``checkpoint_id``: it would fork the thread, and a fork does not resume.
- The metadata name the question, the checkpoint and the newest run before. So any
  process can find the run again, and prove that it answered the question: the next
  checkpoint has its run id. The run's status is no proof, because the server ignores
  an answer to a question that is no longer open.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, NamedTuple, cast
from urllib.parse import quote

import aiohttp
from pydantic import JsonValue
from yarl import URL

from keyturn.gateway.client.outgoing import reason
from keyturn.gateway.dialects.asked import Question
from keyturn.gateway.dialects.dialects import program_name
from keyturn.gateway.errors import KeyturnError
from keyturn.gateway.resume.hand_over import Claim, Ending
from keyturn.gateway.service_settings import ServerSettings

logger = logging.getLogger(__name__)

PAGE = 100
"""Threads or runs in one page."""

PAGES = 10
"""Largest number of pages of a thread's runs to search for an earlier answer."""

HISTORY_PAGE = 10
"""Checkpoints in one page; each contains all values of the thread."""

HISTORY_PAGES = 100

MAX_BYTES = 64 * 1024 * 1024
"""Largest response in bytes; a thread's state contains whole conversations."""

TIMEOUT_S = 30.0

_TURNS, _CLAIMS = "keyturn_turns", "keyturn_claims"
_CHECKPOINT, _AFTER = "keyturn_checkpoint", "keyturn_after"
"""Keys in the metadata of Keyturn's runs."""

_OF_A_RUN = ("run_id", "thread_id", "graph_id", "assistant_id", "user_id")
_PREFIXES = ("__", "langgraph_", "checkpoint")
_CHECKS, _TOOLS = "HumanInTheLoopMiddleware.after_model", "tools"
"""Steps of LangChain's agents: the check of an answer, and the tools."""

_IN_CONTEXT = "__context_provided__"
_ACTIVE = {"pending", "running"}
_KEY_REFUSED = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
# The server refuses malformed ids as invalid.
_MISSING = {HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY}
_LATER = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}

Body = dict[str, Any]
"""A JSON object of the server."""


class HostUnavailable(KeyturnError):
    """The server did not answer; it may have received the request."""


class HostRefused(Exception):
    """The server refused a request with a status and a text."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


@dataclass(frozen=True)
class Position:
    """A thread at one moment.

    Attributes:
        thread: id of the thread.
        questions: the open questions.
        checkpoint: id of the checkpoint with these questions.
        run: id of the run that made the checkpoint.
        assistant: id of that run's assistant.
        may_ask_again: asking again would repeat no other work.
    """

    thread: str
    questions: tuple[Question, ...]
    checkpoint: str
    run: str
    assistant: str
    may_ask_again: bool


@dataclass(frozen=True)
class Sent:
    """A run that delivers answers.

    Attributes:
        thread: id of the thread.
        run: id of the run; "" before it is sent.
        marks: the marks of the answers.
        claims: the claims of the calls, to end the hand-over after a crash.
        checkpoint: id of the checkpoint with the answered questions.
        after: id of the newest run before; a run in between may have answered.
    """

    thread: str
    run: str
    marks: tuple[str, ...]
    claims: tuple[Claim, ...]
    checkpoint: str
    after: str


class Waiting(NamedTuple):
    """A thread that may wait: its agent, and a stamp that changes with its state."""

    agent: str
    stamp: str


class Runs(NamedTuple):
    """The runs of a thread, newest first: all ids, and the runs with marks."""

    ids: tuple[str, ...]
    ours: tuple[Sent, ...]

    @property
    def newest(self) -> str:
        """Return the id of the newest run; "" if there is none."""
        return self.ids[0] if self.ids else ""


class Info(NamedTuple):
    """The version and the graphs of a server.

    Attributes:
        version: version of the server; "" if unknown.
        langgraph: version of LangGraph, major and minor; () if unknown.
        graphs: ids of the graphs with an assistant.
        has_auth: the server refuses requests without a key.
    """

    version: str
    langgraph: tuple[int, ...]
    graphs: frozenset[str]
    has_auth: bool


class AgentServer:
    """An Agent Server; every method raises `HostUnavailable` without an answer.

    Args:
        name: the server's name in the settings.
        settings: the server's URL and graphs.
        session: sends requests; the caller closes it.

    Attributes:
        name: the server's name for people.
        agents: names of the server's agents in the policy.
    """

    def __init__(
        self, name: str, settings: ServerSettings, session: aiohttp.ClientSession
    ) -> None:
        self.name = program_name(f"Agent Server {name}")
        self._url, self._session = settings.url.rstrip("/"), session
        self._graphs = {graph: it.agent for graph, it in settings.graphs.items()}
        self.agents = frozenset(self._graphs.values())
        self._headers = {"X-Api-Key": key} if (key := settings.read_key()) else {}
        self._errors = dict[str, Waiting]()

    async def info(self) -> Info:
        """Return facts about the server; also check that the key may list threads.

        Raises:
            HostUnavailable: when the server is not an Agent Server, or refuses the key.
        """
        about = _object(await self._done("GET", "/info"))
        found = await self._done("POST", "/assistants/search", {"limit": 1000})
        body: Body = {"limit": 1, "select": ["thread_id"]}
        await self._done("POST", "/threads/search", body)
        parts = str(about.get("langgraph_py_version", "")).split(".")[:2]
        return Info(
            version=str(about.get("version", "")),
            langgraph=tuple(int(one) for one in parts if one.isdecimal()),
            graphs=frozenset(str(one.get("graph_id")) for one in _objects(found)),
            has_auth=await self._has_auth(body),
        )

    async def _has_auth(self, body: Body) -> bool:
        try:
            await self._ask("POST", "/threads/search", body, {})
        except HostRefused as error:
            return error.status in _KEY_REFUSED
        return False

    async def waiting(self) -> Mapping[str, Waiting]:
        """Return the threads that may wait, also those in error; `read` decides.

        A thread whose answer was refused is in error, with its question still open.
        """
        errors = dict[str, Waiting]()
        async for thread, found in self._threads("error"):
            # The newest change comes first, so all older threads are unchanged.
            if self._errors.get(thread) == found:
                break
            errors[thread] = found
        self._errors = {**self._errors, **errors}
        waiting = [it async for it in self._threads("interrupted")]
        return {**self._errors, **dict(waiting)}

    async def _threads(self, status: str) -> AsyncIterator[tuple[str, Waiting]]:
        """Yield the configured graphs' threads in a status, newest change first."""
        body: Body = {
            "status": status,
            "limit": PAGE,
            "offset": 0,
            "sort_by": "updated_at",
            "sort_order": "desc",
            "select": ["thread_id", "updated_at", "metadata"],
        }
        while True:
            page = _objects(await self._done("POST", "/threads/search", body))
            for one in page:
                graph = str(_object(one.get("metadata")).get("graph_id"))
                if (agent := self._graphs.get(graph)) is not None:
                    stamp = f"{status} {one.get('updated_at')}"
                    yield str(one.get("thread_id")), Waiting(agent, stamp)
            if len(page) < PAGE:
                return
            body["offset"] += PAGE

    async def read(self, thread: str) -> Position | None:
        """Return the position of a thread; None if it is deleted."""
        state = await self._state(thread)
        return None if state is None else _position(thread, state)

    async def runs(self, thread: str) -> Runs:
        """Return the runs of a thread, with earlier answers."""
        found, select = list[Body](), "select=run_id&select=metadata"
        for offset in range(0, PAGES * PAGE, PAGE):
            at = f"/runs?limit={PAGE}&offset={offset}&{select}"
            page = _objects(await self._get(thread, at))
            found += page
            if len(page) < PAGE:
                break
        ours = [sent for one in found if (sent := _sent(thread, one)) is not None]
        return Runs(tuple(str(one.get("run_id")) for one in found), tuple(ours))

    async def send(
        self, at: Position, answers: Mapping[str, JsonValue], mark: Sent
    ) -> Sent | Ending | None:
        """Resume a thread with answers by question id; return None if it is busy."""
        return await self._run(at, {"command": {"resume": dict(answers)}}, mark)

    async def ask_again(self, at: Position, mark: Sent) -> Sent | Ending | None:
        """Make a thread ask again, with new ids and without a call of a model.

        A failed answer stays in its checkpoint and would replace every later answer.
        The run therefore starts from a copy of the checkpoint, without the answer.
        Returns as `send`.
        """
        body: Body = {"input": None, "checkpoint_id": at.checkpoint}
        return await self._run(at, body, mark)

    async def _run(self, at: Position, body: Body, mark: Sent) -> Sent | Ending | None:
        given = {
            **resumed_settings(await self._paused_run(at, mark.after)),
            **body,
            "metadata": {
                _TURNS: [*mark.marks],
                _CLAIMS: [f"{one.item_id} {one.fence}" for one in mark.claims],
                _CHECKPOINT: mark.checkpoint,
                _AFTER: mark.after,
            },
            "multitask_strategy": "reject",
            "if_not_exists": "reject",
            "durability": "sync",
        }
        path = f"/threads/{quote(at.thread, safe='')}/runs"
        try:
            made = _object(await self._ask("POST", path, given))
        except HostRefused as error:
            match error.status:
                case HTTPStatus.CONFLICT:
                    return None
                case HTTPStatus.NOT_FOUND if await self._state(at.thread) is None:
                    return Ending("deleted")
                case _:
                    return Ending("refused", error.detail)
        return replace(mark, run=str(made.get("run_id")))

    async def ending(self, sent: Sent, question: str) -> Ending | None:
        """Return the end of the answer to a question; None while it is unknown."""
        run = _object(await self._get(sent.thread, f"/runs/{sent.run}"))
        state = await self._state(sent.thread)
        if state is None or not run:
            return Ending("failed", "Its run was deleted after it was sent.")
        if await self._has_answered(sent, state):
            return Ending()
        at = _position(sent.thread, state)
        is_open = any(one.id == question for one in at.questions)
        is_there = at.checkpoint == sent.checkpoint
        if run.get("status") in _ACTIVE and is_there:
            return None
        if is_there and is_open:
            return _failed(state, question, run)
        # Other questions of this checkpoint still wait.
        if is_there and await self._is_next(sent):
            return Ending()
        # An earlier request with this answer may have arrived late.
        ours = (await self.runs(sent.thread)).ours
        twins = [one for one in ours if one.marks == sent.marks]
        is_ours = any([await self._has_answered(one, state) for one in twins])
        return Ending("" if is_ours else "answered_elsewhere")

    async def _has_answered(self, sent: Sent, state: Body) -> bool:
        """Return True if the run made the checkpoint after the answered one."""
        page = [state]
        for _ in range(HISTORY_PAGES):
            for one in page:
                if _parent(one) == sent.checkpoint and _run_of(one) == sent.run:
                    return True
                if _checkpoint(one) == sent.checkpoint:
                    return False
            at = f"/history?limit={HISTORY_PAGE}&before={_checkpoint(page[-1])}"
            page = _objects(await self._get(sent.thread, at))
            if not page:
                break
        return False

    async def _is_next(self, sent: Sent) -> bool:
        """Return True if no run came between the question and the answer."""
        ids = [*(await self.runs(sent.thread)).ids, ""]
        return sent.run in ids and ids[ids.index(sent.run) + 1] == sent.after

    async def _paused_run(self, at: Position, newest: str) -> Body:
        """Return the run that asked, or else the newest run."""
        for run in dict.fromkeys(one for one in (at.run, newest) if one):
            found = await self._get(at.thread, f"/runs/{quote(run, safe='')}")
            if found is not None:
                return _object(found)
        return {"assistant_id": at.assistant}

    async def _state(self, thread: str) -> Body | None:
        found = await self._get(thread, "/state")
        return None if found is None else _object(found)

    async def _get(self, thread: str, path: str) -> JsonValue:
        """Return something about a thread; None if it or the thread is missing."""
        path = f"/threads/{quote(thread, safe='')}{path}"
        return await self._done("GET", path, missing=_MISSING)

    async def _done(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        missing: Collection[int] = (),
    ) -> JsonValue:
        """Send a request; return None if its status is one of ``missing``."""
        try:
            return await self._ask(method, path, body)
        except HostRefused as error:
            # A proxy without its server also answers 404, without this detail.
            if error.status in missing and error.detail:
                return None
            raise HostUnavailable(self._refusal(error)) from error

    def _refusal(self, error: HostRefused) -> str:
        if error.status in _KEY_REFUSED:
            return (
                f"{self.name} at {self._url!r} refuses the key ({error.status}). Write "
                "a valid one into its 'key_file', and allow it to read all threads."
            )
        return (
            f"{self.name} at {self._url!r} refused a request ({error.status}); is it "
            "an Agent Server of LangGraph?"
        )

    async def _ask(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> JsonValue:
        """Send a request; ``headers`` replace the header with the key.

        Raises:
            HostUnavailable: when there is no usable response.
            HostRefused: when the server refuses the request.
        """
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),
                self._session.request(
                    method,
                    URL(f"{self._url}{path}", encoded=True),
                    json=body,
                    headers=self._headers if headers is None else headers,
                    allow_redirects=False,
                ) as reply,
            ):
                data = await _read(reply.content)
                status = reply.status
        except TimeoutError:
            raise self._no_answer(f"no answer within {TIMEOUT_S:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise self._no_answer(reason(error)) from error
        try:
            found = cast("JsonValue", json.loads(data))
        except ValueError:
            found = None
        if status == HTTPStatus.OK and found is not None:
            return found
        is_refused = HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR
        if is_refused and status not in _LATER:
            raise HostRefused(status, str(_object(found).get("detail", ""))[:500])
        raise self._no_answer(f"status {status}")

    def _no_answer(self, why: str) -> HostUnavailable:
        return HostUnavailable(
            f"{self.name} at {self._url!r} did not answer ({why}); its questions wait."
        )


async def _read(content: aiohttp.StreamReader) -> bytes:
    data = bytearray()
    async for chunk in content.iter_any():
        data += chunk
        if len(data) > MAX_BYTES:
            raise aiohttp.ClientPayloadError("the answer is too long")
    return bytes(data)


def resumed_settings(paused: Body) -> Body:
    """Return the settings for a run that resumes a paused one.

    The server accepts either a context or a configuration, although it stores both.
    """
    given = _object(paused.get("kwargs"))
    config = _object(given.get("config"))
    configurable = _object(config.get("configurable"))
    own = {
        name: value
        for name, value in configurable.items()
        if name not in _OF_A_RUN and not name.startswith(_PREFIXES)
    }
    found: Body = {"assistant_id": paused.get("assistant_id")}
    kept: Body = {
        name: config[name] for name in ("recursion_limit", "tags") if name in config
    }
    if configurable.get(_IN_CONTEXT):
        found["context"] = given.get("context")
    else:
        kept["configurable"] = own
    for name in ("webhook", "interrupt_before", "interrupt_after"):
        if given.get(name):
            found[name] = given[name]
    return {**found, "config": kept}


def _position(thread: str, state: Body) -> Position:
    found = dict[str, Question]()
    for one in _interrupts(state):
        schema: Body | None = one.get("response_schema")
        if name := one.get("id"):
            # Parallel branches of one node may share an id and a value.
            found[str(name)] = Question(
                str(name),
                one.get("value"),
                schema if isinstance(schema, dict) else None,
            )
    run, metadata = _run_of(state), _object(state.get("metadata"))
    assistant = str(metadata.get("assistant_id") or metadata.get("graph_id") or "")
    steps = [one.get("name") for one in _objects(state.get("tasks"))]
    return Position(
        thread=thread,
        questions=tuple(found.values()),
        checkpoint=_checkpoint(state),
        run=run,
        assistant=assistant,
        may_ask_again=len(steps) == 1 and _TOOLS not in steps,
    )


def _interrupts(state: Body) -> list[Body]:
    tasks = _objects(state.get("tasks"))
    inside = [one for task in tasks for one in _objects(task.get("interrupts"))]
    return _objects(state.get("interrupts")) or inside


def _failed(state: Body, question: str, run: Body) -> Ending:
    """Return the end of an answer whose question is still open after the run."""
    for task in _objects(state.get("tasks")):
        asked = _objects(task.get("interrupts"))
        if task.get("error") and any(one.get("id") == question for one in asked):
            # This step only checks the answer; any other step may have run the call.
            is_refused = task.get("name") == _CHECKS
            return Ending("refused" if is_refused else "failed", str(task["error"]))
    status = str(run.get("status"))
    return Ending("failed", f"Its run ended with the status {status!r}.")


def _sent(thread: str, run: Body) -> Sent | None:
    metadata = _object(run.get("metadata"))
    if _TURNS not in metadata:
        return None
    pairs = [one.rpartition(" ") for one in _texts(metadata.get(_CLAIMS))]
    return Sent(
        thread=thread,
        run=str(run.get("run_id")),
        marks=_texts(metadata[_TURNS]),
        claims=tuple(
            Claim(item, int(fence)) for item, _, fence in pairs if fence.isdecimal()
        ),
        checkpoint=str(metadata.get(_CHECKPOINT)),
        after=str(metadata.get(_AFTER)),
    )


def _texts(value: object) -> tuple[str, ...]:
    found = cast("list[object]", value) if isinstance(value, list) else []
    return tuple(map(str, found))


def _checkpoint(state: Body) -> str:
    return str(_object(state.get("checkpoint")).get("checkpoint_id", ""))


def _parent(state: Body) -> str:
    return str(_object(state.get("parent_checkpoint")).get("checkpoint_id", ""))


def _run_of(state: Body) -> str:
    return str(_object(state.get("metadata")).get("run_id", ""))


def _object(value: object) -> Body:
    return cast("Body", value) if isinstance(value, dict) else {}


def _objects(value: object) -> list[Body]:
    found = cast("list[object]", value) if isinstance(value, list) else []
    return [_object(one) for one in found]

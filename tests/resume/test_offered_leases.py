"""The lease on a thread comes with the answer, or is asked for where it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web

from tests.api.remote_program import RemoteProgram, remote_program
from tests.resume import sample_tools
from tests.resume.resume_stack import AT_ONCE, RULES
from tests.resume.test_embed import asked, decide, refund
from twokey.gateway.client.http_threads import HttpThreads
from twokey.gateway.embed import Twokey
from twokey.gateway.protocol.records import RunRef
from twokey.gateway.protocol.thread_api import TAKE_LEASE_HEADER
from twokey.gateway.store.store import Store

AT: dict[str, Any] = {"thread_id": "t1", "agent": "shop"}
RUN = RunRef(agent="shop", thread="t1")
Answered = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Asked:
    """What a program asks about leases, and what comes of it."""

    leases: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    tokens: list[str] = field(default_factory=list[str])
    waits: asyncio.Event = field(default_factory=asyncio.Event)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Asked:
    found, lease = Asked(), HttpThreads.lease
    wait = HttpThreads.answers_and_lease

    async def asked_for(
        self: HttpThreads, run: RunRef, verb: Any, *, token: str, above: int = 0
    ) -> Any:
        reply = await lease(self, run, verb, token=token, above=above)
        found.leases.append((verb, reply.state))
        if verb == "free":
            found.tokens.append(token)
        return reply

    async def waited(self: HttpThreads, *args: Any, **named: Any) -> Any:
        found.waits.set()
        return await wait(self, *args, **named)

    monkeypatch.setattr(HttpThreads, "lease", asked_for)
    monkeypatch.setattr(HttpThreads, "answers_and_lease", waited)
    return found


async def decided(tk: Twokey, seen: Asked) -> dict[str, Any]:
    """Run until the call is approved while the program waits for that."""
    run = asyncio.create_task(tk.run(sample_tools.graph, refund(), **AT))
    item = await asked(tk)
    await seen.waits.wait()
    await decide(tk, item)
    return await run


async def test_a_decision_takes_no_request_for_the_lease(
    store: Store, tmp_path: Path, seen: Asked
) -> None:
    async with remote_program(store, RULES, tmp_path, retries=AT_ONCE) as tk:
        final = await decided(tk, seen)

    assert final["messages"][-1].text == "refunded 78291 899"
    taken = [("take", "held"), ("free", "free")]
    # For the step that asked. The one that ran the call had its lease already.
    assert seen.leases == [*taken, ("free", "free")]


async def test_an_older_gateway_is_asked_for_the_lease(
    store: Store, tmp_path: Path, seen: Asked
) -> None:
    @web.middleware
    async def older(request: web.Request, handler: Answered) -> web.StreamResponse:
        headers = request.headers.copy()
        headers.pop(TAKE_LEASE_HEADER, None)
        return await handler(request.clone(headers=headers))

    async with remote_program(
        store, RULES, tmp_path, retries=AT_ONCE, middlewares=[older]
    ) as tk:
        final = await decided(tk, seen)

    assert final["messages"][-1].text == "refunded 78291 899"
    assert seen.leases == [("take", "held"), ("free", "free")] * 2


async def test_a_lease_whose_answer_was_lost_is_taken_again(
    store: Store, tmp_path: Path, seen: Asked
) -> None:
    lost = list[str]()

    @web.middleware
    async def losing(request: web.Request, handler: Answered) -> web.StreamResponse:
        reply = await handler(request)
        token = request.headers.get(TAKE_LEASE_HEADER, "")
        if token and cast("web.Response", reply).body != b"[]" and len(lost) < 2:
            lost.append(token)
            assert request.transport
            request.transport.abort()
        return reply

    async with remote_program(
        store, RULES, tmp_path, retries=AT_ONCE, middlewares=[losing]
    ) as tk:
        final = await decided(tk, seen)

    assert final["messages"][-1].text == "refunded 78291 899"
    assert len(set(lost)) == 1
    assert ("take", "busy") not in seen.leases


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch, seen: Asked) -> list[str]:
    """Let the gateway take the lease in the first wait, and nobody learn of it."""
    tokens, wait = list[str](), HttpThreads.answers_and_lease

    async def lose(
        self: HttpThreads, run: RunRef, *args: Any, token: str, **named: Any
    ) -> Any:
        if tokens:
            return await wait(self, run, *args, token=token, **named)
        tokens.append(token)
        assert (await self.lease(run, "take", token=token)).state == "held"
        seen.waits.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(HttpThreads, "answers_and_lease", lose)
    return tokens


@pytest.mark.usefixtures("lost")
async def test_a_wait_that_is_left_when_the_lease_was_taken_takes_it_again(
    store: Store, tmp_path: Path, seen: Asked
) -> None:
    async with remote_program(store, RULES, tmp_path, retries=AT_ONCE) as tk:
        run = asyncio.create_task(tk.run(sample_tools.graph, refund(), **AT))
        item = await asked(tk)
        await seen.waits.wait()
        await decide(tk, item)
        runs = cast("Any", cast("RemoteProgram", cast("object", tk)))._runs
        assert runs.wake(RUN)
        final = await run

    assert final["messages"][-1].text == "refunded 78291 899"
    assert ("take", "busy") not in seen.leases


async def test_a_run_that_is_replaced_gives_back_what_it_may_have(
    store: Store, tmp_path: Path, seen: Asked, lost: list[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr("twokey.gateway.remote.attempts.BUSY_S", 0.02)
    hello = {"messages": [{"role": "user", "content": "hello"}]}
    async with remote_program(store, RULES, tmp_path, retries=AT_ONCE) as tk:
        run = asyncio.create_task(tk.run(sample_tools.graph, refund(), **AT))
        await asked(tk)
        await seen.waits.wait()
        final = await tk.run(sample_tools.graph, hello, **AT)
        await run

    assert final["messages"][-1].text == "You said hello"
    assert lost[0] in seen.tokens


async def test_a_lease_that_has_nearly_ended_is_taken_again(
    store: Store, tmp_path: Path, seen: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process was stopped before it read the answer."""
    wait = HttpThreads.answers_and_lease

    async def late(self: HttpThreads, *args: Any, **named: Any) -> Any:
        answers, lease = await wait(self, *args, **named)
        if lease is not None:
            lease = replace(lease, ends_s=lease.ends_s - lease.lease_s * 0.6)
        return answers, lease

    monkeypatch.setattr(HttpThreads, "answers_and_lease", late)
    async with remote_program(store, RULES, tmp_path, retries=AT_ONCE) as tk:
        final = await decided(tk, seen)

    assert final["messages"][-1].text == "refunded 78291 899"
    assert seen.leases == [("take", "held"), ("free", "free")] * 2

"""A gateway takes the lease on a thread for who waits for its answer, if offered."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import aiohttp
import pytest

from tests.api.api_stack import ApiStack
from tests.conftest import eventually
from tests.service.harness import ANA
from twokey.gateway.approvals.decisions import Approve
from twokey.gateway.client import http_threads
from twokey.gateway.client.http_threads import HttpThreads, OfferedLease
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.protocol.http_api import ANSWERS, Scope
from twokey.gateway.protocol.remote_runs import AnswersQuestion, OpenQuestion
from twokey.gateway.protocol.thread_api import TAKE_LEASE_HEADER, TAKEN_LEASE_HEADER
from twokey.gateway.protocol.wire import ProposedCall, Turn, TurnRef, Verdict

REF = TurnRef(agent="support", thread="t1", message_id="m1")
RUN = REF.run_ref
TOKEN, OTHER = "a" * 32, "b" * 32
CALL = ProposedCall(tool="process_refund", args={"amount": 899}, tool_call_id="c1")


@pytest.fixture
async def verdict(stack: ApiStack) -> Verdict:
    async with stack.gateway() as gateway:
        (found,) = await gateway.submit(Turn(ref=REF, calls=(CALL,)))
    return found


def open_question(verdict: Verdict) -> OpenQuestion:
    return OpenQuestion(
        kind="twokey.approval",
        item_id=verdict.item_id,
        action_hash=verdict.action_hash,
    )


async def decide(stack: ApiStack, verdict: Verdict) -> None:
    click = await stack.harness.click(verdict)
    await stack.harness.reviews.decide(click, Approve(), ANA)


async def waited(
    stack: ApiStack, verdict: Verdict, token: str = TOKEN, key: str | None = None
) -> OfferedLease | None:
    """Wait for the answer with an offer; return what was taken."""
    async with stack.gateway(key) as gateway:
        answers, lease = await HttpThreads(gateway.connection).answers_and_lease(
            RUN, [open_question(verdict)], wait_s=30, token=token
        )
    assert answers
    return lease


async def lease(stack: ApiStack, verb: Any, token: str) -> str:
    async with stack.gateway() as gateway:
        threads = HttpThreads(gateway.connection)
        return (await threads.lease(RUN, verb, token=token)).state


async def is_waiting(stack: ApiStack) -> bool:
    return any(cast("Any", feed)._followers for feed in stack.feeds)


async def test_the_lease_comes_with_the_answer_that_was_waited_for(
    stack: ApiStack, verdict: Verdict
) -> None:
    waiting = asyncio.create_task(waited(stack, verdict))
    await eventually(lambda: is_waiting(stack))
    assert await lease(stack, "take", OTHER) == "held"
    assert await lease(stack, "free", OTHER) == "free"
    await decide(stack, verdict)
    taken = await waiting

    assert taken is not None
    assert taken.fence == 2
    assert await lease(stack, "take", OTHER) == "busy"
    assert await lease(stack, "keep", TOKEN) == "held"


async def test_nobody_is_given_what_another_holds(
    stack: ApiStack, verdict: Verdict
) -> None:
    assert await lease(stack, "take", OTHER) == "held"
    await decide(stack, verdict)

    assert await waited(stack, verdict) is None
    assert await lease(stack, "keep", OTHER) == "held"


async def test_who_took_it_meanwhile_keeps_the_number_of_then(
    stack: ApiStack, verdict: Verdict
) -> None:
    """A wait that its program has left is still answered, by way of a proxy."""
    waiting = asyncio.create_task(waited(stack, verdict))
    await eventually(lambda: is_waiting(stack))
    async with stack.gateway() as gateway:
        threads = HttpThreads(gateway.connection)
        mine = await threads.lease(RUN, "take", token=TOKEN)
        await decide(stack, verdict)

        assert await waiting is None
        kept = await threads.lease(RUN, "keep", token=TOKEN)
    assert (kept.state, kept.fence) == ("held", mine.fence)


async def test_without_an_answer_nothing_is_taken(
    stack: ApiStack, verdict: Verdict
) -> None:
    async with stack.gateway() as gateway:
        answers, taken = await HttpThreads(gateway.connection).answers_and_lease(
            RUN, [open_question(verdict)], wait_s=0, token=TOKEN
        )

    assert (answers, taken) == ((), None)
    assert await lease(stack, "take", OTHER) == "held"


async def test_a_key_that_runs_nothing_is_given_no_lease(
    stack: ApiStack, verdict: Verdict
) -> None:
    await decide(stack, verdict)

    assert await waited(stack, verdict, key=stack.key(scopes=[Scope.READ])) is None
    assert await lease(stack, "take", OTHER) == "held"


async def test_a_key_that_ended_meanwhile_is_given_no_lease(
    stack: ApiStack, verdict: Verdict
) -> None:
    key = stack.key()
    waiting = asyncio.create_task(waited(stack, verdict, key=key))
    await eventually(lambda: is_waiting(stack))
    stack.kept.pop(key.split("_")[1])
    await decide(stack, verdict)

    assert await waiting is None
    assert await lease(stack, "take", OTHER) == "held"


async def test_the_answer_is_given_although_a_key_cannot_be_looked_up(
    stack: ApiStack, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_: object) -> None:
        raise StoreUnavailable("away")

    waiting = asyncio.create_task(waited(stack, verdict))
    await eventually(lambda: is_waiting(stack))
    with monkeypatch.context() as patched:
        patched.setattr(stack.api, "_presented", away)
        await decide(stack, verdict)

        assert await waiting is None
    assert await lease(stack, "take", OTHER) == "held"


async def test_who_has_gone_is_given_no_lease(
    stack: ApiStack, verdict: Verdict
) -> None:
    waiting = asyncio.create_task(waited(stack, verdict))
    await eventually(lambda: is_waiting(stack))
    waiting.cancel()
    await asyncio.wait([waiting])
    await decide(stack, verdict)

    async def has_answered() -> bool:
        return not await is_waiting(stack)

    await eventually(has_answered)
    assert await lease(stack, "take", OTHER) == "held"


@pytest.mark.parametrize("token", ["", "x" * 32, "A" * 32, "a" * 31, "a" * 33])
async def test_what_is_no_token_is_refused(
    stack: ApiStack, verdict: Verdict, token: str
) -> None:
    asked = AnswersQuestion(run=RUN, questions=(open_question(verdict),))
    headers = {"Authorization": f"Bearer {stack.key()}", TAKE_LEASE_HEADER: token}
    async with (
        aiohttp.ClientSession(headers=headers) as client,
        client.post(
            f"{stack.url}{ANSWERS.path}", data=ANSWERS.question.dump_json(asked)
        ) as reply,
    ):
        assert reply.status == 400
        assert TAKEN_LEASE_HEADER not in reply.headers


@pytest.mark.parametrize(
    ("waited_s", "passed_s", "left_s"),
    [
        # It was taken when the question had been there for 20 of 25 seconds.
        (20.0, 25.0, 25.0),
        # A clock over there that runs fast is not believed.
        (60.0, 25.0, 30.0),
        (-5.0, 25.0, 5.0),
        # This process was stopped meanwhile.
        (20.0, 90.0, -40.0),
    ],
)
def test_a_lease_ends_here_no_later_than_there(
    monkeypatch: pytest.MonkeyPatch, waited_s: float, passed_s: float, left_s: float
) -> None:
    monkeypatch.setattr(http_threads, "now_s", lambda: 100.0 + passed_s)
    text = f'{{"fence":1,"name":"n","lease_s":30.0,"waited_s":{waited_s}}}'
    found = http_threads.offered(text, asked_s=100.0)

    assert found is not None
    assert found.ends_s - (100.0 + passed_s) == pytest.approx(left_s)


@pytest.mark.parametrize("text", ["", "x", "{}", '{"fence":1,"new":2}'])
def test_what_cannot_be_read_is_no_lease(text: str) -> None:
    assert http_threads.offered(text, asked_s=0.0) is None

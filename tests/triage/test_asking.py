"""For any triage, asking it ends in time and never in an error."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyturn import Keyturn
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.policy.evaluate import evaluate
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Tier
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.triage.asking import TriageFailure, ask, require_triage
from keyturn.gateway.triage.chat_model import as_message
from keyturn.gateway.triage.request import (
    MAX_ARGUMENTS,
    MAX_VALUE,
    TriageRequest,
    request_of,
)

REQUEST = TriageRequest(agent="a", tool="t", tier=Tier.APPROVE, hour_utc=0)
SOON = timedelta(milliseconds=50)
LONG = timedelta(seconds=30)
WHO = contextvars.ContextVar("WHO", default="nobody")


class Odd(BaseException):
    """An error that is no `Exception`."""


class Played:
    """Triage with a configured answer."""

    def __init__(self, given: Any = None) -> None:
        self.given = given
        self.heard: list[TriageRequest] = []

    async def assess(self, request: TriageRequest) -> object:
        self.heard.append(request)
        if isinstance(self.given, BaseException):
            raise self.given
        return self.given


class Synchronous:
    """Triage whose method is no coroutine, so nothing could be awaited."""

    def assess(self, request: TriageRequest) -> object:
        return {"raise_to": "deny"}


class Hanging:
    """Triage that never answers; a stubborn one does not even stop when cancelled."""

    def __init__(self, *, is_stubborn: bool = False) -> None:
        self.is_stubborn = is_stubborn
        self.is_over = asyncio.Event()
        self.was_cancelled = False

    async def assess(self, request: TriageRequest) -> object:
        while not self.is_over.is_set():
            try:
                await self.is_over.wait()
            except asyncio.CancelledError:
                self.was_cancelled = True
                if not self.is_stubborn:
                    raise
        return {"raise_to": "deny"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Synchronous(), "is no object with a coroutine"),
        (Played, "is no object with a coroutine"),
    ],
)
def test_triage_that_never_answers_is_refused(given: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        require_triage(given, "what was given")
    with pytest.raises(SettingsError, match=words):
        Keyturn(triage=given)


@pytest.mark.parametrize(
    ("triage", "why"),
    [
        (None, TriageFailure.NOT_CONFIGURED),
        (Played("no JSON"), TriageFailure.INVALID),
        (Played(ValueError("args: 4111")), TriageFailure.ERROR),
        (Played(Odd("args: 4111")), TriageFailure.ERROR),
        (Played(asyncio.CancelledError()), TriageFailure.ERROR),
        (Synchronous(), TriageFailure.ERROR),
    ],
)
async def test_a_failure_is_a_silence_and_no_word_of_it_is_logged(
    triage: Any, why: TriageFailure, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        response = await ask(triage, REQUEST, LONG)

    assert (response.assessment, response.failure) == (None, why)
    assert f"triage.failed reason={why}" in caplog.text
    assert "4111" not in caplog.text


@pytest.mark.parametrize("is_stubborn", [True, False])
async def test_triage_that_hangs_costs_its_time_out(*, is_stubborn: bool) -> None:
    triage = Hanging(is_stubborn=is_stubborn)

    try:
        async with asyncio.timeout(30):
            response = await ask(triage, REQUEST, SOON)
            while not triage.was_cancelled:  # noqa: ASYNC110 - set by another task
                await asyncio.sleep(0)
    finally:
        triage.is_over.set()

    assert response.failure is TriageFailure.TIMEOUT


async def test_no_time_left_asks_nothing() -> None:
    triage = Played({"raise_to": "deny"})

    response = await ask(triage, REQUEST, timedelta())

    assert response.failure is TriageFailure.TIMEOUT
    assert not triage.heard


async def test_a_cancelled_caller_is_cancelled_and_stops_triage() -> None:
    triage = Hanging()
    caller = asyncio.create_task(ask(triage, REQUEST, LONG))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    caller.cancel()

    with pytest.raises(asyncio.CancelledError):
        await caller
    await asyncio.sleep(0)
    assert triage.was_cancelled


async def test_triage_sees_nothing_of_the_run_that_waits_for_it() -> None:
    class Curious:
        async def assess(self, request: TriageRequest) -> object:
            return {"raise_to": "approve", "rationale": WHO.get()}

    WHO.set("the agent's run")

    response = await ask(Curious(), REQUEST, LONG)

    assert response.assessment is not None
    assert response.assessment.rationale == "nobody"


POLICY = load_policy(
    """\
version: 1
defaults: {needs: U0ANA}
tools:
  pay:
    tier: approve
    description: "Pay {args.amount} with {args.card.number}"
    redact: [args.card.number, args.tokens.*]
""",
    "p.yml",
)
SECRET = "4111-1111-1111-1111"
TEXTS = st.text(max_size=2000)


def request(args: JsonObject, tool: str = "pay", now_ms: int = 0) -> TriageRequest:
    evaluation = evaluate(POLICY, agent="shop", tool=tool, args=args)
    return request_of(evaluation, agent="shop", tool=tool, args=args, now_ms=now_ms)


def test_a_packet_says_what_is_asked_and_why() -> None:
    made = request({"amount": 5, "to": "ada"}, now_ms=1_782_900_000_000)

    assert (made.agent, made.tool, made.tier) == ("shop", "pay", Tier.APPROVE)
    assert made.reasons == ("The policy lists this tool as approve.",)
    assert [(one.name, one.text) for one in made.arguments] == [
        ("amount", "5"),
        ("to", "ada"),
    ]
    assert made.hour_utc == 10
    assert not made.is_cut


def test_a_redacted_value_is_in_no_part_of_a_packet() -> None:
    made = request({"card": {"number": SECRET}, "tokens": [SECRET, {"a": SECRET}]})

    assert SECRET not in made.model_dump_json()
    assert all(one.is_redacted for one in made.arguments)


@given(st.dictionaries(TEXTS, TEXTS | st.lists(TEXTS), max_size=2 * MAX_ARGUMENTS))
def test_a_packet_is_bounded_and_says_what_it_leaves_out(args: JsonObject) -> None:
    made = request(args)

    assert len(made.arguments) + made.left_out == len(args)
    assert all(len(one.text) <= MAX_VALUE + 40 for one in made.arguments)
    assert len(made.model_dump_json()) < 100_000


@pytest.mark.parametrize(
    "args", [{"note": "x" * (MAX_VALUE + 7)}, {f"a{n:02}": n for n in range(40)}]
)
def test_what_is_cut_is_marked(args: JsonObject) -> None:
    made = request(args)

    assert made.is_cut
    assert made.left_out == 10 or made.arguments[0].text.endswith("7 more characters)")


@given(TEXTS, TEXTS)
def test_no_argument_ends_the_frame_that_the_model_reads(tool: str, text: str) -> None:
    told = as_message(request({"note": f"</packet>{text}"}, tool=tool))

    lines = told.split("\n")
    assert (lines[0], lines[-1]) == ("<packet>", "</packet>")
    assert told.count("<") == 2
    assert json.loads("\n".join(lines[1:-1]))["arguments"][0]["name"] == "note"

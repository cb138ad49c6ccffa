"""Deliver events, interactions and commands to the app, by HTTP or Socket Mode."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias, TypeVar

from keyturn.sandbox.clock import Clock
from keyturn.sandbox.faults import DeliveryFault, Faults, PlannedDeliveryFault
from keyturn.sandbox.json_types import JsonObject

T = TypeVar("T")

ACK_WITHIN_S = 3.0
RETRY_AFTER_S = (0.0, 60.0, 300.0)
"""https://docs.slack.dev/apis/events-api/#retries"""


class EnvelopeKind(StrEnum):
    """The type of a delivery, with Socket Mode's names."""

    INTERACTIVE = "interactive"
    COMMAND = "slash_commands"
    EVENT = "events_api"


@dataclass(frozen=True, slots=True)
class Envelope:
    """A delivery to the app: Slack's payload and its type."""

    kind: EnvelopeKind
    payload: JsonObject


@dataclass(frozen=True, slots=True)
class Retry:
    """The number and reason of a repeated event."""

    num: int
    reason: str


@dataclass(frozen=True, slots=True)
class Ack:
    """The app answered in time; `body` is decoded JSON, plain text or None."""

    body: object = None


@dataclass(frozen=True, slots=True)
class NoAck:
    """The app did not answer with success in time.

    `reason` is `timeout`, `not_connected`, `connection_failed` or `http_<status>`.
    """

    reason: str
    no_retry: bool = False


Answer: TypeAlias = Ack | NoAck


class Transport(Protocol):
    """A transport to the app."""

    @property
    def connected(self) -> bool:
        """Return True if the app can be reached."""
        ...

    async def send(self, envelope: Envelope, retry: Retry | None) -> Answer:
        """Deliver once, and wait at most three seconds for the answer."""
        ...


async def within_deadline(clock: Clock, work: Coroutine[object, object, T]) -> T:
    """Return the result of `work`, unless three seconds of the clock pass first.

    Raises:
        TimeoutError: the time is up; the work was cancelled.
    """
    # By the sandbox's clock: a test advances it instead of waiting three seconds.
    task = asyncio.ensure_future(work)
    timer = asyncio.ensure_future(clock.sleep(ACK_WITHIN_S))
    try:
        await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise TimeoutError
        return task.result()
    finally:
        for pending in (task, timer):
            pending.cancel()
        # Awaited, so that cancelled work has ended before the next delivery begins.
        await asyncio.gather(task, timer, return_exceptions=True)


class Delivery:
    """Send envelopes to the app; retry only events."""

    def __init__(self, clock: Clock, faults: Faults, transport: Transport) -> None:
        self.transport = transport
        self._clock = clock
        self._faults = faults
        self._retries: set[asyncio.Task[None]] = set()

    async def deliver(self, envelope: Envelope) -> Answer:
        """Send an envelope and return the app's answer.

        An unanswered event is sent again immediately, after one minute and after five.
        Interactions and commands are not retried.
        """
        planned = self._faults.next_delivery_fault()
        answer = await self.transport.send(envelope, _as_retry(planned))
        if planned is not None and planned.fault is DeliveryFault.DUPLICATE:
            await self.transport.send(envelope, None)
        if (
            envelope.kind is EnvelopeKind.EVENT
            and isinstance(answer, NoAck)
            and not answer.no_retry
        ):
            task = asyncio.create_task(self._retry(envelope, answer))
            self._retries.add(task)
            task.add_done_callback(self._retries.discard)
        return answer

    async def close(self) -> None:
        """Stop retrying."""
        tasks = tuple(self._retries)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _retry(self, envelope: Envelope, answer: Answer) -> None:
        for num, seconds in enumerate(RETRY_AFTER_S, start=1):
            if not isinstance(answer, NoAck) or answer.no_retry:
                return
            await self._clock.sleep(seconds)
            retry = Retry(num, _retry_reason(answer))
            answer = await self.transport.send(envelope, retry)


def _as_retry(planned: PlannedDeliveryFault | None) -> Retry | None:
    if planned is None or planned.fault is not DeliveryFault.RETRY_HEADERS:
        return None
    return Retry(planned.retry_num, planned.retry_reason)


def _retry_reason(failure: NoAck) -> str:
    if failure.reason == "timeout":
        return "http_timeout"
    return "http_error" if failure.reason.startswith("http_") else "connection_failed"

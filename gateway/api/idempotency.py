"""Answer a repeated write like the first one (Idempotency-Key).

Every write of the API is safe to repeat. With a key, a retry after a lost answer gets
the first answer, and the reuse of a key for another request is detected.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from keyturn.gateway.api.refusals import Refusal
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.http_problems import KEY_REUSED, MALFORMED, UNDER_WAY
from keyturn.gateway.protocol.run_context import HEADER
from keyturn.gateway.store.http.kept_answers import KeptAnswer, KeptAnswers

logger = logging.getLogger(__name__)

REPLAYED = "Idempotent-Replayed"
"""Header of an answer from an earlier attempt."""

_KEY = re.compile(r"[\x21-\x7e]{1,200}", re.ASCII)
_WAIT_S = 5.0


class Idempotency:
    """The writes of one tenant in this process.

    Args:
        answers: store of earlier answers.
    """

    def __init__(self, answers: KeptAnswers) -> None:
        self._answers = answers
        self._locks = WeakValueDictionary[tuple[str, str], asyncio.Lock]()

    async def once(
        self,
        place: tuple[str, str],
        request: bytes,
        work: Callable[[], Awaitable[bytes]],
        *,
        replays: bool,
    ) -> tuple[bytes, bool]:
        """Return the answer to a write, and whether it is from an earlier attempt.

        Args:
            place: id of the API key, and the idempotency key.
            request: the content of the request.
            work: computes the answer; called once for a key, unless it fails.
            replays: whether a repeated write gets the first answer; otherwise `work` is
                called each time.

        Raises:
            Refusal: when the key was used for another request, or is invalid.
        """
        if _KEY.fullmatch(place[1]) is None:
            raise Refusal(MALFORMED, f"{HEADER} takes 1 to 200 printable characters.")
        asked = hashlib.sha256(request).hexdigest()
        async with self._alone(place):
            if not replays:
                # Before the work, in one request: the answer is not stored.
                begun = KeptAnswer(request=asked, body="")
                _check_same(await self._answers.keep(*place, begun), asked)
                return await work(), False
            found = await self._answers.find(*place)
            _check_same(found, asked)
            if found is not None:
                return found.body.encode(), True
            answer = await work()
            await self._keep(place, KeptAnswer(request=asked, body=answer.decode()))
            return answer, False

    async def _keep(self, place: tuple[str, str], kept: KeptAnswer) -> None:
        try:
            await self._answers.keep(*place, kept)
        except StoreUnavailable as error:
            # The write is done, and repeating it is safe without the stored answer.
            logger.warning("api.answer_not_kept error=%s", error)

    @asynccontextmanager
    async def _alone(self, place: tuple[str, str]) -> AsyncGenerator[None]:
        """Wait for an earlier attempt with the same key in this process."""
        lock = self._locks.setdefault(place, asyncio.Lock())
        try:
            async with asyncio.timeout(_WAIT_S):
                await lock.acquire()
        except TimeoutError as error:
            raise Refusal(
                UNDER_WAY,
                f"The first request with this {HEADER} is being answered; send it "
                "again in a second.",
                {"Retry-After": "1"},
            ) from error
        try:
            yield
        finally:
            lock.release()


def _check_same(found: KeptAnswer | None, asked: str) -> None:
    """Refuse a key that was used for another request."""
    if found is not None and found.request != asked:
        raise Refusal(
            KEY_REUSED,
            f"This {HEADER} was used for another request; make a new one for each "
            "write, and keep it for its repetitions.",
        )

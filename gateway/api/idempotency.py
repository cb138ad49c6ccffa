"""Answer a repeated write like the first one (Idempotency-Key).

Every write of the API is safe to repeat. With a key, a retry after a lost answer gets
the first answer, and the reuse of a key for another request is detected.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress

from aiohttp import web

from keyturn.gateway.api.refusals import Refusal
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.http_problems import KEY_REUSED, MALFORMED, UNDER_WAY
from keyturn.gateway.protocol.run_context import HEADER
from keyturn.gateway.store.kept_answers import KeptAnswer, KeptAnswers

logger = logging.getLogger(__name__)

REPLAYED = "Idempotent-Replayed"
"""Header of an answer from an earlier attempt."""

_KEY = re.compile(r"[\x21-\x7e]{1,200}", re.ASCII)
_WAIT_S = 5.0

Work = Callable[[], Awaitable[bytes]]


class Idempotency:
    """The writes of one tenant in this process.

    Args:
        answers: store of earlier answers.
    """

    def __init__(self, answers: KeptAnswers) -> None:
        self._answers = answers
        self._under_way: dict[tuple[str, str], asyncio.Future[None]] = {}
        self._keeping = set[asyncio.Task[None]]()

    async def once(
        self,
        api_key: str,
        request: web.BaseRequest,
        what: str,
        body: bytes,
        work: Work,
        *,
        replays: bool = True,
    ) -> tuple[bytes, bool]:
        """Return the answer to a write, and whether it is from an earlier attempt.

        Args:
            api_key: id of the API key.
            request: the request, with or without the header.
            what: name of the operation.
            body: body of the request.
            work: computes the answer; called once for a key, unless it fails.
            replays: whether a repeated write gets the first answer; otherwise `work` is
                called each time.

        Raises:
            Refusal: when the key was used for another request, or is invalid.
        """
        given = request.headers.get(HEADER)
        if given is None:
            return await work(), False
        if _KEY.fullmatch(given) is None:
            raise Refusal(MALFORMED, f"{HEADER} takes 1 to 200 printable characters.")
        asked = hashlib.sha256(f"{what}\n".encode() + body).hexdigest()
        place = (api_key, given)
        await self._wait_for(place)
        mine = self._under_way[place] = asyncio.get_running_loop().create_future()
        try:
            found = await self._find(api_key, given, asked)
            if found is not None and replays:
                self._end(place, mine)
                return found.body.encode(), True
            answer = await work()
            if found is not None:
                self._end(place, mine)
                return answer, False
            text = answer.decode() if replays else ""
            kept = KeptAnswer(request=asked, body=text)
            # In the background: the write is done, and repeating it is safe without the
            # stored answer.
            keeping = asyncio.create_task(self._keep(api_key, given, kept, mine))
            self._keeping.add(keeping)
            keeping.add_done_callback(self._keeping.discard)
        except BaseException:
            self._end(place, mine)
            raise
        return answer, False

    async def _find(self, api_key: str, key: str, asked: str) -> KeptAnswer | None:
        found = await self._answers.find(api_key, key)
        if found is not None and found.request != asked:
            raise Refusal(
                KEY_REUSED,
                f"This {HEADER} was used for another request; make a new one for "
                "each write, and keep it for its repetitions.",
            )
        return found

    async def close(self) -> None:
        """Wait until all answers are stored."""
        if self._keeping:
            await asyncio.wait(self._keeping)

    async def _keep(
        self, api_key: str, key: str, kept: KeptAnswer, mine: asyncio.Future[None]
    ) -> None:
        try:
            await self._answers.keep(api_key, key, kept)
        except StoreUnavailable as error:
            logger.warning("api.answer_not_kept error=%s", error)
        finally:
            self._end((api_key, key), mine)

    async def _wait_for(self, place: tuple[str, str]) -> None:
        """Wait for an earlier attempt with the same key in this process."""
        clock = asyncio.get_running_loop().time
        ends = clock() + _WAIT_S
        while (others := self._under_way.get(place)) is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, ends - clock())):
                    await asyncio.shield(others)
            if clock() >= ends:
                raise Refusal(
                    UNDER_WAY,
                    f"The first request with this {HEADER} is being answered; send "
                    "it again in a second.",
                    {"Retry-After": "1"},
                )

    def _end(self, place: tuple[str, str], mine: asyncio.Future[None]) -> None:
        if self._under_way.get(place) is mine:
            del self._under_way[place]
        if not mine.done():
            mine.set_result(None)

"""Issue response URLs: five posts within thirty minutes, for one conversation."""

import secrets
from dataclasses import dataclass, replace

from keyturn.sandbox.api_errors import ApiError
from keyturn.sandbox.clock import Clock

LIFE_S = 30 * 60.0
POSTS = 5
KEPT = 10_000


@dataclass(frozen=True, slots=True)
class ResponseUrl:
    """The target of a response URL: a channel, a person and perhaps a message."""

    id: str
    channel: str
    user: str
    issued_at: float
    message_ts: str | None = None
    thread_ts: str | None = None
    posts: int = 0


class ResponseUrls:
    """Record the issued response URLs and their uses.

    Source: https://docs.slack.dev/interactivity/handling-user-interaction
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, ResponseUrl] = {}

    def issue(
        self,
        channel: str,
        user: str,
        message_ts: str | None = None,
        thread_ts: str | None = None,
    ) -> str:
        """Return the id of a new response URL."""
        url_id = secrets.token_hex(12)
        now = self._clock.now()
        self._known[url_id] = ResponseUrl(
            url_id, channel, user, now, message_ts, thread_ts
        )
        while len(self._known) > KEPT:
            self._known.pop(next(iter(self._known)))
        return url_id

    def use(self, url_id: str) -> ResponseUrl:
        """Count one post and return the URL's target.

        Raises:
            ApiError: `expired_url` (unknown or older than 30 minutes) or `used_url`
                (five posts were made).
        """
        url = self._known.get(url_id)
        if url is None or self._clock.now() - url.issued_at > LIFE_S:
            raise ApiError("expired_url")
        if url.posts >= POSTS:
            raise ApiError("used_url")
        self._known[url_id] = replace(url, posts=url.posts + 1)
        return url

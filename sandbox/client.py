"""HTTP client that acts as a person of the sandbox, over its page's endpoints."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Self, TypeVar

import aiohttp

from keyturn.sandbox.elements import find
from keyturn.sandbox.json_types import JsonObject, as_object, as_objects
from keyturn.sandbox.state_values import choice, entered

T = TypeVar("T")

WAIT_TIMEOUT_S = 30.0
FOREVER = aiohttp.ClientTimeout(total=None)


class UserActionFailed(Exception):
    """The sandbox refused an action, or the app did not respond to it.

    Attributes:
        error: the error name, such as `app_did_not_respond` or `action_not_found`.
        answer: the sandbox's whole answer.
    """

    def __init__(self, kind: str, answer: JsonObject) -> None:
        self.error = str(answer.get("error"))
        self.answer = answer
        super().__init__(f"The action {kind!r} failed: {answer!r}.")


class Person:
    """One person of the workspace, who reads and acts like a user of the page."""

    def __init__(
        self, base_url: str, user_id: str, session: aiohttp.ClientSession
    ) -> None:
        self.id = user_id
        self._base = base_url.rstrip("/")
        self._session = session

    # Reading

    async def state(self) -> JsonObject:
        """Return everything this person can see; see `GET /sandbox/state`."""
        url = f"{self._base}/sandbox/state"
        async with self._session.get(url, params={"user": self.id}) as response:
            body = as_object(await response.json())
        if "error" in body:
            raise UserActionFailed("state", body)
        return body

    async def messages(self, channel: str) -> list[JsonObject]:
        """Return the messages of a channel (id or #name), oldest first."""
        return _messages(await self.state(), channel)

    async def ephemerals(self, channel: str) -> list[JsonObject]:
        """Return the messages of a channel that only this person sees."""
        return [
            message for message in await self.messages(channel) if message["ephemeral"]
        ]

    async def notices(self) -> list[JsonObject]:
        """Return Slack's notices to this person, oldest first."""
        return as_objects((await self.state())["notices"])

    async def view(self) -> JsonObject | None:
        """Return the modal on top, or None."""
        stack = as_objects((await self.state())["views"])
        return stack[-1] if stack else None

    async def home(self) -> JsonObject | None:
        """Return the published Home view of the app, or None."""
        return as_object((await self.state())["home"]) or None

    async def wait_for(
        self, condition: Callable[[JsonObject], T], timeout_s: float = WAIT_TIMEOUT_S
    ) -> T:
        """Return the first truthy result of `condition(state)`.

        The state is read again on every change.

        Raises:
            TimeoutError: there was none in time.
        """
        url = f"{self._base}/sandbox/events"
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session.get(
                    url, params={"user": self.id}, timeout=FOREVER
                ) as stream,
            ):
                async for line in stream.content:
                    if line.startswith(b"data:") and (
                        found := condition(await self.state())
                    ):
                        return found
        except TimeoutError:
            raise TimeoutError(
                f"{self.id} waited {timeout_s} s for {condition!r} in vain."
            ) from None
        raise TimeoutError(f"The sandbox stopped while {self.id} waited.")

    async def message_with(
        self,
        channel: str,
        predicate: Callable[[JsonObject], object],
        timeout_s: float = WAIT_TIMEOUT_S,
    ) -> JsonObject:
        """Wait for the newest message that satisfies `predicate`, and return it."""

        def newest(state: JsonObject) -> JsonObject | None:
            shown = reversed(_messages(state, channel))
            return next((message for message in shown if predicate(message)), None)

        found = await self.wait_for(newest, timeout_s)
        return as_object(found)

    async def wait_for_view(
        self,
        predicate: Callable[[JsonObject], object] = bool,
        timeout_s: float = WAIT_TIMEOUT_S,
    ) -> JsonObject:
        """Return the modal on top once it satisfies `predicate`."""

        def top(state: JsonObject) -> JsonObject | None:
            stack = as_objects(state["views"])
            return stack[-1] if stack and predicate(stack[-1]) else None

        return as_object(await self.wait_for(top, timeout_s))

    # Acting

    async def click(
        self,
        channel: str,
        ts: str,
        action_id: str,
        block_id: str | None = None,
        *,
        chosen: object = None,
    ) -> None:
        """Click a button of a message, or choose in another of its elements.

        `chosen` is the choice: an option's text or value, a date, a text.

        Raises:
            UserActionFailed: the element does not exist, or the app did not answer in
                time.
        """
        state = await self.state()
        place = _channel(state, channel)
        shown = [m for m in as_objects(place["messages"]) if m["ts"] == ts]
        blocks = as_objects(shown[0]["blocks"]) if shown else []
        await self.act(
            "block_actions",
            channel=place["id"],
            ts=ts,
            action_id=action_id,
            block_id=block_id,
            chosen=_chosen(blocks, action_id, block_id, chosen),
        )

    async def act_in_view(
        self,
        action_id: str,
        block_id: str | None = None,
        *,
        chosen: object = None,
        values: Mapping[str, object] | None = None,
    ) -> None:
        """Use an element of the modal on top, after entering `values`."""
        await self._act_in(await self._top(), action_id, block_id, chosen, values)

    async def act_in_home(
        self, action_id: str, block_id: str | None = None, *, chosen: object = None
    ) -> None:
        """Use an element of the app's Home view."""
        home = await self.home()
        if home is None:
            raise UserActionFailed("act_in_home", {"error": "no_home"})
        await self._act_in(home, action_id, block_id, chosen, None)

    async def submit(
        self, values: Mapping[str, object] | None = None
    ) -> dict[str, str]:
        """Submit the modal on top, with `values` over its current values.

        A key is a block_id or an action_id. A value is Slack's state object (by
        action_id, under a block_id) or a plain value: a text, number or date, an
        option's value, a list of those, or None to clear the element.

        Returns:
            The errors shown at the inputs, by block_id; empty if the form was accepted.
        """
        view = await self._top()
        blocks = as_objects(view["blocks"])
        answer = await self.act(
            "view_submission", view_id=view["id"], values=entered(blocks, values or {})
        )
        return {key: str(text) for key, text in as_object(answer.get("errors")).items()}

    async def close_view(self, *, clear: bool = False) -> None:
        """Close the modal on top, or with `clear` the whole stack."""
        view = await self._top()
        await self.act("view_closed", view_id=view["id"], clear=clear)

    async def say(self, channel: str, text: str, thread_ts: str | None = None) -> str:
        """Post a message and return its ts; `@keyturn` mentions the bot."""
        place = _channel(await self.state(), channel)
        answer = await self.act(
            "message", channel=place["id"], text=text, thread_ts=thread_ts
        )
        return str(answer["ts"])

    async def edit(self, channel: str, ts: str, text: str) -> None:
        """Replace the text of one of this person's messages."""
        place = _channel(await self.state(), channel)
        await self.act("message_edited", channel=place["id"], ts=ts, text=text)

    async def delete(self, channel: str, ts: str) -> None:
        """Delete one of this person's messages."""
        place = _channel(await self.state(), channel)
        await self.act("message_deleted", channel=place["id"], ts=ts)

    async def command(self, command: str, text: str, channel: str) -> None:
        """Run a slash command."""
        place = _channel(await self.state(), channel)
        await self.act("command", command=command, text=text, channel=place["id"])

    async def open_home(self) -> None:
        """Open the app's Home tab."""
        await self.act("home_opened")

    async def act(self, kind: str, **arguments: object) -> JsonObject:
        """Post one action to `/sandbox/act`, and return the answer.

        Raises:
            UserActionFailed: the answer is not ok.
        """
        body = {"user": self.id, "type": kind, **arguments}
        url = f"{self._base}/sandbox/act"
        async with self._session.post(url, json=body, timeout=FOREVER) as response:
            answer = as_object(await response.json())
        if not answer.get("ok"):
            raise UserActionFailed(kind, answer)
        return answer

    async def _act_in(
        self,
        view: JsonObject,
        action_id: str,
        block_id: str | None,
        chosen: object,
        values: Mapping[str, object] | None,
    ) -> None:
        blocks = as_objects(view["blocks"])
        await self.act(
            "block_actions",
            view_id=view["id"],
            action_id=action_id,
            block_id=block_id,
            chosen=_chosen(blocks, action_id, block_id, chosen),
            values=entered(blocks, values or {}),
        )

    async def _top(self) -> JsonObject:
        view = await self.view()
        if view is None:
            raise UserActionFailed("view", {"error": "no_view_is_open"})
        return view


class People:
    """Scripted people of a running sandbox; use it with `async with`."""

    def __init__(self, base_url: str) -> None:
        self._base = base_url
        self._open = AsyncExitStack()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Open the shared connections."""
        session = aiohttp.ClientSession()
        self._session = await self._open.enter_async_context(session)
        return self

    async def __aexit__(self, *_raised: object) -> None:
        """Close the connections."""
        self._session = None
        await self._open.aclose()

    def person(self, user_id: str) -> Person:
        """Return a person to act as."""
        if self._session is None:
            raise RuntimeError("No connection is open; use `async with People()`.")
        return Person(self._base, user_id, self._session)


def _channel(state: JsonObject, reference: str) -> JsonObject:
    name = reference.removeprefix("#")
    for channel in as_objects(state["channels"]):
        if reference == channel["id"] or name == channel["name"]:
            return channel
    raise UserActionFailed(
        "channel", {"error": "channel_not_found", "channel": reference}
    )


def _messages(state: JsonObject, channel: str) -> list[JsonObject]:
    return as_objects(_channel(state, channel)["messages"])


def _chosen(
    blocks: list[JsonObject], action_id: str, block_id: str | None, chosen: object
) -> JsonObject | None:
    placed = find(blocks, action_id, block_id)
    if chosen is None or placed is None:
        return None
    return choice(placed, chosen)

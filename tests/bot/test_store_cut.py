"""A bot without its store logs a few lines, and continues when it is back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from keyturn.bot.ids import Action
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store.store import Store
from keyturn.sandbox.client import UserActionFailed
from keyturn.sandbox.server import Sandbox
from tests.bot.bot_stack import CHANNEL, Stack
from tests.conftest import eventually
from tests.store_secrets import SECRETS

CLICKS = 20


class Wire:
    """A way to the store that can be cut; also before an answer, `once` it is so."""

    def __init__(self, target: str, path: Path) -> None:
        self.once: Callable[[], Awaitable[bool]] | None = None
        self._target = target
        self._path = path
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"unix://{self._path}"

    async def join(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self._path)

    async def cut(self) -> None:
        assert self._server
        self._server.close()
        self._path.unlink(missing_ok=True)
        for writer in self._open:
            writer.close()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        inner, outer = await asyncio.open_unix_connection(self._target)
        self._open |= {writer, outer}
        await asyncio.gather(
            _copy(reader, outer), _copy(inner, writer, before=self._answering)
        )
        self._open -= {writer, outer}

    async def _answering(self) -> None:
        if self.once and await self.once():
            self.once = None
            await self.cut()


async def _nothing() -> None: ...


async def _copy(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    *,
    before: Callable[[], Awaitable[None]] = _nothing,
) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            await before()
            writer.write(data)
            await writer.drain()
    writer.close()


@pytest.fixture
async def wire(store: Store, tmp_path: Path) -> AsyncIterator[Wire]:
    """Give a wire to the store of the test."""
    made = Wire(urlsplit(store.conn.url).path, tmp_path / "wire.sock")
    await made.join()
    yield made
    await made.cut()


@pytest.fixture
async def stack(wire: Wire) -> AsyncIterator[Stack]:
    """Give a stack that reaches its store over the wire."""
    over = Store(wire.url, secrets=SECRETS, lease_ms=2000)
    async with Sandbox() as sandbox:
        yield Stack(sandbox, over)
    await over.close()


async def test_a_cut_store_fills_no_log_and_a_click_afterwards_counts(
    stack: Stack, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with stack.running():
        verdict = await stack.refund()
        card = await stack.card(verdict)

        async def click() -> None:
            ana = stack.actor("U0ANA")
            with suppress(UserActionFailed):
                await ana.click(CHANNEL, str(card["ts"]), Action.APPROVE)

        async def is_approved() -> bool:
            await click()
            item = (await stack.approval(verdict)).items[0]
            return item.state is ItemState.AUTHORIZED

        await wire.cut()
        caplog.clear()
        for _ in range(CLICKS):
            await click()
        await stack.bot_is_quiet()
        lines = [one for one in caplog.records if one.levelno >= logging.WARNING]
        await wire.join()
        await eventually(is_approved)

    assert lines, "an operator has to see it"
    assert [one.getMessage() for one in lines if one.exc_info] == []
    assert not [one for one in lines if "\n" in one.getMessage()]
    assert len(lines) <= 3 * CLICKS


async def test_who_clicked_is_not_told_that_nothing_was_recorded_where_it_may_be(
    stack: Stack, store: Store, wire: Wire
) -> None:
    """The store fails after it wrote a decision, and before its reply."""
    async with stack.running():
        # One before it: otherwise the lost reply is "unknown script".
        first = await stack.card(await stack.refund("t0", amount=1))
        await stack.actor("U0ANA").click(CHANNEL, str(first["ts"]), Action.APPROVE)
        verdict = await stack.refund()
        card = await stack.card(verdict)
        await stack.bot_is_quiet()

        async def is_authorized() -> bool:
            approval = await Stack(stack.sandbox, store).approval(verdict)
            return approval.items[0].state is ItemState.AUTHORIZED

        wire.once = is_authorized
        await stack.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)
        said = await stack.told("U0ANA", "is recorded")
        await wire.join()

    assert wire.once is None
    assert "It is not confirmed that this is recorded" in said

"""A FastAPI application with its own checkpointer and as many workers as you like.

    KEYTURN_GATEWAY=https://gateway.example.com KEYTURN_API_KEY=tk_… \
        uvicorn examples.fastapi_remote.app:app --workers 2

Every worker opens the same database of threads. A new worker continues all unfinished
threads. The gateway leases each thread to one worker at a time, so that no call runs
twice; if a worker dies, another one continues. Use Postgres (`AsyncPostgresSaver`) if
the workers run on several machines.

With KEYTURN_WEBHOOK_SECRET the gateway can notify the application of decisions, at
/keyturn (docs/webhooks.md); without it, workers poll the gateway.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import aiosqlite
from fastapi import FastAPI, HTTPException, Request, Response
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from pydantic import BaseModel

from examples.support_agent import graph
from keyturn import Keyturn
from keyturn.gateway.errors import NotVerified
from keyturn.gateway.remote.program import RemoteKeyturn

DATABASE = os.environ.get("APP_DATABASE", "threads.sqlite")
AGENT = "support"


class Question(BaseModel):
    """A customer's message."""

    text: str


class Threads:
    """The unfinished threads of this application."""

    def __init__(
        self, tk: RemoteKeyturn, saver: AsyncSqliteSaver, db: aiosqlite.Connection
    ) -> None:
        self.tk, self.db = tk, db
        self.graph = graph.copy(update={"checkpointer": saver})
        self.running: set[asyncio.Task[None]] = set()

    async def ask(self, thread: str, text: str) -> None:
        """Store a question before the agent gets it, so that no crash loses it."""
        row = (thread, text)
        await self.db.execute("INSERT OR REPLACE INTO open VALUES (?, ?)", row)
        await self.db.commit()
        self.take_up(thread, text)

    def take_up(self, thread: str, text: str) -> None:
        """Run a thread to its end in the background; the same text continues it."""
        task = asyncio.create_task(self._run(thread, text))
        self.running.add(task)
        task.add_done_callback(self.running.discard)

    async def _run(self, thread: str, text: str) -> None:
        given = {"messages": [("user", text)]}
        await self.tk.run(self.graph, given, thread_id=thread, agent=AGENT)
        await self.db.execute("DELETE FROM open WHERE thread = ?", (thread,))
        await self.db.commit()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    """Open the databases of this worker, and continue unfinished threads."""
    async with (
        AsyncSqliteSaver.from_conn_string(DATABASE) as saver,
        aiosqlite.connect(f"{DATABASE}.open") as db,
        Keyturn.remote() as tk,
    ):
        await db.execute("CREATE TABLE IF NOT EXISTS open (thread PRIMARY KEY, text)")
        app.state.threads = threads = Threads(tk, saver, db)
        for thread, text in await db.execute_fetchall("SELECT thread, text FROM open"):
            threads.take_up(thread, text)
        yield


app = FastAPI(lifespan=lifespan)


def threads_of(request: Request) -> Threads:
    """Return the threads of the answering worker."""
    return cast("Threads", request.app.state.threads)


@app.post("/orders/{thread}")
async def ask(thread: str, question: Question, request: Request) -> dict[str, Any]:
    """Ask the agent; the answer may have to wait for people."""
    await threads_of(request).ask(thread, question.text)
    return {"thread": thread}


@app.post("/keyturn", status_code=204)
async def decided(request: Request) -> Response:
    """Continue the thread that got a decision."""
    threads = threads_of(request)
    try:
        await threads.tk.handle_webhook(
            request.headers, await request.body(), graph=threads.graph
        )
    except NotVerified as refused:
        raise HTTPException(401, str(refused)) from refused
    return Response(status_code=204)


@app.get("/orders/{thread}")
async def show(thread: str, request: Request) -> dict[str, Any]:
    """Return the waiting calls, or the agent's answer."""
    threads = threads_of(request)
    waiting = await threads.tk.pending(thread_id=thread, agent=AGENT)
    said = None
    if not waiting:
        try:
            final = await threads.tk.wait(
                threads.graph, thread_id=thread, agent=AGENT, timeout_s=1
            )
            said = final["messages"][-1].text
        except TimeoutError:
            pass  # still at work: ask again
    return {"waiting": [call.tool for call in waiting], "said": said}

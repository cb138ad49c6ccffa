"""List a checkpointer's threads that wait for an answer.

A thread waits when a task of its newest checkpoint asked a question. In SQLite and
Postgres that is read from indexes, a page at a time, without any checkpoint being
loaded. Any other saver is listed by its own ``alist``, newest checkpoints first.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, cast

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

Saver = BaseCheckpointSaver[Any]

PAGE = 500
"""How many threads one statement looks at."""
MAX_LISTED = 100_000
"""How many checkpoints of a saver of somebody else's are looked at, newest first."""
INTERRUPT = "__interrupt__"
"""Channel in which LangGraph keeps questions."""

# The root namespace is enough: a question of a graph inside is written there, too, as
# one of the task that runs this graph.
_NEWEST = """
SELECT newest.thread_id AS thread, newest.id IN (
  SELECT w.checkpoint_id FROM {writes} AS w
  WHERE w.thread_id = newest.thread_id AND w.checkpoint_ns = ''
    AND w.checkpoint_id = newest.id AND w.channel = '{interrupt}'
) AS waits
FROM (
  SELECT thread_id, MAX(checkpoint_id) AS id FROM checkpoints
  WHERE checkpoint_ns = '' AND thread_id > {mark}
  GROUP BY thread_id ORDER BY thread_id LIMIT {page}
) AS newest
ORDER BY newest.thread_id
"""


class CannotList(Exception):
    """A checkpointer does not say which threads it has."""


async def waiting_threads(saver: Saver) -> AsyncGenerator[str]:
    """Yield the ids of the threads that wait for an answer.

    Raises:
        CannotList: when the saver does not say which threads it has.
    """
    if isinstance(saver, AsyncSqliteSaver) or _is_postgres(saver):
        async for thread in _paged(saver):
            yield thread
        return
    for thread in await _listed(saver):
        yield thread


# Pages begin after a key, not at an OFFSET: threads that come or go meanwhile shift no
# page.
async def _paged(saver: Saver) -> AsyncGenerator[str]:
    after = ""
    while True:
        rows = await _page(saver, after)
        for thread, is_waiting in rows:
            if is_waiting:
                yield thread
        if len(rows) < PAGE:
            return
        after = rows[-1][0]


async def _page(saver: Saver, after: str) -> list[tuple[str, bool]]:
    if isinstance(saver, AsyncSqliteSaver):
        await saver.setup()
        query = _NEWEST.format(writes="writes", interrupt=INTERRUPT, mark="?", page="?")
        async with saver.lock, saver.conn.execute(query, (after, PAGE)) as cursor:
            return [(str(row[0]), bool(row[1])) for row in await cursor.fetchall()]
    query = _NEWEST.format(
        writes="checkpoint_writes", interrupt=INTERRUPT, mark="%s", page="%s"
    )
    # The saver's own cursor: on a connection of its pool, or on its one locked one.
    async with cast("Any", saver)._cursor() as cursor:  # noqa: SLF001
        await cursor.execute(query, (after, PAGE))
        rows = cast("list[dict[str, object]]", await cursor.fetchall())
        return [(str(row["thread"]), bool(row["waits"])) for row in rows]


async def _listed(saver: Saver) -> list[str]:
    """Return the waiting threads of a saver that is asked for all its checkpoints."""
    seen: set[str] = set()
    waiting: list[str] = []
    try:
        async for one in saver.alist(None, limit=MAX_LISTED):
            place = one.config.get("configurable", {})
            thread = str(place.get("thread_id", ""))
            # Newest first, so only a thread's first checkpoint says whether it waits
            # now.
            if place.get("checkpoint_ns") or thread in seen:
                continue
            seen.add(thread)
            if any(channel == INTERRUPT for _, channel, _ in one.pending_writes or ()):
                waiting.append(thread)
    except Exception as error:
        # What a saver of somebody else's raises for a list of all is its own choice.
        raise CannotList(type(saver).__name__) from error
    return waiting


def _is_postgres(saver: Saver) -> bool:
    return any(
        (kind.__module__, kind.__name__)
        == ("langgraph.checkpoint.postgres.aio", "AsyncPostgresSaver")
        for kind in type(saver).__mro__
    )

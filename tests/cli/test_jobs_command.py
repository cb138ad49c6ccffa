"""'keyturn jobs' lists failed runs, retries them, or drops them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.resume.retries import Retries
from keyturn.gateway.resume.store_threads import ThreadRef
from keyturn.gateway.store.runs.jobs import Job, JobKind
from keyturn.gateway.store.store import Store
from tests.bot.strategies import CANARY
from tests.cli.conftest import Shell
from tests.streams import announced

RESUME = Job(kind=JobKind.RESUME, tenant="default", agent="shop", thread="t1")


def thread(store: Store, name: str = "t1") -> ThreadRef:
    return ThreadRef(store.keys_of_tenant("default"), "shop", name)


def fails(error: Exception, *names: str) -> Callable[[Store], Awaitable[object]]:
    """Make a run of each thread fail."""

    async def work(store: Store) -> None:
        for name in names or ("t1",):
            await Retries(store).failed(thread(store, name), error, left=RESUME)

    return work


def test_a_parked_run_is_listed_shown_and_tried_again(operator: Shell) -> None:
    assert "No run waits" in operator.said("jobs", "list")
    operator.do(fails(KeyError(CANARY)))

    [row] = operator.found("jobs", "list")
    shown = operator.said("jobs", "show", str(row["id"])[:12])
    told = operator.said("jobs", "retry", str(row["id"]), "--by", "ana")
    [tried] = operator.found("jobs", "list")

    assert (row["state"], row["trouble"], row["to_do"]) == ("parked", "code", "resume")
    assert row["reason"] == "The agent's code failed (KeyError)."
    assert "KeyError" in shown
    assert CANARY not in shown + operator.said("jobs", "list")
    assert "a gateway that serves its agent tries it now" in told
    assert tried["state"] == "waiting"

    async def is_queued_once(store: Store) -> None:
        keys = thread(store).keys
        assert await store.queue(keys).depth() == 1
        events = await announced(store.conn, keys)
        [event] = [one for one in events if one.name is EventName.RUN_RETRIED]
        assert (event.actor, event.data["gesture"]) == ("ana", "cli")

    operator.do(is_queued_once)


def test_a_waiting_run_is_tried_at_once_and_has_one_job(operator: Shell) -> None:
    operator.do(fails(ConnectionError()))
    operator("jobs", "retry", "--all")

    async def is_due(store: Store) -> None:
        keys = thread(store).keys
        assert await store.conn.command("ZCARD", keys.retry) == 0
        assert await store.conn.command("XLEN", keys.jobs) == 1

    operator.do(is_due)


def test_a_dropped_run_is_gone_and_brought_forward_by_nobody(operator: Shell) -> None:
    operator.do(fails(ConnectionError()))
    [row] = operator.found("jobs", "list")

    assert "was dropped" in operator.said("jobs", "drop", str(row["id"]))
    assert operator.found("jobs", "list") == []
    assert "No run" in operator.refused("jobs", "retry", str(row["id"]))

    async def is_dropped(store: Store) -> None:
        at = thread(store)
        events = await announced(store.conn, at.keys)
        [event] = [one for one in events if one.name is EventName.RUN_DROPPED]
        assert event.data["gesture"] == "cli"
        assert await store.queue(at.keys).depth() == 0
        assert await store.stalled.is_dropped(at.keys, at.run)

    operator.do(is_dropped)


def test_a_name_that_stands_for_nothing_or_for_several_is_refused(
    operator: Shell,
) -> None:
    operator.do(fails(KeyError(), "t1", "t2"))

    assert "matches 2 runs" in operator.refused("jobs", "show", "run_")
    assert "No run 'x'" in operator.refused("jobs", "drop", "x")
    assert "Name one run" in operator.refused("jobs", "retry")


def test_names_of_a_thread_steer_no_terminal(operator: Shell) -> None:
    operator.do(fails(KeyError(), "\x1b[2J"))
    [row] = operator.found("jobs", "list")

    shown = operator.said("jobs", "show", str(row["id"]))

    assert "\x1b" not in operator.said("jobs", "list") + shown

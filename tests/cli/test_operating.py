"""Operators freeze tools, drop readers, retry failed runs, and erase people."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import NoReturn

import pytest

from keyturn.gateway.approvals.decisions import Reject
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.errors import ThreadUnavailable
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.resume.retries import Retries
from keyturn.gateway.service.people.erasing import Eraser
from keyturn.gateway.store.events import outbox
from keyturn.gateway.store.runs.jobs import Job, JobKind
from keyturn.gateway.store.store import Store
from tests.bot.strategies import CANARY
from tests.cli.conftest import Shell
from tests.service.harness import ANA, ServiceHarness
from tests.streams import announced


@pytest.fixture
def admin(operator: Shell) -> Shell:
    """Give a shell with a policy that names a tool and an agent."""
    tools = "tools: {pay: {tier: auto}}, agents: {bills: {}}"
    operator.write(f"policy: {{version: 1, {tools}}}\n")
    return operator


@pytest.mark.parametrize("verb", ["freeze", "unfreeze"])
@pytest.mark.parametrize(("kind", "name"), [("tool", "payy"), ("agent", "bill")])
def test_a_wrong_name_is_refused(admin: Shell, verb: str, kind: str, name: str) -> None:
    assert f"no {kind} '{name}'; did you mean" in admin.refused(verb, kind, name)
    assert "Nothing is frozen" in admin.said("frozen")
    assert "is frozen" in admin.said("freeze", kind, name, "--unlisted")
    assert "may run again" in admin.said("unfreeze", kind, name)


def test_freezing_twice_is_freezing_once(admin: Shell) -> None:
    first = admin.said("freeze", "tool", "refund", "--reason", "wrong", "--by", "ana")
    again = admin.said("freeze", "tool", "refund", "--by", "ben")

    listed = admin.said("frozen")
    assert "The tool 'refund' is frozen" in first
    assert "frozen already" in again
    assert "tool refund: frozen by ana since " in listed
    assert listed.strip().endswith(": wrong")


def test_what_nothing_here_names_is_frozen_with_a_note(admin: Shell) -> None:
    note = "please check its name."

    tool = admin.said("freeze", "tool", "refund")
    agent = admin.said("freeze", "agent", "shop")

    assert f"Neither the policy nor the settings name this tool; {note}" in tool
    assert f"Neither the policy nor the settings name this agent; {note}" in agent
    for known in (["tool", "pay"], ["agent", "bills"], ["everything"]):
        assert note not in admin.said("freeze", *known)


def test_a_freeze_needs_no_policy(admin: Shell) -> None:
    admin.write("policy: {version: 2}\n")

    assert admin.said("freeze", "tool", "payy").count("\n") == 1


def test_lifting_says_whether_there_was_anything_to_lift(admin: Shell) -> None:
    admin("freeze", "everything")

    assert "Everything may run again" in admin.said("unfreeze", "everything")
    assert "was not frozen" in admin.said("unfreeze", "everything")
    assert "Nothing is frozen" in admin.said("frozen")


def test_lists_and_the_audit_log_name_the_command_line(admin: Shell) -> None:
    admin("freeze", "agent", "support")
    [row] = admin.found("frozen")
    admin("unfreeze", "agent", "support")

    assert row["scope"] == {"kind": "agent", "name": "support"}
    assert row["by"].startswith("cli/")
    exported = admin.said("audit", "export").splitlines()
    found = [(one["name"], one["data"]["gesture"]) for one in map(json.loads, exported)]
    assert found == [("freeze.set", "cli"), ("freeze.lifted", "cli")]


def test_a_user_without_a_name_may_stop_things_too(
    admin: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> str:
        raise OSError("No username set in the environment")

    monkeypatch.setattr("getpass.getuser", nobody)

    admin("freeze", "everything")

    assert "everything: frozen by cli since" in admin.said("frozen")


@pytest.mark.parametrize(
    ("words", "why"), [(["agent"], "Which"), (["everything", "x"], "takes no name")]
)
def test_an_unknown_scope_is_refused(admin: Shell, words: list[str], why: str) -> None:
    assert why in admin.refused("freeze", *words)
    # Nobody who wants to end a freeze is told to begin one.
    assert "keyturn freeze" not in admin.refused("unfreeze", *words)


AWAY, HERE = "slack:away", "slack:default"


async def two_readers(store: Store) -> None:
    """One reader is away, and one read everything a moment ago."""
    keys = store.keys_of_tenant("default")
    away, here = (store.outbox(keys, reader=name) for name in (AWAY, HERE))
    for one in (away, here):
        await one.prepare()
    for _ in range(3):
        await away.put(Event(name=EventName.RUN_FINISHED, tenant="default"))
    await here.done(*(event.seq for event in await here.take("c", block_ms=1)))


def test_readers_are_listed_with_what_they_have_not_read(
    operator: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator.do(two_readers)

    rows = operator.found("outbox", "list")
    told = operator.said("outbox", "list")

    assert [(row["reader"], row["unread"]) for row in rows] == [(AWAY, 3), (HERE, 0)]
    assert rows[0]["idle_ms"] is None
    assert f"reader={AWAY}  unread=3\n" in told
    assert "keyturn outbox drop" not in told

    monkeypatch.setattr(outbox, "MANY", 2)
    # As if these events were older than the retention for idle readers.
    monkeypatch.setattr(outbox, "_KEPT_MS", -60_000)
    told = operator.said("outbox", "list")
    assert "'keyturn outbox drop' if it is gone for good" in told


def test_a_reader_in_use_is_not_dropped(operator: Shell) -> None:
    operator.do(two_readers)

    assert f"{AWAY} is dropped" in operator.said("outbox", "drop", AWAY)
    assert "stop it first" in operator.refused("outbox", "drop", HERE)
    assert f"There is no reader '{AWAY}'" in operator.refused("outbox", "drop", AWAY)
    assert [row["reader"] for row in operator.found("outbox", "list")] == [HERE]


RESUME = Job(kind=JobKind.RESUME, tenant="default", agent="shop", thread="t1")


def thread(name: str = "t1") -> RunRef:
    return RunRef(agent="shop", thread=name)


def fails(error: Exception, *names: str) -> Callable[[Store], Awaitable[object]]:
    """Make a run of each thread fail."""

    async def work(store: Store) -> None:
        for name in names or ("t1",):
            await Retries(store).failed(thread(name), error, left=RESUME)

    return work


def test_a_parked_run_is_listed_and_tried_again(operator: Shell) -> None:
    assert "No run waits" in operator.said("jobs", "list")
    operator.do(fails(KeyError(CANARY)))

    [row] = operator.found("jobs", "list")
    told = operator.said("jobs", "retry", str(row["id"]), "--by", "ana")
    [tried] = operator.found("jobs", "list")

    assert (row["state"], row["trouble"], row["to_do"]) == ("parked", "code", "resume")
    assert row["reason"] == "The agent's code failed (KeyError)."
    assert CANARY not in operator.said("jobs", "list")
    assert "a gateway that serves its agent tries it now" in told
    assert tried["state"] == "waiting"

    async def is_queued_once(store: Store) -> None:
        keys = store.keys_of_tenant("default")
        assert await store.queue(keys).depth() == 1
        events = await announced(store.conn, keys)
        [event] = [one for one in events if one.name is EventName.RUN_RETRIED]
        assert (event.actor, event.data["gesture"]) == ("ana", "cli")

    operator.do(is_queued_once)


def test_a_waiting_run_is_tried_at_once_and_has_one_job(operator: Shell) -> None:
    operator.do(fails(ConnectionError()))
    operator("jobs", "retry", "--all")

    async def is_due(store: Store) -> None:
        keys = store.keys_of_tenant("default")
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
        at, keys = thread(), store.keys_of_tenant("default")
        events = await announced(store.conn, keys)
        [event] = [one for one in events if one.name is EventName.RUN_DROPPED]
        assert event.data["gesture"] == "cli"
        assert await store.queue(keys).depth() == 0
        is_dropped, _ = await store.threads.state_of_run(keys, at.agent, at.thread)
        assert is_dropped

    operator.do(is_dropped)


def test_an_unknown_or_ambiguous_name_is_refused(operator: Shell) -> None:
    operator.do(fails(KeyError(), "t1", "t2"))

    assert "matches 2 runs" in operator.refused("jobs", "drop", "run_")
    assert "No run 'x'" in operator.refused("jobs", "drop", "x")
    assert "Name one run" in operator.refused("jobs", "retry")


def test_names_of_a_thread_steer_no_terminal(operator: Shell) -> None:
    operator.do(fails(KeyError(), "\x1b[2J"))

    assert "\x1b" not in operator.said("jobs", "list")


@pytest.fixture
def ended(operator: Shell) -> str:
    """Return a rejected approval; the next one is pending."""
    found: list[str] = []

    async def reject(store: Store) -> None:
        harness = ServiceHarness(store)
        click, _ = await harness.refund()
        await harness.reviews.decide(click, Reject(reason="no"), ANA)
        await harness.refund(thread="t2")
        found.append(click.approval)

    operator.do(reject)
    return found[0]


def test_it_says_first_what_it_would_erase(operator: Shell, ended: str) -> None:
    said = operator.said("erase", ended)
    found = operator.found("erase", ended)

    assert "Would be erased: approvals: 1" in said
    assert ended in said
    assert "--yes" in said
    assert (found["approvals"], found["is_erased"]) == ([ended], False)


def test_a_person_is_erased_and_what_waits_is_kept(operator: Shell, ended: str) -> None:
    code, said, _ = operator("erase", "U0DAN", "--yes")

    # Something was not erased.
    assert code == 1
    assert "Erased: approvals: 1" in said
    assert ended in said
    assert " is kept" in said
    assert "'audit_folder'" in said
    # What the log has of it can be erased later.
    assert operator.found("erase", "U0DAN")["approvals"] == [ended]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("dan", "--yes"), "has no approval 'dan'"),
        (("ap_default_" + "0" * 32,), "has no approval 'ap_default_0"),
        (("ap_default_" + "0" * 32, "--yes"), "has no approval 'ap_default_0"),
    ],
)
def test_what_never_was_is_not_said_to_be_erased(
    operator: Shell, words: tuple[str, ...], why: str
) -> None:
    told = operator.refused("erase", *words)

    assert why in told
    assert "nothing was erased" in told.lower()


def test_a_person_of_whom_nothing_is_kept(operator: Shell) -> None:
    assert "Nothing was found" in operator.said("erase", "U0NOBODY")


def test_what_was_erased_can_be_named_again(operator: Shell, ended: str) -> None:
    operator("erase", ended, "--yes")

    said = operator.said("erase", ended)
    row = operator.found("erase", ended)

    assert f"{ended}, of which only audit entries are left" in said
    assert row["approvals"] == row["gone"] == [ended]


def test_files_that_another_process_writes_are_not_said_to_be_erased(
    operator: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def busy(*_: object, **__: object) -> NoReturn:
        raise ThreadUnavailable("Another process runs this thread right now.")

    monkeypatch.setattr(Eraser, "erase", busy)

    told = operator.refused("erase", "U0DAN", "--yes")

    assert "the erasure is incomplete" in told
    assert "15 seconds" in told

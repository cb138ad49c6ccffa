"""List, retry and drop failed agent runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer
from pydantic import JsonValue

from keyturn.cli import console
from keyturn.cli.command_context import caller, command_context
from keyturn.cli.console import AsJson, By
from keyturn.cli.global_options import examples
from keyturn.cli.store_access import use_store
from keyturn.gateway.approvals.decisions import Gesture
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.service.runs import RunService
from keyturn.gateway.store.jobs import DeadLetter
from keyturn.gateway.store.stalled import RunState, StalledRun

T = TypeVar("T")

ABOUT = """See the runs that failed, try them again, or drop them.

A run that failed either waits, and is retried by itself, or is parked, and is not:
its error cannot pass without a change, or its time for retries is over. The person who
asked for it, and those who may decide its calls, can also try it again in Slack.
"""

group = typer.Typer(help=ABOUT, no_args_is_help=True, rich_markup_mode=None)

RunId = Annotated[
    str,
    typer.Argument(metavar="ID", help="From 'keyturn jobs list', or its beginning."),
]


@group.command(
    "list",
    epilog=examples(
        ("keyturn jobs list", "what waits, what is parked, since when and why"),
        ("keyturn jobs list --json", "the same for a machine"),
    ),
)
def listed(ctx: typer.Context, *, json: AsJson = False) -> None:
    """List the runs that wait or are parked, the longest first."""
    found, letters = _ask(ctx, _everything)
    if json:
        rows: list[JsonValue] = [_row(run) for run in found]
        console.as_json([*rows, *(_letter(one) for one in letters)])
        return
    for run in found:
        say = console.bad if run.state is RunState.PARKED else console.note
        say(_line(run))
    for one in letters:
        console.bad(f"dead_{one.id}: a job that cannot be parsed; 'drop' removes it")
    if not found and not letters:
        console.good("No run waits, and none is parked.")


@group.command(
    epilog=examples(("keyturn jobs show run_default_5f2a", "all that is kept of it"))
)
def show(ctx: typer.Context, run: RunId, *, json: AsJson = False) -> None:
    """Show one run: its error, its times, and what is left to do."""
    found = _ask(ctx, lambda service: _one(service, run))
    if isinstance(found, DeadLetter):
        console.as_json(_letter(found))
    elif json:
        console.as_json(_row(found))
    else:
        for name, value in _row(found).items():
            typer.echo(f"{name + ':':<13} {console.printable(str(value))}")


@group.command(
    epilog=examples(
        ("keyturn jobs retry run_default_5f2a", "once its cause is fixed"),
        ("keyturn jobs retry --all", "everything that waits or is parked"),
    )
)
def retry(
    ctx: typer.Context,
    run: Annotated[
        str, typer.Argument(metavar="[ID]", help="From 'keyturn jobs list'.")
    ] = "",
    *,
    everything: Annotated[bool, typer.Option("--all", help="Each of them.")] = False,
    by: By = "",
) -> None:
    """Try a run again now; the time for its retries starts over.

    A running gateway that serves its agent does it. Nothing runs that is not approved.
    """
    # Exactly one of the two: a forgotten id must not mean all of them.
    if bool(run) == everything:
        raise SettingsError("Name one run, or write 'keyturn jobs retry --all'.")
    tried = _ask(ctx, lambda one: _retry(one, run, by or caller()))
    for each in tried:
        console.good(f"{each} is queued; a gateway that serves its agent tries it now.")
    if not tried:
        console.note("There was nothing to try again.")


@group.command(
    epilog=examples(("keyturn jobs drop run_default_5f2a", "this run is not continued"))
)
def drop(ctx: typer.Context, run: RunId, *, by: By = "") -> None:
    """Drop a run; its calls end without running.

    It is not continued. A new message in its thread starts a new run.
    """
    name = _ask(ctx, lambda one: _drop(one, run, by or caller()))
    console.good(f"{name} was dropped: nothing of it runs any more.")


async def _everything(service: RunService) -> tuple[list[StalledRun], list[DeadLetter]]:
    return await service.all(), await service.dead_letters()


async def _one(service: RunService, name: str) -> StalledRun | DeadLetter:
    """Return what a name, or the beginning of one, stands for."""
    found: dict[str, StalledRun | DeadLetter] = {
        **{run.id: run for run in await service.all()},
        **{f"dead_{one.id}": one for one in await service.dead_letters()},
    }
    # An exact name first: an id may be the beginning of another one.
    meant = [one for one in found if one == name] or [
        one for one in found if one.startswith(name)
    ]
    if len(meant) == 1:
        return found[meant[0]]
    if meant:
        raise SettingsError(
            f"{name!r} stands for {len(meant)} runs; write more of the one you mean."
        )
    raise SettingsError(
        f"No run {name!r} waits or is parked; 'keyturn jobs list' shows those that do."
    )


async def _retry(service: RunService, name: str, by: str) -> list[str]:
    # All of them without corrupt jobs: one would stop those behind it.
    chosen = [await _one(service, name)] if name else [*await service.all()]
    tried: list[str] = []
    for one in chosen:
        if isinstance(one, DeadLetter):
            raise SettingsError(
                f"dead_{one.id} is corrupt, so it cannot be tried; "
                "'keyturn jobs drop' removes it."
            )
        # False: it changed since it was read, so somebody else tries it already.
        if await service.retry(one, by, Gesture.CLI):
            tried.append(one.id)
    return tried


async def _drop(service: RunService, name: str, by: str) -> str:
    found = await _one(service, name)
    if isinstance(found, DeadLetter):
        await service.forget(found)
        return f"dead_{found.id}"
    # Compared with what was read: a gateway may have brought the run back in between.
    if not await service.drop(found, by, Gesture.CLI):
        raise SettingsError(
            f"{found.id} changed just now, so nothing was dropped; look at it again."
        )
    return found.id


def _line(run: StalledRun) -> str:
    who = console.printable(f"{run.agent} {run.thread}")
    until = f", until {_time(run.until_ms)}" if run.until_ms else ""
    return (
        f"{run.id}: {run.state} since {_time(run.since_ms)}{until}\n"
        f"{who}: {console.printable(run.reason)}"
    )


def _row(run: StalledRun) -> dict[str, JsonValue]:
    return {
        "id": run.id,
        "state": run.state.value,
        "agent": run.agent,
        "thread": run.thread,
        "trouble": run.trouble,
        "reason": run.reason,
        "detail": run.detail,
        "attempts": run.attempts,
        "since": _time(run.since_ms),
        "next": _time(run.next_ms) if run.state is RunState.WAITING else "",
        "until": _time(run.until_ms),
        "to_do": ", ".join(job.kind.value for job in run.jobs),
    }


def _letter(one: DeadLetter) -> dict[str, JsonValue]:
    # The keys of a run's row, so that a script reads both in the same way.
    return {
        "id": f"dead_{one.id}",
        "state": "dead letter",
        "agent": "",
        "thread": "",
        "reason": one.why,
    }


def _time(at_ms: int) -> str:
    return console.utc(at_ms) if at_ms else ""


def _ask(ctx: typer.Context, ask: Callable[[RunService], Awaitable[T]]) -> T:
    return use_store(
        command_context(ctx),
        lambda store, tenant: ask(RunService(store, _no_policy, tenant=tenant)),
    )


# Nothing here asks the policy. Reading it would let a broken file keep an operator from
# the runs.
def _no_policy() -> Policy:
    raise SettingsError("No policy is needed to see runs, try them again or drop them.")

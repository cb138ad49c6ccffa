"""List failed runs, retry them, or drop them.

A failed run is either waiting, and is retried automatically, or parked: its error needs
a change, or its time for retries is over. The requester and the reviewers of its calls
can also retry it in Slack.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from keyturn.cli import console
from keyturn.cli.console import AsJson, By, argument, flag
from keyturn.cli.store_access import use_service
from keyturn.gateway.approvals.decisions import Gesture
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.service.people.freezing import RunService
from keyturn.gateway.store.runs.jobs import RunState, StalledRun

group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

RunId = Annotated[str, argument("ID", "From 'keyturn jobs list', or its beginning.")]


@group.command("list")
def listed(ctx: typer.Context, *, json: AsJson = False) -> None:
    """List the runs that wait or are parked, longest first.

    Examples:
      keyturn jobs list         waiting and parked runs, with all details
      keyturn jobs list --json  the same for a machine
    """
    found = use_service(ctx, _RUNS, RunService.all)
    console.listing(
        [_row(run) for run in found],
        json=json,
        nothing="No run waits, and none is parked.",
        is_bad=lambda row: row["state"] == RunState.PARKED,
    )


@group.command()
def retry(
    ctx: typer.Context,
    run: Annotated[str, argument("[ID]", "From 'keyturn jobs list'.")] = "",
    *,
    everything: Annotated[bool, flag("--all", "Each of them.")] = False,
    by: By = "",
) -> None:
    """Retry a run now; the time for its retries starts over.

    A running gateway that serves its agent does this. Only approved calls run.

    Examples:
      keyturn jobs retry run_default_5f2a  once its cause is fixed
      keyturn jobs retry --all             every waiting or parked run
    """
    # Exactly one of the two: a forgotten id must not select all runs.
    if bool(run) == everything:
        raise SettingsError("Name one run, or write 'keyturn jobs retry --all'.")
    tried = use_service(ctx, _RUNS, lambda one: _retry(one, run, by))
    for each in tried:
        console.good(f"{each} is queued; a gateway that serves its agent tries it now.")
    if not tried:
        console.note("There was no run to retry.")


@group.command()
def drop(ctx: typer.Context, run: RunId, *, by: By = "") -> None:
    """Drop a run; its calls end without running.

    It is not continued. A new message in its thread starts a new run.

    Examples:
      keyturn jobs drop run_default_5f2a  this run is not continued
    """
    name = use_service(ctx, _RUNS, lambda one: _drop(one, run, by))
    console.good(f"{name} was dropped: none of its calls will run.")


async def _one(service: RunService, name: str) -> StalledRun:
    """Return the run with this id, or the only one that begins with it."""
    found = {run.id: run for run in await service.all()}
    # An exact name first: an id may be the beginning of another one.
    meant = [one for one in found if one == name] or [
        one for one in found if one.startswith(name)
    ]
    if len(meant) == 1:
        return found[meant[0]]
    if meant:
        raise SettingsError(
            f"{name!r} matches {len(meant)} runs; write more of the id."
        )
    raise SettingsError(
        f"No run {name!r} is waiting or parked; 'keyturn jobs list' shows all runs."
    )


async def _retry(service: RunService, name: str, by: str) -> list[str]:
    chosen = [await _one(service, name)] if name else [*await service.all()]
    # False: the run changed since it was read, so it is already being retried.
    return [one.id for one in chosen if await service.retry(one, by, Gesture.CLI)]


async def _drop(service: RunService, name: str, by: str) -> str:
    found = await _one(service, name)
    # Compared with the record that was read: a gateway may have restarted the run in
    # between.
    if not await service.drop(found, by, Gesture.CLI):
        raise SettingsError(
            f"{found.id} has just changed, so it was not dropped; check it again."
        )
    return found.id


def _row(run: StalledRun) -> console.Row:
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


def _time(at_ms: int) -> str:
    return console.utc(at_ms) if at_ms else ""


# No command here uses the policy. Reading it would let a broken file lock an operator
# out of the runs.
def _no_policy() -> Policy:
    raise SettingsError("Listing, retrying and dropping runs needs no policy.")


_RUNS = partial(RunService, policy=_no_policy)

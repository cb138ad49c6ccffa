"""Repair records after the store or the checkpoints were lost or restored.

A running gateway does the same at its start and hourly. The command shows the repairs
before they happen, and also makes those that a gateway must not make automatically.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer
from pydantic import JsonValue

from keyturn.cli import console
from keyturn.cli.command_context import CommandContext, command_context
from keyturn.cli.console import flag
from keyturn.cli.store_access import (
    may_be_there,
    open_configured,
    require_store,
    use_store,
)
from keyturn.gateway.embed import gateway_process, load_runners
from keyturn.gateway.resume import recovery
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.langgraph_local import Runners
from keyturn.gateway.resume.ledger import ledger_of
from keyturn.gateway.resume.recovery import Consistency, RepairReport
from keyturn.gateway.service.report.audit_reading import forget_tree
from keyturn.gateway.service.report.process_check import kept_by

_CONSISTENCY = {
    Consistency.SAME: "The store and the checkpoints seem to be equally old.",
    Consistency.STORE_IS_OLDER: "The store is older than the checkpoints.",
    Consistency.CHECKPOINTS_ARE_OLDER: "The checkpoints are older than the store.",
}


def repair(
    ctx: typer.Context,
    *,
    dry_run: Annotated[
        bool, flag("--dry-run", "Change nothing; only list the repairs.")
    ] = False,
    restored: Annotated[
        bool,
        flag(
            "--restored",
            "The store is an older copy: ask people whether its approved calls "
            "ran. Needed only when the store and the checkpoints were restored from "
            "the same moment, which cannot be detected.",
        ),
    ] = False,
    new_checkpoints: Annotated[
        bool,
        flag(
            "--new-checkpoints",
            "Only accept the checkpoints of the settings in place of lost ones, "
            "even if calls wait in threads that are stored elsewhere. Their threads "
            "are lost: the calls end, and people are notified.",
        ),
    ] = False,
    new_tree: Annotated[
        bool,
        flag(
            "--new-tree",
            "Only allow gateways to begin a new tree of the audit log. The proofs "
            "of the old tree are lost, except in saved bundles and checkpoints. "
            "Without this, a gateway whose folder lacks the tree writes none, and no "
            "entry leaves the store.",
        ),
    ] = False,
    json: console.AsJson = False,
) -> None:
    """Repair records after data was lost or restored.

    A call that only the checkpoints contain is answered as lost. A call whose thread is
    missing in the checkpoints is ended. A call that an older store lists as approved
    may have run, so people are asked whether it did. The repair never approves or runs
    a call.

    Examples:
      keyturn repair --dry-run          list the mismatches and their repairs
      keyturn repair                    repair them; stop all processes first
      keyturn repair --restored         both are copies of one moment
      keyturn repair --new-checkpoints  the earlier checkpoints are lost
      keyturn repair --new-tree         the files of the audit log's tree are lost
    """
    command = command_context(ctx)
    if new_checkpoints:
        asyncio.run(_accept_checkpoints(command))
        return
    if new_tree:
        _allow_tree(ctx)
        return
    done = asyncio.run(repaired(command, is_dry=dry_run, is_restored=restored))
    if json:
        console.as_json(_document(done, is_dry=dry_run))
        return
    print_repairs(done, is_dry=dry_run)


async def repaired(
    command: CommandContext, *, is_dry: bool, is_restored: bool
) -> RepairReport:
    """Repair the store of the settings; see `repair_losses`."""
    settings = command.settings()
    # A data folder that lost only its store can be repaired.
    if not may_be_there(settings.data_dir):
        require_store(settings)
    place = settings.checkpoint_place
    async with (
        # A store that is not durable is repaired, too: otherwise its waiting calls
        # would never end.
        open_configured(settings, insecure_dev=True) as store,
        # Each end is also written there, so that no gateway runs a call from an older
        # record.
        ledger_of(store, place),
        open_checkpoints(place) as saver,
    ):
        runners = Runners(await load_runners(settings, saver, None), saver)
        return await recovery.repair_losses(
            store,
            runners,
            tenant=settings.tenant,
            is_dry=is_dry,
            is_restored=is_restored,
        )


async def _accept_checkpoints(command: CommandContext) -> None:
    settings = command.settings()
    require_store(settings)
    place = settings.checkpoint_place
    async with open_configured(settings) as store, open_checkpoints(place) as saver:
        process = await gateway_process(
            saver, place, tenant=settings.tenant, serves=settings.agents
        )
        keys = store.keys_of_tenant(settings.tenant)
        # Read before the replacement, only for the output.
        before = (await store.processes.read(keys)).kept
        kept = tuple(kept_by(process))
        await store.processes.keep(keys, kept)
    for now in kept:
        earlier = before.get((now.tenant, now.agent))
        was = earlier.shown if earlier else "none yet"
        console.good(
            f"The threads of agent {now.agent!r} are in {now.shown} (was {was})."
        )


def _allow_tree(ctx: typer.Context) -> None:
    if use_store(ctx, forget_tree, has_keyring=True):
        console.good("Gateways that find no tree will begin a new one.")
    else:
        console.note("The store has no record of a tree; gateways begin one if needed.")


def print_repairs(done: RepairReport, *, is_dry: bool) -> None:
    """Print the consistency and each repair."""
    say = console.good if done.consistency is Consistency.SAME else console.bad
    say(_CONSISTENCY[done.consistency])
    for found in done.doubted:
        console.bad(_doubt_line(found))
    for mismatch in done.report.mismatches:
        console.bad(_mismatch_line(mismatch))
    if done.report.unserved:
        console.note(
            f"{done.report.unserved} waiting threads belong to no agent of the "
            "settings; they continue when their program runs them again."
        )
    count = len(done.doubted) + len(done.report.mismatches)
    if not count:
        console.good("No repair is needed.")
    elif is_dry:
        console.note(f"{count} to repair. Nothing was changed; run 'keyturn repair'.")
    else:
        console.good(
            f"{count} repaired. Start the gateway: it informs agents and people."
        )


def _doubt_line(found: recovery.Found) -> str:
    run_ref = found.approval.run_ref
    tool, agent, thread = map(
        console.printable, (found.item.tool, run_ref.agent, run_ref.thread)
    )
    becomes = f"{found.was.state} → {found.item.state}"
    if found.item.is_pending:
        becomes = "continues to wait, with a warning and without earlier votes"
    return f"{found.item.id} ({tool}, agent {agent}, thread {thread}): {becomes}"


def _mismatch_line(mismatch: recovery.Mismatch) -> str:
    # Names of agents and threads come from outside: they must not control a terminal.
    agent, thread = map(console.printable, (mismatch.agent, mismatch.thread))
    end = "is ended" if mismatch.is_gone else "continues at the next start"
    listed = ", ".join(map(console.printable, mismatch.items))
    items = f" ({listed})" if listed else ""
    return f"agent {agent}, thread {thread}{items}: {mismatch.problem} It {end}."


def _document(done: RepairReport, *, is_dry: bool) -> JsonValue:
    return {
        # The findings are repaired now, except in a dry run.
        "ok": not is_dry
        or (
            not done.doubted
            and not done.report.mismatches
            and done.consistency is Consistency.SAME
        ),
        "dry_run": is_dry,
        "fit": done.consistency.value,
        "calls": [
            {
                "item": found.item.id,
                "agent": found.approval.run_ref.agent,
                "thread": found.approval.run_ref.thread,
                "tool": found.item.tool,
                "was": found.was.state.value,
                "becomes": found.item.state.value,
            }
            for found in done.doubted
        ],
        "threads": [asdict(mismatch) for mismatch in done.report.mismatches],
        "unserved": done.report.unserved,
    }

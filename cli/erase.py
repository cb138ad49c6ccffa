"""Erase an approval, or all approvals that a person requested."""

from __future__ import annotations

from typing import Annotated

import typer

from keyturn.cli import console
from keyturn.cli.console import AsJson, By, argument, flag
from keyturn.cli.store_access import use_service
from keyturn.gateway.errors import SettingsError, ThreadUnavailable
from keyturn.gateway.service.people.erasing import Eraser, Erasure


def erase(
    ctx: typer.Context,
    what: Annotated[
        str, argument("PERSON|APPROVAL", "Id of a Slack user, or of an approval.")
    ],
    *,
    yes: Annotated[
        bool, flag("--yes", "Erase. Without it, only list the approvals.")
    ] = False,
    by: By = "",
    json: AsJson = False,
) -> None:
    """Erase approvals; the audit log still verifies.

    It takes the id of one approval, or of a Slack user, for all of that person's
    requests. docs/encryption.md lists the data that it cannot reach.

    Examples:
      keyturn erase U0DAN                   list a person's requests
      keyturn erase U0DAN --yes             erase them
      keyturn erase ap_default_0123… --yes  erase one approval, by its whole id
    """
    try:
        found = use_service(
            ctx, Eraser, lambda one: one.erase(what, by=by, is_dry_run=not yes)
        )
    except ValueError as error:
        raise SettingsError(f"{error}; nothing was erased.") from error
    except ThreadUnavailable as error:
        raise SettingsError(
            "Another process is writing the files of the audit log, or was killed "
            "while writing, so the erasure is incomplete. Run this again in 15 seconds."
        ) from error
    if json:
        console.as_json({"is_erased": yes, **found.model_dump(mode="json")})
    else:
        _say(found, is_erased=yes)
    if yes and (found.kept or found.live):
        raise typer.Exit(1)


def _say(found: Erasure, *, is_erased: bool) -> None:
    say = console.good if is_erased else console.note
    done = "Erased" if is_erased else "Would be erased"
    counts = f"approvals: {len(found.approvals)}, audit entries: {found.entries}"
    say(f"{done}: {counts}.")
    for one in found.approvals:
        before = ", of which only audit entries are left" if one in found.gone else ""
        say(f"  {console.printable(one)}{before}")
    for one, why in found.kept.items():
        console.bad(f"{console.printable(one)} is kept: {why}.")
    if found.live:
        console.bad(
            f"{found.live} audit entries are in the store, where they cannot be "
            "changed. With 'audit_folder' they move to a file within about an hour: "
            "run this again then. Without it they stay for 'retention.audit'."
        )
    if not (found.approvals or found.kept or found.entries or found.live):
        console.note("Nothing was found; check the id, and the store of the settings.")
    elif not is_erased:
        console.note("Nothing was changed. Run it again with --yes to erase.")

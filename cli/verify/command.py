"""Prove the guarantees on this installation, and check the report of a proof."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from pydantic import AwareDatetime, ValidationError

from keyturn.cli import console
from keyturn.cli.command_context import CommandContext, command_context
from keyturn.cli.console import option
from keyturn.cli.verify import deciding, executions, forgeries, installation
from keyturn.cli.verify.guarantee import GUARANTEES, Proof, prove_by
from keyturn.cli.verify.scratch import scratch_tenant
from keyturn.gateway.errors import NotVerified, SettingsError
from keyturn.gateway.protocol.public_keys import parse_public_key
from keyturn.gateway.protocol.receipts import parse_envelope, verified
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.store.connection.durability import read_facts
from keyturn.gateway.trust.key_folder import Keyring, Role

MODULES = (deciding, executions, forgeries, installation)
"""Modules whose import registers the guarantees, in this order."""

BROKEN = 1
"""Exit code if a guarantee is broken, or a report is not verified."""


PAYLOAD_TYPE = "application/vnd.keyturn.verify+json"


class Report(Record):
    """The results of one run.

    Attributes:
        version: version of Keyturn.
        at: time of the store.
        store: kind and version of the server.
        policy: digest of the user's policy.
        proofs: result of each guarantee.
    """

    version: str
    at: AwareDatetime
    store: str
    policy: str
    proofs: tuple[Proof, ...]


def verify(
    ctx: typer.Context,
    *,
    report: Annotated[Path | None, option("FILE", "Write a signed report.")] = None,
    check: Annotated[Path | None, option("FILE", "Check a report instead.")] = None,
    key: Annotated[
        list[str] | None, option("PUBLIC", "A public key for --check; repeatable.")
    ] = None,
    slack: Annotated[
        str, option("CHANNEL", "Also post, update and delete a card.")
    ] = "",
    json: console.AsJson = False,
) -> None:
    """Prove the guarantees on this installation: store, policy and keys.

    Attacks calls of a scratch tenant in your store, then removes that tenant. Your
    tenant is not changed. Exits with 1 if a guarantee is broken.

    Examples:
      keyturn verify                           a table of all guarantees
      … --slack "#agent-approvals"             and a test card in this channel
      … --report proof.json                    and a signed report
      … --check proof.json --key "$AUDIT_KEY"  check a report, without a store
    """
    if bool(check) is not bool(key) or bool(check and (report or slack)):
        raise SettingsError(
            "Write --check FILE with only --key PUBLIC: a report cannot vouch for its "
            "own key. 'keyturn keys list' prints the keys."
        )
    if check:
        found = _checked(check, key or [])
    else:
        found = asyncio.run(_proven(command_context(ctx), report, slack))
    if json:
        console.as_json(found.model_dump(mode="json"))
    else:
        _print(found)
    if any(one.broken for one in found.proofs):
        raise typer.Exit(BROKEN)


async def _proven(command: CommandContext, file: Path | None, channel: str) -> Report:
    """Prove all guarantees; write the report if there is a file for it."""
    settings, policy = command.settings(), command.policy()
    checks = [*GUARANTEES.values()]
    if channel:
        token = settings.bot_token
        checks.append(
            installation.card_in(channel, token.get_secret_value() if token else "")
        )
    # Before the proof: a missing key should not cost a minute.
    key = Keyring.of(settings).signing(Role.AUDIT) if file else None
    # The attacks would fill the terminal with warnings.
    logging.getLogger("keyturn").addHandler(logging.NullHandler())
    async with scratch_tenant(settings, policy) as scratch:
        made = Report(
            version=version("keyturn"),
            at=datetime.fromtimestamp(await scratch.now_ms() / 1000, UTC),
            store=(await read_facts(scratch.store.conn))[0].name,
            policy=policy.digest,
            proofs=tuple([await prove_by(scratch, *one) for one in checks]),
        )
    if file and key:
        text = key.envelope(PAYLOAD_TYPE, made.model_dump_json().encode())
        with console.new_file(file) as opened:
            opened.write(text.encode())
    return made


def _checked(file: Path, keys: list[str]) -> Report:
    """Return the report of a file, if one of the keys has signed it."""
    text = console.read_text(file, "the report")
    trusted = [parse_public_key(one) for one in keys]
    try:
        envelope = parse_envelope(text)
        payload, _ = verified(envelope, payload_type=PAYLOAD_TYPE, keys=trusted)
        return Report.model_validate_json(payload)
    except NotVerified as error:
        why = error.problem
    except ValidationError:
        why = "another version of Keyturn wrote it"
    console.bad(f"The report is not verified: {why}.")
    raise typer.Exit(BROKEN)


def _print(found: Report) -> None:
    for group, proofs in groupby(found.proofs, key=lambda one: one.group):
        typer.echo(typer.style(group, bold=True))
        for one in proofs:
            if one.broken:
                console.bad(f"{one.sentence}\n{console.printable(one.broken)}")
            else:
                console.good(one.sentence)
    count, broken = len(found.proofs), sum(bool(one.broken) for one in found.proofs)
    where = f"on {found.store}, Keyturn {found.version}, {found.at:%Y-%m-%d %H:%M} UTC"
    if broken:
        console.bad(f"{broken} of {count} guarantees are broken {where}.")
    else:
        console.good(f"All {count} guarantees hold {where}.")

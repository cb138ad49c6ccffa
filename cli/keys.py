"""Make, rotate, retire and list the keys that Keyturn signs with.

Three roles sign, each with separate keys (Ed25519, one file for each key):
  bot      each decision, when Slack reports it with its author
  gateway  a receipt for each authorized call, after verifying the decisions
  audit    the state of the audit log, so that later changes are detected

'keyturn run' makes all three at its first start; 'keyturn bot' and 'keyturn gateway'
make their part. On one machine they find each other's public keys in the same folder.
On several, copy each public key (a line of 'keyturn keys list') to its verifiers: the
bot's into the gateway's keyturn.yml ('keys: {bot: [...]}'), and the gateway's to the
programs that run the tools. A secret key never leaves its machine.

To replace a key without a gap: rotate, copy the new public key to all verifiers, and
retire the old one once the calls signed with it have run or expired.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer
from pydantic import JsonValue

from keyturn.cli import console
from keyturn.cli.command_context import command_context
from keyturn.cli.console import AsJson, argument, flag
from keyturn.cli.store_access import is_there, use_store
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.protocol.public_keys import PublicKey
from keyturn.gateway.service.run.proving import calls_under
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.key_folder import Key, KeyFolder, Keyring, KeyState, Role

group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

RoleName = Annotated[Role, argument("ROLE", "bot, gateway, audit.")]

_MARKS = {
    KeyState.SIGNS: "signs",
    KeyState.VERIFIES: "verifies earlier signatures",
    KeyState.RETIRED: "retired",
}


@group.command()
def create(ctx: typer.Context, role: RoleName) -> None:
    """Make the first key of a role, and print its public key.

    Examples:
      keyturn keys create bot      where the bot runs, before its first start
      keyturn keys create gateway  where the gateway runs
    """
    public = _folder(ctx, role).create(datetime.now(UTC))
    console.good(f"The {role} signs with {public.label}.")
    _hand_over(role, public)


@group.command()
def rotate(ctx: typer.Context, role: RoleName) -> None:
    """Make a new key that signs from now on; older ones still verify.

    A running process uses it within a second.

    Examples:
      keyturn keys rotate gateway  a new key signs; the old one still verifies
    """
    public = _folder(ctx, role).rotate(datetime.now(UTC))
    console.good(f"The {role} signs with {public.label} from now on.")
    _hand_over(role, public)


@group.command()
def retire(
    ctx: typer.Context,
    role: RoleName,
    key: Annotated[str, argument("KEY", "Its id, from 'keyturn keys list'.")],
    *,
    force: Annotated[
        bool, flag("--force", "Even if calls depend on it: they are refused.")
    ] = False,
) -> None:
    """Remove the secret of a key that no longer signs.

    Calls that were approved under it are then refused, unless they have run. The
    command therefore fails while such calls wait or are in doubt. The public key stays,
    to verify the audit log.

    Examples:
      keyturn keys retire bot 1f0c2a9b          its signatures no longer count
      keyturn keys retire bot 1f0c2a9b --force  even if calls depend on it
    """
    folder = _folder(ctx, role)
    older = folder.older(key).public
    if not force:
        _refuse_while_needed(ctx, role, older)
    public = folder.retire(key, datetime.now(UTC))
    console.good(f"{public.label} is retired; its secret is gone.")
    console.note(f"Remove it from 'keys: {{{role}: [...]}}' wherever it is listed.")


def _refuse_while_needed(ctx: typer.Context, role: Role, key: PublicKey) -> None:
    if not is_there(command_context(ctx).settings()):
        return  # no store yet

    async def count(store: Store, tenant: str) -> int:
        return await calls_under(store, tenant, role, key.id.hex())

    if waiting := use_store(ctx, count):
        calls = "call depends" if waiting == 1 else "calls depend"
        raise SettingsError(
            f"{waiting} {calls} on signatures of {key.label} and would be refused. "
            "Wait until they have run or expired, and have those in doubt reconciled. "
            "With --force the key is retired anyway, and these calls need approval "
            "again."
        )


@group.command("list")
def listed(ctx: typer.Context, *, json: AsJson = False) -> None:
    """List the keys of this machine and of the settings.

    Examples:
      keyturn keys list         every key, with its public key for verifiers
      keyturn keys list --json  the same for a machine
    """
    keyring = Keyring.of(command_context(ctx).settings())
    found = {role: KeyFolder(keyring.folder, role).listed() for role in Role}
    known = {role: keyring.known(role) for role in Role}
    if json:
        rows: list[JsonValue] = [
            _row(role, key) for role in Role for key in found[role]
        ]
        rows += [
            {"role": role, "public": key.text, "state": "known"}
            for role in Role
            for key in known[role]
        ]
        console.as_json(rows)
        return
    for role in Role:
        for key in found[role]:
            since = key.retired_at or key.created_at
            typer.echo(f"{role:<8} {_MARKS[key.state]} since {since:%Y-%m-%d %H:%M}Z")
            typer.echo(f"         {key.public.text}")
        for public in known[role]:
            typer.echo(f"{role:<8} another process's, from 'keys: {{{role}: [...]}}'")
            typer.echo(f"         {public.text}")
        if not (found[role] or known[role]):
            console.note(f"{role:<8} no key; 'keyturn keys create {role}' makes one.")


def _folder(ctx: typer.Context, role: Role) -> KeyFolder:
    return KeyFolder(Keyring.of(command_context(ctx).settings()).folder, role)


def _hand_over(role: Role, public: PublicKey) -> None:
    console.note("Its public key, for verifiers (not secret):")
    typer.echo(public.text)
    if role is Role.BOT:
        console.note(
            "For a gateway on another machine, in its keyturn.yml: "
            "keys: {bot: [<this line>]}"
        )
    elif role is Role.GATEWAY:
        console.note(
            "For programs that run tools: Verifier(keys=[<this line>], ...), see "
            "docs/receipts.md"
        )


def _row(role: Role, key: Key) -> dict[str, JsonValue]:
    return {
        "role": role,
        "public": key.public.text,
        "id": key.public.id.hex(),
        "state": key.state,
        "created_at": key.created_at.isoformat(),
        "retired_at": key.retired_at.isoformat() if key.retired_at else None,
    }


def check_keys(keyring: Keyring) -> str:
    """Return a summary of the keys, for ``keyturn doctor``.

    Raises:
        SettingsError: when a key cannot be read, or no approved call could run.
    """
    found = {role: keyring.verifying(role) for role in Role}
    if not any(found.values()):
        return "none yet; 'keyturn run', 'keyturn bot' and 'keyturn gateway' make them"
    if not found[Role.BOT]:
        raise SettingsError(
            "The bot's public key is missing here, so no approved call could run. "
            "'keyturn keys list' prints it where the bot runs; add it here: "
            "keys: {bot: [<that line>]}"
        )
    return ", ".join(f"{role} {len(keys)}" for role, keys in found.items() if keys)

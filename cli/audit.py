"""Read, prove, export and verify the audit log."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from pydantic import JsonValue

from twokey.cli import audit_report, console
from twokey.cli.command_context import CommandContext, command_context
from twokey.cli.console import AsJson
from twokey.cli.examples import examples
from twokey.cli.policy_inputs import parse_time
from twokey.cli.store_access import open_configured, require_store, use_store
from twokey.gateway.errors import SettingsError
from twokey.gateway.protocol.public_keys import parse_public_key
from twokey.gateway.service.audit_bundling import AuditBundler
from twokey.gateway.service.audit_checking import forget_trees, verify_logs
from twokey.gateway.service.exporting import Exporter
from twokey.gateway.store.store import Store
from twokey.gateway.trust.audit_bundle import verify_bundle
from twokey.gateway.trust.keyring import Keyring

T = TypeVar("T")

ABOUT = """Read, prove, export and verify the audit log.

\b
Each entry is a leaf of a Merkle tree, and the gateway signs the root of the tree every
100 entries or 60 seconds: an entry that is changed, removed or added later is noticed.
  verify         compares tree, signatures, files and store
  export FILE    writes entries with their proofs, for somebody outside
  verify FILE    verifies such a file with public keys alone
"""

group = typer.Typer(help=ABOUT, no_args_is_help=True, rich_markup_mode=None)

NOT_VERIFIED = 1
"""Exit code of a log or a bundle that is not what was signed."""

Since = Annotated[str, typer.Option(metavar="TIME", help="ISO 8601 with its zone.")]
Until = Annotated[
    str, typer.Option(metavar="TIME", help="What happened before this time.")
]
Arguments = Annotated[
    bool,
    typer.Option(help="Add the arguments that are still kept, as cards show them."),
]


@group.command(
    epilog=examples(
        ("twokey audit export > audit.jsonl", "everything, one JSON object a line"),
        ("… --since 2026-07-01T00:00Z", "from that time on"),
        ("… bundle.jsonl", "with proofs, for 'twokey audit verify bundle.jsonl'"),
        ("… --sample 25 sample.jsonl", "of 25 approvals that are chosen at random"),
        ("twokey policy replay new.yml --audit audit.jsonl", "evaluate it by a policy"),
    )
)
def export(
    ctx: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            help="Write a bundle that proves itself; without it, print plain entries.",
        ),
    ] = None,
    *,
    since: Since = "",
    until: Until = "",
    sample: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Of N approvals at random; needs FILE."),
    ] = 0,
    arguments: Arguments = True,
    json: AsJson = False,
) -> None:
    """Print plain entries, or write a bundle that proves itself.

    Plain entries are printed, one JSON object a line, oldest first. A bundle has for
    each entry what was signed, the words and names that it hides as hashes, and its
    proof; calls that are still kept and have no redacted arguments come with them. It
    tells who saw, decided and ran what. Without --sample it has every entry of its
    time, so what is not in it was not recorded.
    """
    command = command_context(ctx)
    times = (_ms(since, "--since") or 0, _ms(until, "--until"))
    if file is None:
        if sample:
            raise SettingsError("--sample needs the name of a file to write.")
        _print_entries(command, times, has_arguments=arguments)
        return
    with console.new_file(file) as opened:

        async def written(store: Store, tenant: str) -> dict[str, JsonValue]:
            done = await AuditBundler(store, tenant=tenant).export(
                opened.write,
                since_ms=times[0],
                until_ms=times[1],
                sample=sample,
                has_arguments=arguments,
                progress=audit_report.Progress("exported"),
            )
            return {
                "file": str(file),
                "entries": done.entries,
                "approvals": done.approvals,
                "logs": list(done.origins),
            }

        counts = _use(command, written)
    if json:
        console.as_json(counts)
        return
    console.good(
        f"{counts['entries']} entries about {counts['approvals']} approvals are in "
        f"{str(file)!r}."
    )
    console.note(
        f"Verify it anywhere: twokey audit verify {file} --key PUBLIC, with the audit "
        "keys of 'twokey keys list'."
    )


@group.command(
    epilog=examples(
        ("twokey audit verify", "the log of this store, tree, files and signatures"),
        (
            "… --checkpoint kept.txt",
            "and that it goes on from a checkpoint kept before",
        ),
        ("… bundle.jsonl --key KEY", "a file of 'twokey audit export', anywhere"),
        ("… bundle.jsonl --key KEY --stories", "and what it tells of each approval"),
    )
)
def verify(
    ctx: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="A bundle; without it, the store's log."),
    ] = None,
    *,
    key: Annotated[
        list[str] | None,
        typer.Option(metavar="PUBLIC", help="A public audit key; may be repeated."),
    ] = None,
    checkpoint: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A checkpoint that was kept elsewhere."),
    ] = None,
    stories: Annotated[
        bool, typer.Option("--stories", help="Who saw, decided and ran what.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Verify the audit log, or a bundle with public keys alone.

    Ends with 0 when all of it verifies, and with 1 and the first bad entry when it does
    not. For a bundle neither a store nor settings are needed.
    """
    if file is not None:
        if checkpoint:
            raise SettingsError(
                "--checkpoint is for the log of this store: leave FILE out. A bundle "
                "has the checkpoint that its proofs lead to."
            )
        _verify_file(file, key or [], has_stories=stories, is_json=json)
        return
    if key or stories:
        raise SettingsError(
            f"{'--key' if key else '--stories'} is for a bundle: name its FILE, too. "
            "The log of this store is verified by the keys of the settings."
        )
    notes = tuple(
        console.read_text(one, "the checkpoint") for one in (checkpoint or [])
    )

    async def verified(store: Store, tenant: str) -> int:
        found = await verify_logs(
            store,
            tenant,
            checkpoints=notes,
            progress=audit_report.Progress("verified"),
        )
        return audit_report.tell_logs(found, is_json=json)

    if _use(command_context(ctx), verified):
        raise typer.Exit(NOT_VERIFIED)


@group.command(
    epilog=examples(
        ("twokey audit prove ap_s0_…", "each entry of the approval, with its proof"),
        ("… --out proof.jsonl", "as a bundle, for 'twokey audit verify proof.jsonl'"),
    )
)
def prove(
    ctx: typer.Context,
    approval: Annotated[str, typer.Argument(metavar="APPROVAL", help="Its whole id.")],
    *,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a bundle instead.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Print the entries of an approval with their proofs.

    A proof is a text of the format C2SP tlog-proof. Anybody who has the public audit
    key can check it with any tool that reads this format: it shows that the signed log
    has this entry at this index.
    """
    command = command_context(ctx)
    if out is None:

        async def proven(store: Store, tenant: str) -> int:
            found = await AuditBundler(store, tenant=tenant).prove(approval)
            return audit_report.tell_proofs(found, tenant=tenant, is_json=json)

        count = _use(command, proven)
    else:
        with console.new_file(out) as opened:

            async def written(store: Store, tenant: str) -> int:
                bundler = AuditBundler(store, tenant=tenant)
                done = await bundler.export(opened.write, approvals=[approval])
                return done.entries

            count = _use(command, written)
    if not count:
        raise SettingsError(
            f"The audit log has no entry about {approval!r}; 'twokey audit export' "
            "prints which there are."
        )
    if out is not None:
        console.good(f"{count} entries with their proofs are in {str(out)!r}.")


@group.command(
    epilog=examples(("twokey audit restart", "after the files of a tree were lost"))
)
def restart(ctx: typer.Context) -> None:
    """Let gateways begin another tree, where the old one is lost.

    What the old tree proved is proven no more, except by bundles and checkpoints that
    somebody kept. Entries that are still kept are leaves of the new tree. Without this,
    a gateway whose folder lacks the tree writes none, and no entry leaves the store.
    """
    if _use(command_context(ctx), forget_trees):
        console.good("Gateways begin another tree where they find none.")
    else:
        console.note("The store knows no tree; gateways begin one where there is none.")


def _print_entries(
    command: CommandContext, times: tuple[int, int | None], *, has_arguments: bool
) -> None:
    async def printed(store: Store, tenant: str) -> bool:
        exporter = Exporter(store, tenant=tenant, has_arguments=has_arguments)
        is_empty = True
        async for row in exporter.rows(since_ms=times[0], until_ms=times[1]):
            # ASCII only: arguments could steer the terminal, or not fit its encoding.
            typer.echo(json.dumps(row))
            is_empty = False
        return not is_empty

    if not use_store(command, printed):
        # To stderr: the file that stdout goes to holds rows and nothing else.
        typer.echo("The audit log has nothing in this time.", err=True)


def _verify_file(
    file: Path, keys: list[str], *, has_stories: bool, is_json: bool
) -> None:
    if not keys:
        raise SettingsError(
            "Name the public key of the audit log by --key: a bundle cannot vouch for "
            "the keys it was signed with. 'twokey keys list' prints it where the "
            "gateway runs."
        )
    trusted = [parse_public_key(one) for one in keys]
    try:
        opened = sys.stdin.buffer if str(file) == "-" else file.open("rb")
    except OSError as error:
        raise SettingsError(
            f"The bundle {str(file)!r} cannot be read: {error.strerror}."
        ) from error
    with opened as lines:
        progress = audit_report.Progress("verified")
        report = verify_bundle(lines, trusted, progress=progress)
    audit_report.tell_bundle(report, has_stories=has_stories, is_json=is_json)
    if not report.is_verified:
        raise typer.Exit(NOT_VERIFIED)


def _use(command: CommandContext, ask: Callable[[Store, str], Awaitable[T]]) -> T:
    """Open the store with the keys of the settings; see `use_store`."""
    settings = command.settings()
    require_store(settings)

    async def asked() -> T:
        keyring = Keyring.of(settings)
        async with open_configured(
            settings, insecure_dev=True, keyring=keyring
        ) as store:
            return await ask(store, settings.tenant)

    return asyncio.run(asked())


def _ms(text: str, option: str) -> int | None:
    return int(parse_time(text, option).timestamp() * 1000) if text else None

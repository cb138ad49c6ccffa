"""Read, prove, export and verify the audit log.

Each entry is a leaf of a Merkle tree. The gateway signs the root of the tree every 100
entries or 60 seconds, so later changes, removals and additions are detected.

Four commands prove it:
  verify         compares tree, signatures, files and store
  export FILE    writes entries with their proofs, for an outside auditor
  verify FILE    verifies such a file with only public keys
  dossier FILE   reports the oversight of a period from such a file
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from difflib import ndiff
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from keyturn.cli import console, dossier_page
from keyturn.cli.console import AsJson, argument, flag, option
from keyturn.cli.policy_inputs import parse_moment, parse_ms
from keyturn.cli.store_access import use_service, use_store
from keyturn.gateway.approvals.audit_leaf import SEAL
from keyturn.gateway.errors import BadJson, SettingsError
from keyturn.gateway.metrics.dossier import FORMAT, Dossier, differences
from keyturn.gateway.metrics.report import Selection
from keyturn.gateway.protocol.public_keys import parse_public_key
from keyturn.gateway.protocol.strict_json import JsonObject, parse_object
from keyturn.gateway.service.report.audit_reading import (
    AuditBundler,
    Proven,
    exported,
    verify_log_of,
)
from keyturn.gateway.service.report.audit_writing import public_keys, required
from keyturn.gateway.store.audit.files import notes_in
from keyturn.gateway.store.audit.verifying import Verified
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.audit_proofs import (
    BundleReport,
    Story,
    calls_of,
    verify_bundle,
)

_SHOWN_EVERY = 10_000


def show_progress(done: int, of: int = 0) -> None:
    """Show on a terminal how many entries of a long log are done."""
    if done and done % _SHOWN_EVERY == 0 and sys.stderr.isatty():
        whole = f" of {of:,}" if of else ""
        typer.echo(f"\r{done:,}{whole} entries", nl=False, err=True)


def print_log(one: Verified, *, is_json: bool) -> bool:
    """Print the result for a log; return True if it does not match its signatures."""
    wrong = one.first_bad
    if is_json:
        index = wrong.index if wrong else None
        row = {"verified": not wrong, **asdict(one), "first_bad": index}
        console.as_json(row)
        return wrong is not None
    if wrong is not None:
        console.bad(
            f"{one.tenant}: not verified. The first bad entry is {wrong.index}: "
            f"{console.printable(wrong.problem)}."
        )
        return True
    if not one.origin:
        console.note(
            f"{one.tenant}: there is no tree yet; a running gateway makes one."
        )
        return False
    console.good(
        f"{one.tenant}: {one.entries} entries match their signatures, in "
        f"{one.checkpoints} checkpoints of {one.origin}."
    )
    if one.kept_from:
        console.note(
            f"The first {one.kept_from} have expired; only their hashes are kept."
        )
    if one.unsigned:
        console.note(f"Newer entries without a checkpoint yet: {one.unsigned}.")
    for state, count in sorted(one.not_ours.items()):
        console.note(f"{count} are {state}: not verified as written by Keyturn.")
    return False


def print_proofs(found: Sequence[Proven], *, tenant: str) -> int:
    """Print entries with their proofs; return their number."""
    ours = [one for one in found if one.event is None or one.event.tenant == tenant]
    for one in ours:
        # A tool reads the entry and its proof; the other lines are comments for it.
        name = one.event.name if one.event else "not written by Keyturn"
        typer.echo(f"# entry {one.index}: {name}")
        typer.echo(ascii_text(one.leaf.text.decode()))
        for name, hidden in one.leaf.openings.items():
            if name != SEAL:
                shown = console.printable(hidden.value)
                typer.echo(f"#   {name} (salt {hidden.salt}): {shown}")
        typer.echo(one.proof or "# no checkpoint covers it yet\n")
    return len(ours)


def ascii_text(text: str) -> str:
    """Return JSON without characters that control a terminal; it parses to the same."""
    # ASCII has one such character that JSON does not escape.
    return json.dumps(json.loads(text), separators=(",", ":")).replace(
        "\x7f", r"\u007f"
    )


def print_bundle(report: BundleReport, *, has_stories: bool, is_json: bool) -> None:
    """Print the result for a bundle."""
    stories = report.stories
    if is_json:
        console.as_json(_bundle_row(report, has_stories=has_stories))
        return
    if not report.is_verified:
        where = ":"
        if report.bad_index is not None:
            where = f". The first bad entry is {report.bad_index}:"
        problem = console.printable(report.problem)
        console.bad(f"The bundle is not verified{where} {problem}.")
        return
    sample = report.sample
    if (head := report.head) is not None:
        kind = "a part of the" if sample else "all"
        console.good(
            f"{report.entries} entries match their signatures: {kind} entries "
            f"{report.start} to {report.end - 1} of {head.size} of {head.origin}."
        )
    console.good(
        f"It covers {len(stories)} approvals, with the arguments of {report.calls} "
        "calls."
    )
    if sample:
        console.note(
            "It is a sample: the log does not prove that an approval has no other "
            "entries; only the bundle's signer claims it."
        )
    if has_stories:
        for story in stories.values():
            _print_story(story)


def _print_story(story: Story) -> None:
    what = "ran" if story.has_run else "no call ran"
    if story.was_handed_over:
        what = "handed to another program, which runs its calls by itself"
    typer.echo(f"\n{story.approval}: {what}")
    for event in story.events:
        parts = [f"{console.utc(event.at_ms)}  {event.name}"]
        parts += [event.tool] if event.tool else []
        parts += [f"by {event.actor}"] if event.actor else []
        parts += [f"because {event.reason!r}"] if event.reason else []
        typer.echo("  " + console.printable(" ".join(parts)))
        for call in calls_of(event):
            named = "  ".join(call.get(name, "") for name in ("tool", "tier", "hash"))
            typer.echo(console.printable(f"    {named}"))


def _bundle_row(report: BundleReport, *, has_stories: bool) -> JsonObject:
    found: JsonObject = {
        "verified": report.is_verified,
        "problem": report.problem,
        "first_bad": report.bad_index,
        "log": None,
        "sample": report.sample,
        "approvals": len(report.stories),
        "calls": report.calls,
    }
    if (head := report.head) is not None:
        found["log"] = {
            "origin": head.origin,
            "entries": report.entries,
            "start": report.start,
            "end": report.end,
            "size": head.size,
            "root": head.root.hex(),
        }
    if has_stories:
        found["stories"] = [story.row for story in report.stories.values()]
    return found


group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

NOT_VERIFIED = 1
"""Exit code for a log or a bundle that does not match its signatures."""

Since = Annotated[str, option("TIME", "ISO 8601 with its zone.")]
Until = Annotated[str, option("TIME", "Only events before this time.")]
Keys = Annotated[
    list[str] | None, option("PUBLIC", "A public audit key; may be repeated.")
]
Arguments = Annotated[
    bool,
    typer.Option(help="Add the arguments that are still stored, as cards show them."),
]


@group.command()
def export(
    ctx: typer.Context,
    file: Annotated[
        Path | None,
        argument(
            "[FILE]", "Write a bundle with proofs; without it, print plain entries."
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
) -> None:
    """Print plain entries, or write a bundle that proves itself.

    Plain entries are printed, one JSON object a line, oldest first. For each entry a
    bundle has the signed text, the hidden texts and names, and its proof. It also has
    the calls that are still stored and have no redacted arguments. It shows who saw,
    decided and ran each call. Without --sample it has every entry of its time: an event
    that is missing was not recorded.

    Examples:
      keyturn audit export > audit.jsonl  everything, one JSON object a line
      … --since 2026-07-01T00:00Z         from that time on
      … bundle.jsonl                      a bundle with proofs
      … --sample 25 sample.jsonl          of 25 randomly chosen approvals
    """
    times = (parse_ms(since, "--since") or 0, parse_ms(until, "--until"))
    if file is None:
        if sample:
            raise SettingsError("--sample needs the name of a file to write.")
        _print_entries(ctx, times, has_arguments=arguments)
        return
    with console.new_file(file) as opened:
        export_into = partial(
            AuditBundler.export,
            write=opened.write,
            since_ms=times[0],
            until_ms=times[1],
            sample=sample,
            has_arguments=arguments,
            progress=show_progress,
        )
        done = use_service(ctx, AuditBundler, export_into, has_keyring=True)
    console.good(
        f"{done.entries} entries about {done.approvals} approvals are in {str(file)!r}."
    )
    console.note(
        f"Verify it anywhere: keyturn audit verify {file} --key PUBLIC, with the audit "
        "keys of 'keyturn keys list'."
    )


@group.command()
def verify(
    ctx: typer.Context,
    file: Annotated[
        Path | None, argument("[FILE]", "A bundle; without it, the store's log.")
    ] = None,
    *,
    key: Keys = None,
    checkpoint: Annotated[
        list[Path] | None, option("FILE", "A checkpoint that was saved elsewhere.")
    ] = None,
    stories: Annotated[
        bool, flag("--stories", "Who saw, decided and ran what.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Verify the audit log, or a bundle with only public keys.

    Exits with 0 if everything verifies, otherwise with 1 and the first bad entry. A
    bundle needs neither a store nor settings.

    Examples:
      keyturn audit verify                this store's tree, files and signatures
      … --checkpoint kept.txt             does it continue this one?
      … bundle.jsonl --key KEY            a file of 'keyturn audit export'
      … bundle.jsonl --key KEY --stories  and the history of each approval
    """
    if file is not None:
        if checkpoint:
            raise SettingsError(
                "--checkpoint is for the log of this store: omit FILE. A bundle has "
                "the checkpoint of its proofs."
            )
        report = _read_bundle(file, key or [])
        print_bundle(report, has_stories=stories, is_json=json)
        if not report.is_verified:
            raise typer.Exit(NOT_VERIFIED)
        return
    if key or stories:
        raise SettingsError(
            f"{'--key' if key else '--stories'} is for a bundle: name its FILE, too. "
            "The log of this store is verified with the keys of the settings."
        )
    kept = [note for one in checkpoint or [] for note in _checkpoints_in(one)]

    async def is_bad(store: Store, tenant: str) -> bool:
        found = await verify_log_of(store, tenant, kept=kept, progress=show_progress)
        return print_log(found, is_json=json)

    if use_store(ctx, is_bad, has_keyring=True):
        raise typer.Exit(NOT_VERIFIED)


@group.command()
def dossier(
    ctx: typer.Context,
    bundle: Annotated[
        Path | None, argument("[BUNDLE]", "Without it, the store's log.")
    ] = None,
    *,
    since: Annotated[str, option("TIME", "A date in UTC, or ISO 8601.", "--from")] = "",
    until: Annotated[str, option("TIME", "The same; exclusive.", "--to")] = "",
    out: Annotated[Path, option("FILE", "The HTML page to write.")] = Path(
        "dossier.html"
    ),
    check: Annotated[
        Path | None, option("FILE", "Recompute this dossier from BUNDLE.")
    ] = None,
    key: Keys = None,
    json: AsJson = False,
) -> None:
    """Report the oversight of a period, as a page or as JSON.

    It shows who could oversee, their decisions and waiting times, freezes, spot checks
    and executions. Every figure comes from verified entries of a bundle, so anybody
    with the bundle and the public audit key can recompute it. It has ids of people, and
    neither names nor arguments. Erased texts are counted.

    Examples:
      keyturn audit dossier --from 2026-10-01 --to 2026-11-01  write dossier.html
      … bundle.jsonl --key KEY --from … --to … --json          from a bundle
      … --check dossier.html bundle.jsonl --key KEY            check its figures
    """
    if check and bundle is None:
        raise SettingsError(
            "--check compares a dossier with a bundle: name the BUNDLE, too."
        )
    if bundle is None:
        report = _exported_bundle(ctx)
    else:
        report = _read_bundle(bundle, key or [])
    if not report.is_verified:
        print_bundle(report, has_stories=False, is_json=json)
        raise typer.Exit(NOT_VERIFIED)
    if check:
        wrong = _wrong_figures(console.read_text(check, "the dossier"), report)
        for one in wrong:
            console.bad(console.printable(one))
        if wrong:
            raise typer.Exit(NOT_VERIFIED)
        console.good("Every figure of the dossier follows from the bundle.")
        return
    found = _dossier_of(report, since, until)
    if json:
        console.as_json(found.as_json)
        return
    with console.new_file(out) as opened:
        opened.write(_page_of(found, report).encode())
    console.good(f"The oversight of the period is in {str(out)!r}.")


@group.command()
def prove(
    ctx: typer.Context, approval: Annotated[str, argument("APPROVAL", "Its whole id.")]
) -> None:
    """Print the entries of an approval with their proofs.

    A proof is a text of the format C2SP tlog-proof. With the public audit key, any tool
    that reads this format can check it: it shows that the signed log has this entry at
    this index.

    Examples:
      keyturn audit prove ap_default_…  each entry of it, with its proof
    """

    async def proven(store: Store, tenant: str) -> int:
        found = await AuditBundler(store, tenant=tenant).prove(approval)
        return print_proofs(found, tenant=tenant)

    if not use_store(ctx, proven, has_keyring=True):
        raise SettingsError(
            f"The audit log has no entry about {approval!r}; 'keyturn audit export' "
            "prints all entries."
        )


def _checkpoints_in(file: Path) -> list[str]:
    """Return the checkpoints that were saved in a file.

    Raises:
        SettingsError: there are none.
    """
    # A copy of a checkpoint may lack the empty line after it.
    text = console.read_text(file, "the checkpoint").strip()
    if found := notes_in(f"{text}\n\n"):
        return found
    raise SettingsError(
        f"{str(file)!r} has no checkpoint: give lines of a '.checkpoints' file of the "
        "audit folder, from the name of the log to its signature."
    )


def _print_entries(
    ctx: typer.Context, times: tuple[int, int | None], *, has_arguments: bool
) -> None:
    async def printed(store: Store, tenant: str) -> bool:
        rows = exported(store, tenant, *times, has_arguments=has_arguments)
        is_empty = True
        async for row in rows:
            # ASCII only: arguments could control the terminal, or not fit its encoding.
            typer.echo(json.dumps(row))
            is_empty = False
        return not is_empty

    if not use_store(ctx, printed):
        # To stderr: stdout may be redirected to a file, which should contain only rows.
        typer.echo("The audit log has no entries in this time.", err=True)


def _read_bundle(file: Path, keys: list[str]) -> BundleReport:
    if not keys:
        raise SettingsError(
            "Give the public key of the audit log with --key: a bundle cannot vouch "
            "for its own keys. 'keyturn keys list' prints it where the gateway runs."
        )
    trusted = [parse_public_key(one) for one in keys]
    try:
        opened = sys.stdin.buffer if str(file) == "-" else file.open("rb")
    except OSError as error:
        raise SettingsError(
            f"The bundle {str(file)!r} cannot be read: {error.strerror}."
        ) from error
    with opened as lines:
        return verify_bundle(lines, trusted, progress=show_progress)


def _exported_bundle(ctx: typer.Context) -> BundleReport:
    """Return the store's whole log, verified: a policy may be older than a period."""

    async def written(store: Store, tenant: str) -> BundleReport:
        lines: list[bytes] = []
        bundler = AuditBundler(store, tenant=tenant)
        await bundler.export(lines.append, has_arguments=False)
        return verify_bundle(lines, public_keys(required(store)[0]))

    return use_store(ctx, written, has_keyring=True)


def _moment_ms(text: str, option: str) -> int:
    """Return whole seconds in Unix milliseconds; a date alone begins in UTC."""
    if not text:
        raise SettingsError(
            f"Give the start and the end of the period, such as {option} 2026-10-01."
        )
    return int(parse_moment(text, option).timestamp()) * 1000


def _page_of(found: Dossier, report: BundleReport) -> str:
    origin = report.head.origin if report.head else ""
    return dossier_page.page(found, f"Verified entries of {origin}.")


def _wrong_figures(text: str, report: BundleReport) -> list[str]:
    """Return a sentence for each figure of a dossier that differs from the bundle.

    Raises:
        SettingsError: the text is neither a page nor the JSON of a dossier.
    """
    if times := dossier_page.PERIOD.search(text):
        page = _page_of(_dossier_of(report, *times.groups()), report)
        lines = ndiff(text.splitlines(), page.splitlines())
        says = {"- ": "The bundle does not give", "+ ": "The page lacks"}
        return [f"{says[one[:2]]} {one[2:]}" for one in lines if one[:2] in says]
    with suppress(BadJson):
        claimed = parse_object(text)
        if claimed.get("format") == FORMAT:
            period = (str(claimed.get("from")), str(claimed.get("to")))
            return [*differences(claimed, _dossier_of(report, *period).as_json)]
    raise SettingsError(
        "--check needs a dossier: a page of 'keyturn audit dossier', or its --json."
    )


def _dossier_of(report: BundleReport, since: str, until: str) -> Dossier:
    """Fold a verified bundle.

    Raises:
        SettingsError: the bundle lacks entries of the period or before it.
    """
    since_ms, until_ms = _moment_ms(since, "--from"), _moment_ms(until, "--to")
    if until_ms <= since_ms:
        raise SettingsError(f"--to {until!r} is not after --from {since!r}.")
    header = report.header
    # The policy in force, an edit or the start of a run may be older than the period.
    is_whole = header is not None and not (header.sample or header.since_ms)
    ends_ms = (header and header.until_ms) or until_ms
    if not is_whole or ends_ms < until_ms:
        raise SettingsError(
            "The bundle does not have every entry until the end of the period. Export "
            "it again without --sample, --since and --until."
        )
    found = Dossier(Selection(since_ms=since_ms, until_ms=until_ms))
    for entry in report.events:
        found.add(*entry)
    return found

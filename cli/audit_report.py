"""Texts of `twokey audit`: what was verified, proven and exported."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import typer
from pydantic import JsonValue

from twokey.cli import console
from twokey.gateway.approvals.audit_leaf import SEAL, Hidden
from twokey.gateway.approvals.audit_story import Part, Story
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.service.audit_bundling import Proven
from twokey.gateway.store.audit_verifying import Verified
from twokey.gateway.trust.audit_bundle import BundleReport

_SHOWN_EVERY = 10_000


class Progress:
    """Prints on a terminal how far a long log is done."""

    def __init__(self, word: str) -> None:
        self._word = word

    def __call__(self, done: int, of: int = 0) -> None:
        """Show how many entries are done, now and then."""
        if done and done % _SHOWN_EVERY == 0 and sys.stderr.isatty():
            whole = f" of {of:,}" if of else ""
            typer.echo(f"\r{self._word} {done:,}{whole} entries", nl=False, err=True)


def tell_logs(found: Sequence[Verified], *, is_json: bool) -> int:
    """Print what was found of the logs; return how many are not what was signed."""
    bad = sum(1 for one in found if one.problems)
    if is_json:
        console.as_json({"verified": not bad, "logs": [_log_row(one) for one in found]})
        return bad
    for one in found:
        _tell_log(one)
    return bad


def _tell_log(one: Verified) -> None:
    if not one.origin and not one.problems:
        console.note(f"{one.shard}: there is no tree yet; a gateway that runs has one.")
        return
    wrong = one.first_bad
    if wrong is not None:
        console.bad(
            f"{one.shard}: not verified. The first bad entry is {wrong.index}: "
            f"{console.printable(wrong.text)}."
        )
        return
    console.good(
        f"{one.shard}: {one.size} entries are as they were signed, by "
        f"{one.checkpoints} checkpoints of {one.origin}."
    )
    if one.kept_from:
        console.note(
            f"Of the first {one.kept_from}, whose time is over, the hashes are kept."
        )
    if one.unsigned:
        console.note(f"{one.unsigned} newer ones wait for the next checkpoint.")
    for state, count in sorted(one.not_ours.items()):
        console.note(f"{count} are {state}: not known to be written by Twokey.")


def _log_row(one: Verified) -> JsonObject:
    wrong = one.first_bad
    return {
        "shard": one.shard,
        "origin": one.origin,
        "entries": one.size,
        "checkpoints": one.checkpoints,
        "kept_from": one.kept_from,
        "unsigned": one.unsigned,
        "not_ours": dict[str, JsonValue](one.not_ours),
        "first_bad": wrong.index if wrong else None,
        "problems": [
            {"index": each.index, "problem": each.text} for each in one.problems
        ],
    }


def tell_proofs(found: Sequence[Proven], *, tenant: str, is_json: bool) -> int:
    """Print entries with their proofs; return how many there are."""
    ours = [one for one in found if one.event is None or one.event.tenant == tenant]
    if is_json and ours:
        console.as_json([_proof_row(one) for one in ours])
        return len(ours)
    for one in ours:
        # The entry and its proof are what a tool reads; the rest are remarks for it.
        typer.echo(f"# entry {one.index}: {_what(one)}")
        typer.echo(ascii_text(one.leaf.text.decode()))
        for name, hidden in _shown(one):
            shown = console.printable(hidden.value)
            typer.echo(f"#   {name} (salt {hidden.salt}): {shown}")
        typer.echo(one.proof or "# no checkpoint covers it yet\n")
    return len(ours)


def ascii_text(text: str) -> str:
    """Return JSON without a letter that steers a terminal; it parses to the same."""
    return "".join(
        letter if letter.isascii() and letter.isprintable() else _escaped(letter)
        for letter in text
    )


def _escaped(letter: str) -> str:
    units = letter.encode("utf-16-be")
    return "".join(
        f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2)
    )


def _shown(one: Proven) -> list[tuple[str, Hidden]]:
    return [row for row in one.leaf.openings.items() if row[0] != SEAL]


def _what(one: Proven) -> str:
    return one.event.name if one.event else "not written by Twokey"


def _proof_row(one: Proven) -> JsonObject:
    return {
        "index": one.index,
        "entry": one.leaf.text.decode(),
        "open": {
            name: {"salt": hidden.salt, "value": hidden.value}
            for name, hidden in _shown(one)
        },
        "proof": one.proof or None,
    }


def tell_bundle(report: BundleReport, *, has_stories: bool, is_json: bool) -> None:
    """Print what was found of a bundle."""
    stories = report.stories.by_approval
    if is_json:
        console.as_json(_bundle_row(report, stories, has_stories=has_stories))
        return
    if not report.is_verified:
        where = ":"
        if report.bad_index is not None:
            where = f". The first bad entry is {report.bad_index} of {report.bad_log}:"
        problem = console.printable(report.problem)
        console.bad(f"The bundle is not verified{where} {problem}.")
        return
    sample = report.header.get("sample")
    for log in report.logs:
        kind = "a part of the" if sample else "all"
        console.good(
            f"{log.entries} entries are as they were signed: {kind} entries "
            f"{log.start} to {log.end - 1} of {log.checkpoint.size} of {log.origin}."
        )
    console.good(
        f"It tells of {len(stories)} approvals, with the arguments of {report.calls} "
        "calls."
    )
    if sample:
        console.note(
            "It is a sample: that an approval has no other entry is the word of who "
            "signed the bundle, and not proven by the log."
        )
    if has_stories:
        for story in stories.values():
            _tell_story(story)


def _tell_story(story: Story) -> None:
    what = "ran" if story.has_run else "nothing of it ran"
    typer.echo(f"\n{story.approval}: {what}")
    for step in story.steps:
        event = step.event
        if step.part is Part.OTHER:
            continue
        parts = [f"{console.utc(event.at_ms)}  {step.part:<8} {event.name}"]
        parts += [event.tool] if event.tool else []
        parts += [f"by {event.actor}"] if event.actor else []
        parts += [f"because {event.reason!r}"] if event.reason else []
        typer.echo("  " + console.printable(" ".join(parts)))


def _bundle_row(
    report: BundleReport, stories: Mapping[str, Story], *, has_stories: bool
) -> JsonObject:
    found: JsonObject = {
        "verified": report.is_verified,
        "problem": report.problem,
        "first_bad": report.bad_index,
        "bad_log": report.bad_log,
        "logs": [
            {
                "origin": log.origin,
                "entries": log.entries,
                "start": log.start,
                "end": log.end,
                "size": log.checkpoint.size,
                "root": log.checkpoint.root.hex(),
            }
            for log in report.logs
        ],
        "sample": report.header.get("sample"),
        "approvals": len(stories),
        "calls": report.calls,
    }
    if has_stories:
        found["stories"] = [story.row for story in stories.values()]
    return found

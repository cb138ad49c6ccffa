"""The dossier of a period as one HTML page without scripts, for a screen or paper."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import cast

from keyturn.gateway.metrics import report
from keyturn.gateway.metrics.dossier import ACTS, Dossier

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Oversight of AI agents</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem;
  overflow-wrap: anywhere; padding: 1.5rem 1rem; }}
h2 {{ font-size: 1.15rem; margin: 2rem 0 .5rem; }}
.wide {{ margin-bottom: 1rem; overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }}
th, td {{ border-bottom: 1px solid #8886; overflow-wrap: normal; text-align: left;
  padding: .35rem .75rem .35rem 0; vertical-align: top; }}
td:first-child {{ min-width: 8rem; overflow-wrap: anywhere; }}
@media print {{ body {{ max-width: none; }} tr {{ break-inside: avoid; }} }}
</style>
{body}
</html>
"""

PERIOD = re.compile(r"<p>(\S+) to (\S+)\. ")
"""The period of a page."""

_ACTS = ("Pages opened", "Votes", "Spot checks", "Approved", "Edited", "Rejected")


def page(found: Dossier, source: str) -> str:
    """Return the page; ``source`` names the log of the figures."""
    return _PAGE.format(body="\n".join(_parts(found, source)))


def _parts(found: Dossier, source: str) -> Iterator[str]:
    selected = found.metrics.selected
    yield "<h1>Oversight of AI agents</h1>"
    times = (report.utc(ms or 0) for ms in (selected.since_ms, selected.until_ms))
    yield _text(f"{' to '.join(times)}. {source}")
    newest = report.utc(found.newest_ms) if found.newest_ms else "none"
    yield _text(f"Newest entry of the period: {newest}. Nothing later is proven.")
    yield "<h2>People who could oversee</h2>"
    for policy in found.policies:
        yield _text(f"Since {policy['since']}: policy {policy['digest']}")
        roles = cast("dict[str, list[str]]", policy["roles"] or {})
        holders = ((name, ", ".join(ids)) for name, ids in sorted(roles.items()))
        yield from _table(("Role", "Users and user groups"), holders)
    yield "<h2>Views and decisions</h2>"
    people = sorted(found.people.items())
    acts = ((name, *(str(row[act]) for act in ACTS)) for name, row in people)
    yield from _table(("Person", *_ACTS, "Responded"), acts)
    yield "<h2>Calls, interventions and spot checks</h2>"
    yield from _table(("Figure", "Rate", "Counts"), report.facts(found.metrics))
    tools = report.by_calls(found.metrics)
    rows = ((name, *report.cells(counts)) for name, counts in tools)
    yield from _table(("Tool", *report.HEADINGS), rows)
    yield "<h2>Freezes</h2>"
    freezes = ([*map(str, row.values())] for row in found.freezes)
    yield from _table(("Time", "Event", "Scope", "By"), freezes)
    yield "<h2>Executions, failures and other events</h2>"
    entries = ((name, str(count)) for name, count in sorted(found.entries.items()))
    yield from _table(("Event", "Entries"), entries)
    texts, erased = found.erased["texts"], found.erased["entries"]
    yield _text(f"{texts} texts of {erased} entries are erased; none is shown.")


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    body = [f"<tr>{_cells('td', row)}</tr>" for row in rows]
    if not body:
        yield _text("There are none, or they are erased.")
        return
    yield f'<div class="wide"><table><tr>{_cells("th", headings)}</tr>'
    yield from body
    yield "</table></div>"


def _cells(tag: str, row: Sequence[str]) -> str:
    return "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)


def _text(text: str) -> str:
    return f"<p>{escape(text)}</p>"

"""Validate rules across one payload: unique ids, focus, total text."""

from collections.abc import Iterator, Mapping, Sequence

from keyturn.sandbox.blockkit import limits
from keyturn.sandbox.blockkit.jsontypes import ReadOnlyJSON
from keyturn.sandbox.blockkit.problem import Violation, Violations
from keyturn.sandbox.blockkit.rules import duplicates
from keyturn.sandbox.blockkit.shape import Node

_COUNTED = frozenset(
    {"text", "url", "image_url", "alt_text", "fallback", "title", "label", "name"}
)
"""The last three are texts only in charts; elsewhere they are objects or short."""

Blocks = Sequence[ReadOnlyJSON]


def of_kind(blocks: Blocks, kind: str) -> Iterator[tuple[int, Node]]:
    """Yield index and block of each block of one type."""
    for index, block in enumerate(blocks):
        if isinstance(block, Mapping) and block.get("type") == kind:
            yield index, block


def shared_violations(blocks: Blocks) -> Violations:
    """Yield repeated block ids and a second focus, which every surface refuses."""
    for index, block_id in duplicates(blocks, "block_id"):
        yield Violation(f"/{index}/block_id", f"{block_id!r} is already used above")
    yield from (
        Violation(
            pointer, "is a second focus_on_load; only one element may take the focus"
        )
        for pointer in [*_focused(blocks)][1:]
    )


def surplus_violations(blocks: Blocks) -> Violations:
    """Yield every table and chart beyond a message's limit."""
    for kind, noun, most in (
        ("table", "table", limits.TABLES_IN_MESSAGE),
        ("data_visualization", "chart", limits.CHARTS_IN_MESSAGE),
    ):
        found = [index for index, _ in of_kind(blocks, kind)]
        for index in found[most:]:
            yield Violation(
                f"/{index}",
                f"is one {noun} too many: a message takes {most}, "
                f"this one has {len(found)}",
            )


def markdown_length(blocks: Blocks) -> int:
    """Count the characters in all markdown blocks together."""
    texts = (block.get("text") for _, block in of_kind(blocks, "markdown"))
    return sum(len(text) for text in texts if isinstance(text, str))


def text_length(value: ReadOnlyJSON) -> int:
    """Count the characters of all nested texts, addresses and alternative texts.

    Slack's formula is undocumented; this counts all text that a reader receives, but no
    ids. A stack instead of recursion supports any depth.
    """
    total, waiting = 0, [value]
    while waiting:
        here = waiting.pop()
        if isinstance(here, Mapping):
            for key, inner in here.items():
                if not isinstance(inner, str):
                    waiting.append(inner)
                elif key in _COUNTED:
                    total += len(inner)
        elif isinstance(here, Sequence) and not isinstance(here, str):
            waiting.extend(here)
    return total


def _focused(blocks: Blocks) -> Iterator[str]:
    for index, block in enumerate(blocks):
        if not isinstance(block, Mapping):
            continue
        for key in ("element", "accessory"):
            if _wants_focus(block.get(key)):
                yield f"/{index}/{key}/focus_on_load"
        inside = block.get("elements")
        if isinstance(inside, Sequence) and not isinstance(inside, str):
            for place, element in enumerate(inside):
                if _wants_focus(element):
                    yield f"/{index}/elements/{place}/focus_on_load"


def _wants_focus(element: ReadOnlyJSON) -> bool:
    return isinstance(element, Mapping) and element.get("focus_on_load") is True

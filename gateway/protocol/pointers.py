"""Parse and format JSON Pointers (RFC 6901)."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import JsonValue


def pointer_to(tokens: Iterable[str | int]) -> str:
    """Return the pointer to a place; "" for the whole."""
    return "".join(f"/{escaped(str(token))}" for token in tokens)


def escaped(token: str) -> str:
    """Return a name as a pointer holds it."""
    # "~" first, or the "~" of "~1" would be escaped again.
    return token.replace("~", "~0").replace("/", "~1")


def tokens_of(text: str) -> tuple[str, ...]:
    """Return the names that a pointer goes through, also one that begins with "#"."""
    # In the opposite order, so that "~01" is "~1" and not "/".
    return tuple(
        token.replace("~1", "/").replace("~0", "~") for token in text.split("/")[1:]
    )


def pointed(root: JsonValue, text: str) -> JsonValue:
    """Return the member that a pointer through objects leads to; None for nowhere."""
    for token in tokens_of(text):
        root = root.get(token) if isinstance(root, dict) else None
    return root

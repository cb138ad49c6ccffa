"""Turn this process into one of the next version, whose formats are all one higher."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from twokey.gateway.approvals.events import Event
from twokey.gateway.store import codec, message_format, record_texts
from twokey.gateway.store.jobs import Job

NEW = "brought_by_the_next_version"
"""A field of every record, event and job that this version does not know."""

_MESSAGES = message_format.MESSAGE_FORMAT + 1


def become_newer(patch: pytest.MonkeyPatch) -> None:
    """Write what this version cannot read, and read both.

    Only this process changes: programs that it starts are of this version.
    """
    patch.setattr(codec, "FORMAT", codec.FORMAT + 1)
    for module, name in ((codec, "pinned"), (record_texts, "detail")):
        patch.setattr(module, name, _adding(getattr(module, name), {NEW: 1}))
    read: Callable[[bytes], dict[str, Any]] = getattr(codec, "_object")  # noqa: B009 - it is private

    def known(stored: bytes) -> dict[str, Any]:
        return _known(read(stored))

    patch.setattr(codec, "_object", known)
    patch.setattr(message_format, "MESSAGE_FORMAT", _MESSAGES)
    for kind in (Event, Job):
        dump = _adding(kind.model_dump_json, {NEW: 1, "format": _MESSAGES})
        patch.setattr(kind, "model_dump_json", dump)
        patch.setattr(kind, "model_validate_json", _reading(kind.model_validate_json))


def _adding(dump: Callable[..., str], more: dict[str, Any]) -> Callable[..., str]:
    def dumped(*given: Any, **named: Any) -> str:
        return json.dumps({**json.loads(dump(*given, **named)), **more})

    return dumped


def _reading(parse: Callable[..., Any]) -> Callable[[str | bytes], Any]:
    return lambda body: parse(json.dumps(_known(json.loads(body))))


def _known(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in {NEW, "format"}}

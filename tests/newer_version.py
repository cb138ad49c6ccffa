"""Turn this process into one of the next version, whose formats are all one higher."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from twokey.gateway.approvals.events import Event
from twokey.gateway.store import codec, message_format, record_texts
from twokey.gateway.store.jobs import Job
from twokey.gateway.store.script import Script

NEW = "brought_by_the_next_version"
"""A field of every record, event and job that this version does not know."""

_OLD, _NEXT = (f"local FORMAT = '{codec.FORMAT + more}'" for more in (0, 1))
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
    modules = [one for name, one in sys.modules.items() if name.startswith("twokey")]
    named = [one for module in modules for one in vars(module).values()]
    for script in {one for one in named if isinstance(one, Script)}:
        for name in ("_plain", "_fenced"):
            source = getattr(script, name)
            patch.setattr(script, name, source.replace(_OLD, _NEXT))


def _adding(dump: Callable[..., str], more: dict[str, Any]) -> Callable[..., str]:
    def dumped(*given: Any, **named: Any) -> str:
        return json.dumps({**json.loads(dump(*given, **named)), **more})

    return dumped


def _reading(parse: Callable[..., Any]) -> Callable[[str | bytes], Any]:
    return lambda body: parse(json.dumps(_known(json.loads(body))))


def _known(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in {NEW, "format"}}

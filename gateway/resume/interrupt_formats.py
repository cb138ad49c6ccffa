"""Parse third-party interrupt formats, and build an automatic rejection for them.

Only LangChain's own human-in-the-loop format has a known rejection. Any other interrupt
may take a string as its input, such as the number of an account; so it gets no
automatic answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

from twokey.gateway.approvals.evidence import redacted
from twokey.gateway.errors import BadJson
from twokey.gateway.protocol.strict_json import JsonObject, accept_object
from twokey.gateway.resume.runner import PendingInterrupt

MAX_CHARS = 3000
"""Longest text of a question that is passed on."""

_CALLS = 20
_NOBODY = "Nobody answered in time, so this did not run."
_REFUSING = ("reject", "respond")

Redact = Callable[[str], Iterable[str]]
"""Returns the paths of a tool's arguments that people do not get to see."""


def question_text(pending: PendingInterrupt, redact: Redact) -> str:
    """Return a question for people: bounded, and without what the policy redacts."""
    calls = _calls(pending.value)
    if calls:
        lines = [_call(one, redact) for one in calls[:_CALLS]]
        if len(calls) > _CALLS:
            lines.append(f"… and {len(calls) - _CALLS} more calls")
        text = "\n".join(["Should this run?", *lines])
    elif isinstance(pending.value, str):
        text = pending.value  # written as a question to people: ``interrupt("Go on?")``
    else:
        # Data of unknown shape: no redaction rule applies to it, so only names show.
        text = _names(pending.value)
    return text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 1]}…"


def rejection(pending: PendingInterrupt) -> JsonObject | None:
    """Return the answer that nobody answered; None when there is no safe one."""
    value = _object(pending.value)
    if value.get("type") == "tool_approval":
        return {"type": "reject", "message": _NOBODY} if pending.schema else None
    requests, rules = value.get("action_requests"), value.get("review_configs")
    if not isinstance(requests, list) or not isinstance(rules, list):
        return None
    allowed = {
        str(_object(rule).get("action_name")): _object(rule).get("allowed_decisions")
        for rule in cast("list[object]", rules)
    }
    decisions: list[JsonObject] = []
    for request in cast("list[object]", requests):
        found = allowed.get(str(_object(request).get("name")))
        words = cast("list[object]", found) if isinstance(found, list) else []
        word = next((one for one in _REFUSING if one in words), None)
        # One call without a safe answer leaves the whole question without one:
        # LangChain takes a decision for each call or none.
        if word is None:
            return None
        decisions.append({"type": word, "message": _NOBODY})
    return {"decisions": list(decisions)} if decisions else None


def _calls(value: object) -> list[Mapping[str, object]]:
    """Return the calls that a question of LangChain's middleware is about."""
    found = _object(value)
    if found.get("type") == "tool_approval":
        return [found]
    requests = found.get("action_requests")
    if not isinstance(requests, list):
        return []
    return [_object(one) for one in cast("list[object]", requests)]


def _call(call: Mapping[str, object], redact: Redact) -> str:
    tool = str(call.get("name", ""))
    try:
        shown = redacted(accept_object(call.get("args")), redact(tool))
    except BadJson:
        return f"{tool} (its arguments cannot be shown)"
    return f"{tool} {json.dumps(shown, ensure_ascii=False, sort_keys=True)}"


def _names(value: object) -> str:
    if isinstance(value, Mapping):
        names = ", ".join(map(str, cast("Mapping[object, object]", value)))
        return f"A question with these parts: {names or 'none'}."
    if isinstance(value, Sequence):
        return f"A question with {len(cast('Sequence[object]', value))} parts."
    return f"A question that is a {type(value).__name__}."


def _object(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}

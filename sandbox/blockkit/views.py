"""Validate a view: a modal or an App Home tab.

Source: https://docs.slack.dev/reference/views
"""

import json
from collections.abc import Mapping, Sequence

from keyturn.sandbox.blockkit import limits
from keyturn.sandbox.blockkit.jsontypes import ReadOnlyJSON
from keyturn.sandbox.blockkit.objects import plain
from keyturn.sandbox.blockkit.payload_rules import of_kind, shared_violations
from keyturn.sandbox.blockkit.problem import Problem, Violation, Violations, step
from keyturn.sandbox.blockkit.schema_validator import violations
from keyturn.sandbox.blockkit.shape import Flag, Node, Record, Shape, Str, Tagged
from keyturn.sandbox.blockkit.surfaces import HOME_BLOCKS, MODAL_BLOCKS

_ID = Str(limits.ID, least=0)
_VIEW: dict[str, Shape] = {
    "private_metadata": Str(limits.PRIVATE_METADATA, least=0),
    "callback_id": _ID,
    "external_id": _ID,
}


def _inputs_need_submit(view: Node) -> Violations:
    if "submit" not in view and any(of_kind(_blocks(view), "input")):
        yield Violation("/submit", "is required in a modal that has an input block")


_MODAL = Tagged(
    "a modal",
    {
        "modal": Record(
            {"title": plain(limits.VIEW_LABEL), "blocks": MODAL_BLOCKS},
            _VIEW
            | {
                "submit": plain(limits.VIEW_LABEL),
                "close": plain(limits.VIEW_LABEL),
                "clear_on_close": Flag(),
                "notify_on_close": Flag(),
                "submit_disabled": Flag(),
            },
            (_inputs_need_submit,),
        )
    },
)
_HOME = Tagged("a home tab", {"home": Record({"blocks": HOME_BLOCKS}, _VIEW)})


def validate_modal(view: ReadOnlyJSON) -> list[Problem]:
    """Return Slack's reasons to refuse a modal, or an empty list.

    Pointers start at the view itself (`/title/text`, `/blocks/0`).
    """
    return _problems(_MODAL, view)


def validate_home(view: ReadOnlyJSON) -> list[Problem]:
    """Return Slack's reasons to refuse an App Home tab, or an empty list.

    Pointers start at the view itself (`/blocks/0`).
    """
    return _problems(_HOME, view)


def _problems(shape: Shape, view: ReadOnlyJSON) -> list[Problem]:
    found = [
        Problem(violation.pointer, "invalid_arguments", violation.message)
        for violation in violations(shape, view)
    ]
    if isinstance(view, Mapping):
        found += [
            Problem(
                step("", "blocks") + violation.pointer,
                "invalid_arguments",
                violation.message,
            )
            for violation in shared_violations(_blocks(view))
        ]
    # A view with violations may be nested too deeply to serialize it for its size.
    if not found and (size := _size(view)) > limits.VIEW_BYTES:
        message = f"must have at most {limits.VIEW_BYTES} bytes as JSON, has {size}"
        found.append(Problem("", "view_too_large", message))
    return found


def _blocks(view: Node) -> Sequence[ReadOnlyJSON]:
    blocks = view.get("blocks")
    return (
        blocks if isinstance(blocks, Sequence) and not isinstance(blocks, str) else ()
    )


def _size(view: ReadOnlyJSON) -> int:
    return len(json.dumps(view, ensure_ascii=False, separators=(",", ":")).encode())

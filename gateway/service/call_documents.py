"""Make the action documents of submitted calls."""

from __future__ import annotations

from collections.abc import Callable

from twokey.gateway.approvals.record import Context
from twokey.gateway.errors import BadJson
from twokey.gateway.protocol import business_state, digest
from twokey.gateway.protocol.strict_json import MAX_BYTES, accept_object
from twokey.gateway.protocol.wire import ProposedCall, TurnRef

NO_DOCUMENT = (
    f"A call has to be strict JSON of at most {MAX_BYTES // 1024} KiB. This one is "
    "not, so it did not run and nobody was asked. Pass less, or say where the content "
    "is, such as the name of a file."
)
"""What the model reads of a call without a document."""
_LONGEST_ESCAPE = 6
"""Bytes that one character of a text takes in JSON at most."""
_REST = 1024
"""More than what stands in a document beside its texts and arguments."""


def document_of(
    call: ProposedCall, ctx: Context, salt: Callable[[], str], *, with_state: bool
) -> str:
    """Return the document of a call; "" when it is too large or no strict JSON.

    ``with_state`` binds the business state that the call depends on, if any.
    """
    try:
        document = digest.action_document(
            tool=call.tool,
            args=accept_object(call.args),
            ctx=ctx.as_dict(),
            salt=salt(),
        )
        state = call.state if with_state else None
        return document if state is None else business_state.with_state(document, state)
    except BadJson:
        return ""


def small_args(call: ProposedCall, tenant: str, ref: TurnRef) -> bytes | None:
    """Return the canonical arguments of a call that surely has a document.

    None: make it, to know. Of a call that runs at once no document is kept, but one
    that could not have any is refused.
    """
    texts = (tenant, call.tool, call.tool_call_id, *ref.names.values())
    if call.state is not None or not all(map(str.isascii, texts)):
        return None
    try:
        # As deep as they stand in the document.
        args = digest.canonical([call.args])
    except BadJson:
        return None
    size = len(args) + _LONGEST_ESCAPE * sum(map(len, texts)) + _REST
    return args[1:-1] if size <= MAX_BYTES else None

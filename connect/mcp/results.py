"""Write the results of calls: text for the model, and ``_meta`` for programs.

A client may show only the text or only the structured content. So a notice about an
edit is the first text block and the first member of the structured content. Every
listed output schema allows this member, so validating clients accept it.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

import mcp_types as types
from pydantic import JsonValue, ValidationError

from keyturn.connect.kept_values import MAX_PAYLOAD_CHARS, defused_json, shortened
from keyturn.gateway.protocol import edits, texts
from keyturn.gateway.protocol.receipts import META_KEY
from keyturn.gateway.protocol.records import EditRecord, Result
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import Answer, Verdict

R = TypeVar("R", bound=types.Result)

NOTICE = "keyturn_notice"
"""Member of structured content with the notice about an edit."""

DECISION = META_KEY.replace("receipt", "decision")
"""Member of a result's ``_meta`` with the decision, for programs."""

_NOT_OURS = ("io.modelcontextprotocol/", META_KEY.partition("/")[0] + "/")
_COMPOSED = {
    "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if",
    "unevaluatedProperties", "propertyNames", "maxProperties", "patternProperties",
}  # fmt: skip
"""Keywords of schemas that may forbid an additional member."""


def text_result(text: str, decision: JsonObject | None = None) -> types.CallToolResult:
    """Return an error result of the gate itself."""
    meta: Any = {DECISION: decision} if decision else None
    content: list[types.ContentBlock] = [types.TextContent(text=edits.defuse(text))]
    return types.CallToolResult(content=content, is_error=True, _meta=meta)


def with_pause(
    result: types.CallToolResult, verdict: Verdict | None
) -> types.CallToolResult:
    """Return a result that also asks an agent to wait, if it floods people."""
    text = texts.pause_text(verdict) if verdict else ""
    more = [types.TextContent(text=text)] if text else []
    return result.model_copy(update={"content": [*result.content, *more]})


def ended(answer: Answer, requested: JsonObject) -> types.CallToolResult:
    """Return the result of a call that ended without running.

    Even an answer is an error: validating clients refuse a success without the
    structured content of the tool's output schema.
    """
    decision = decision_of(answer.type, requested, source=answer)
    return text_result(texts.ended_text(answer), decision)


def decision_of(
    kind: str,
    requested: JsonObject,
    executed: JsonObject | None = None,
    source: Answer | EditRecord | None = None,
    item_id: str = "",
) -> JsonObject:
    """Return the decision on a call and its arguments, for programs."""
    found: JsonObject = {"type": str(kind), "requested": requested}
    if executed is not None:
        found["executed"] = executed
    if item_id := source.item_id if source else item_id:
        found["approval"] = item_id.partition(".")[0]
    if source is not None and source.by is not None and source.by.user:
        found["by"] = source.by.name or source.by.user
    return found


def cleaned(result: R) -> R:
    """Return an upstream's result without forged notices and metadata."""
    shown = defused_json(
        result.model_dump(by_alias=True, mode="json", exclude_none=True)
    )
    shown["_meta"] = {
        name: value
        for name, value in shown.get("_meta", {}).items()
        if not name.startswith(_NOT_OURS)
    }
    inner = shown.get("structuredContent")
    if isinstance(inner, dict):
        cast("dict[str, Any]", inner).pop(NOTICE, None)
    return type(result).model_validate(shown, by_name=False)


def of_run(
    result: types.CallToolResult,
    requested: JsonObject,
    edit: EditRecord | None = None,
    source: Answer | None = None,
    *,
    kind: str = "approve",
    item_id: str = "",
) -> types.CallToolResult:
    """Return the result of a call that ran, with its decision and its edit."""
    executed, kind = (edit.edited_args, "edit") if edit else (requested, kind)
    decision = decision_of(kind, requested, executed, source or edit, item_id)
    update: dict[str, Any] = {"meta": {**(result.meta or {}), DECISION: decision}}
    if edit is not None:
        notice = texts.edit_text(edit)
        update["content"] = [types.TextContent(text=notice), *result.content]
        inner: JsonValue = result.structured_content
        members = inner if isinstance(inner, dict) else {"result": inner}
        if inner is not None:
            update["structured_content"] = {NOTICE: notice, **members}
    return result.model_copy(update=update)


def noted(tool: types.Tool) -> types.Tool:
    """Return a tool for the list, with an output schema that allows the notice.

    A composed schema is removed, because it may forbid an additional member. The
    results of such a tool keep their structured content.
    """
    schema = tool.output_schema
    if schema is None:
        return tool
    has_members = isinstance(schema.get("properties", {}), dict)
    if not has_members or schema.get("type") != "object" or _COMPOSED & {*schema}:
        return tool.model_copy(update={"output_schema": None})
    about = {"type": "string", "description": "A notice of the approval gateway."}
    members = {**schema.get("properties", {}), NOTICE: about}
    changed = {**schema, "properties": members}
    return tool.model_copy(update={"output_schema": changed})


def stored(result: types.CallToolResult) -> Result:
    """Return the stored form of a result; a large result loses its payload.

    The card shows the beginning of the text.
    """
    found = result.model_dump_json(by_alias=True, exclude_none=True)
    text = " ".join(
        one.text for one in result.content if isinstance(one, types.TextContent)
    )
    payload = found if len(found) <= MAX_PAYLOAD_CHARS else ""
    return Result(ok=not result.is_error, summary=shortened(text), payload=payload)


def restored(result: Result) -> types.CallToolResult:
    """Return a stored result, or a text if its payload is lost."""
    try:
        # Cleaned again: a writer to the store may have changed it.
        return cleaned(types.CallToolResult.model_validate_json(result.payload))
    except (ValidationError, ValueError):
        text = texts.lost_result_text(result)
        if result.failure is not None:
            text = texts.failure_text(result.failure, result.summary)
        return text_result(text)

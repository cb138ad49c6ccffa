"""Trace calls with OpenTelemetry, if the program around Keyturn has set up a tracer.

An approval keeps the context of its submission, because the decision, the claim and the
tool follow later and in other processes. Spans contain names, ids, tiers and decisions.
They contain no arguments, reasons or people: an error is recorded as its type.

Attributes follow https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/, and
contexts https://www.w3.org/TR/trace-context/#traceparent-header.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from time import time_ns
from typing import Any

HEADER = "traceparent"

_otel: Any = None
with suppress(ImportError):  # the package is an extra
    _otel = importlib.import_module("opentelemetry.trace")

_CONTEXT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})", re.ASCII)


def current() -> str:
    """Return the context of the current span as a ``traceparent``; "" without one."""
    if _otel is None:
        return ""
    found = _otel.get_current_span().get_span_context()
    if not found.is_valid:
        return ""
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


def inside(traceparent: str) -> AbstractContextManager[object]:
    """Make a span of another process current; an invalid context changes nothing."""
    parent = _span_of(traceparent)
    return _otel.use_span(parent) if parent is not None else nullcontext()


def _span_of(traceparent: str) -> Any:  # noqa: ANN401 - the package may be missing
    match = _CONTEXT.fullmatch(traceparent)
    if _otel is None or match is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in match.groups())
    context = _otel.SpanContext(trace_id, span_id, True, _otel.TraceFlags(flags))  # noqa: FBT003 - without a keyword in the API
    return _otel.NonRecordingSpan(context) if context.is_valid else None


def about(
    tool: str, call_id: str, tier: str, item_id: str, **more: str
) -> dict[str, str]:
    """Return the attributes of a call.

    Args:
        tool: its tool.
        call_id: the model's id of the call.
        tier: its tier.
        item_id: id of its record; "" without one.
        more: attributes in the name space of Keyturn.
    """
    approval = item_id.rpartition(".")[0]
    found = {"gen_ai.tool.name": tool, "gen_ai.tool.call.id": call_id}
    found |= {f"keyturn.{name}": value for name, value in more.items()}
    found |= {"keyturn.tier": tier, "keyturn.approval.id": approval}
    return {name: value for name, value in found.items() if value}


def record(
    name: str,
    parent: str,
    attributes: Mapping[str, str],
    start_ns: int,
    end_ns: int | None = None,
) -> None:
    """Record a span that is over.

    Args:
        name: name of the span.
        parent: context of its parent; without one nothing is recorded.
        attributes: its attributes.
        start_ns: Unix time of its start, in nanoseconds.
        end_ns: of its end; None: now.
    """
    around = _span_of(parent)
    if around is not None:
        _otel.get_tracer("keyturn").start_span(
            name,
            context=_otel.set_span_in_context(around),
            attributes=attributes,
            start_time=start_ns,
        ).end(end_ns or time_ns())


@contextmanager
def span(name: str, attributes: Mapping[str, str], parent: str = "") -> Generator[Any]:
    """Make a new span current inside the block.

    Args:
        name: name of the span.
        attributes: its attributes.
        parent: context of its parent; "": the current span is the parent. The new span
            links to a current span of another trace.

    Yields:
        The span; None without OpenTelemetry.
    """
    if _otel is None:
        yield None
        return
    here, around = _otel.get_current_span().get_span_context(), _span_of(parent)
    is_elsewhere = around and around.get_span_context().trace_id != here.trace_id
    with _otel.get_tracer("keyturn").start_as_current_span(
        name,
        context=_otel.set_span_in_context(around) if around else None,
        attributes=attributes,
        links=[_otel.Link(here)] if is_elsewhere and here.is_valid else (),
        record_exception=False,
        set_status_on_exception=False,
    ) as opened:
        yield opened


@contextmanager
def tool_span(attributes: Mapping[str, str], parent: str = "") -> Generator[Any]:
    """Make the span of a tool's execution current inside the block; see `span`."""
    told = {"gen_ai.operation.name": "execute_tool", **attributes}
    with span(f"execute_tool {told['gen_ai.tool.name']}", told, parent) as opened:
        yield opened


def failed(opened: Any, error: BaseException) -> None:  # noqa: ANN401 - see `span`
    """Mark a span as failed by the type of an error; its text may quote arguments."""
    if opened is not None:
        opened.set_attribute("error.type", type(error).__qualname__)
        opened.set_status(_otel.StatusCode.ERROR)

"""One trace leads from the agent's turn to the tool, without its arguments."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import BaseTool, tool
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from keyturn.bot.ids import Action
from keyturn.gateway import tracing
from keyturn.gateway.approvals.record import approval_of
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import Runner
from keyturn.gateway.store.store import Store
from keyturn.sandbox.server import Sandbox
from tests.bot.bot_stack import CHANNEL, Stack, is_card_of
from tests.resume import resume_stack, sample_tools
from tests.resume.programs import Open, asked, begin, calling_tools, decide, words
from tests.resume.resume_stack import RULES

SECRET = "4111-canary"
TRACE = f"00-{'a' * 32}-{'b' * 16}-01"


@tool
def email(to: str) -> str:
    """Send a message, with a span of the program."""
    with trace.get_tracer("program").start_as_current_span("smtp"):
        return f"mailed {to}"


@tool
def slow(order: str) -> str:
    """Fail with an argument in the error."""
    raise RuntimeError(f"no {order}")


broken = slow.model_copy(update={"name": "look_up"})


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Set a tracer up for one test; the one of a process cannot be replaced."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


async def click(tk: Keyturn, action: Action) -> None:
    """Decide the pending call of a program on its card in Slack, as Ana."""
    item = await asked(tk)
    async with Sandbox() as sandbox:
        stack = Stack(sandbox, tk.store, policy=RULES)
        stack.reviews = tk.reviews
        async with stack.running():
            ana = stack.actor("U0ANA")
            approval_id = approval_of(item.id)[0]
            card = await ana.message_with(
                CHANNEL, lambda it: is_card_of(it, approval_id)
            )
            await ana.click(CHANNEL, str(card["ts"]), action)


def run_in_turn(
    tk: Keyturn, *call: Any, more: Sequence[BaseTool] = (email, slow)
) -> asyncio.Task[dict[str, Any]]:
    """Run a thread inside the span of an agent's turn."""
    with trace.get_tracer("program").start_as_current_span("turn"):
        return begin(tk, sample_tools.graph(*more), calling_tools(call))


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {one.name: one for one in exporter.get_finished_spans()}


def parents(spans: dict[str, ReadableSpan]) -> dict[str, str]:
    """Return the name of each span's parent; "" for a root."""
    names = {one.context.span_id: name for name, one in spans.items() if one.context}
    return {
        name: names[one.parent.span_id] if one.parent else ""
        for name, one in spans.items()
    }


async def test_a_click_in_slack_is_in_the_trace_of_the_agents_turn(
    opened: Open, exported: InMemorySpanExporter
) -> None:
    async with opened() as tk:
        run = run_in_turn(tk, "email", {"to": SECRET})
        item = await asked(tk)
        await click(tk, Action.APPROVE)
        assert words(await run) == f"mailed {SECRET}"

    spans = by_name(exported)
    assert parents(spans) == {
        "turn": "",
        "keyturn.submit": "turn",
        "keyturn.wait": "keyturn.submit",
        "keyturn.decide": "keyturn.submit",
        "keyturn.claim": "keyturn.submit",
        "execute_tool email": "keyturn.submit",
        "smtp": "execute_tool email",
    }
    assert len({one.context and one.context.trace_id for one in spans.values()}) == 1
    call = {
        "gen_ai.tool.name": "email",
        "gen_ai.tool.call.id": item.ctx.tool_call_id,
        "keyturn.tier": "approve",
        "keyturn.approval.id": approval_of(item.id)[0],
    }
    assert spans["keyturn.submit"].attributes == {"gen_ai.agent.name": "shop"}
    assert spans["keyturn.wait"].attributes == call | {"keyturn.decision": "approved"}
    assert spans["keyturn.decide"].attributes == call | {"keyturn.decision": "approve"}
    assert spans["keyturn.claim"].attributes == call
    operation = {"gen_ai.operation.name": "execute_tool"}
    assert spans["execute_tool email"].attributes == call | operation
    for name, one in spans.items():
        assert (one.start_time or 0) <= (one.end_time or 0), name
    told = "".join(one.to_json() for one in spans.values())
    for word in (SECRET, "Ana", "U0ANA", "Dan"):
        assert word not in told


async def test_a_failed_tool_is_traced_by_the_type_of_its_error(
    opened: Open, exported: InMemorySpanExporter
) -> None:
    async with opened() as tk:
        run = run_in_turn(tk, "slow", {"order": SECRET})
        await decide(tk, await asked(tk))
        await run

    span = by_name(exported)["execute_tool slow"]
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "RuntimeError"
    assert SECRET not in span.to_json()


async def test_so_is_one_that_ran_without_review(
    opened: Open, exported: InMemorySpanExporter
) -> None:
    async with opened() as tk:
        with pytest.raises(RuntimeError):
            await run_in_turn(tk, "look_up", {"order": SECRET}, more=[broken])

    span = by_name(exported)["execute_tool look_up"]
    assert span.status.status_code is StatusCode.ERROR
    assert SECRET not in span.to_json()


async def test_a_call_without_review_is_in_the_trace(
    opened: Open, exported: InMemorySpanExporter
) -> None:
    async with opened() as tk:
        await run_in_turn(tk, "look_up", {"order": SECRET})

    spans = by_name(exported)
    # Without a graph's own spans, the current one is that of the turn.
    assert parents(spans)["execute_tool look_up"] == "turn"
    assert SECRET not in "".join(one.to_json() for one in spans.values())


async def test_a_thread_that_a_worker_resumes_stays_in_its_trace(
    store: Store, tmp_path: Path, exported: InMemorySpanExporter
) -> None:
    async def think() -> None:
        with trace.get_tracer("program").start_as_current_span("model"):
            pass

    async with open_checkpoints(str(tmp_path / "checkpoints.db")) as saver:
        graph = attached(sample_tools.graph(wait=think), saver)
        stack = resume_stack.Stack(store, Runner(graph, agent="shop"), saver)
        async with stack.working():
            await stack.ask(resume_stack.EMAIL)
            (item,) = await stack.asked()
            await stack.decide(item)
            await stack.words()

    submit = by_name(exported)["keyturn.submit"]
    models = [one for one in exported.get_finished_spans() if one.name == "model"]
    first, second = (one.parent and one.parent.span_id for one in models)
    assert first is None
    assert second == (submit.context and submit.context.span_id)


async def test_without_a_tracer_nothing_is_kept(opened: Open) -> None:
    async with opened() as tk:
        run = begin(tk, sample_tools.graph, calling_tools(("email", {"to": "x"})))
        item = await asked(tk)
        approval = await tk.store.approvals.load(approval_of(item.id)[0])
        await decide(tk, item)
        await run

    assert approval
    assert approval.approval.trace == ""


@pytest.mark.parametrize(
    "header", ["", "x", f"{TRACE}0", TRACE.replace("b", "0"), TRACE.upper()]
)
def test_an_invalid_context_changes_nothing(header: str) -> None:
    with tracing.inside(TRACE), tracing.inside(header):
        assert tracing.current() == TRACE


def test_without_the_package_everything_runs() -> None:
    script = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from keyturn.gateway import tracing\n"
        "told = {'gen_ai.tool.name': 'x'}\n"
        f"with tracing.inside({TRACE!r}), tracing.tool_span(told) as span:\n"
        "    tracing.failed(span, ValueError())\n"
        f"    tracing.record('x', {TRACE!r}, {{}}, 1)\n"
        "    assert tracing.current() == ''\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)

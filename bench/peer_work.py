"""Run the work of the benchmark on other products, beside ours in the same run.

Each runs in a process and an environment of its own (`make bench-peers` installs it),
with its own store on this machine. What is measured of each is the way from a decision
that its own interface takes to the first line of the tool:

- Twokey: as in `decision_to_tool`: record, job, lease and claim in a durable Valkey.
- LangChain: its own middleware, resumed where the decision is made; no record.
- Agno: `requires_confirmation`, resumed by `acontinue_run` where the decision is made,
  from its session in SQLite; no record, and the decision is bound to nothing.
- awaithumans: `await_human`, decided over the HTTP interface of its server.

AgentGate (agentkitai) is a server in TypeScript that is in no package registry.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from bench import decision_to_tool
from bench.progress import progress
from bench.stats import Figure, Measured, NotMeasured, ratio

TITLE = "Other products"
PYTHON = Path(__file__).parents[1] / ".venv" / "peers" / "bin" / "python"

_WORK = Path(__file__).parent / "peers"
_WITHIN_S = 300.0


async def measure(*, is_quick: bool = False) -> Figure:
    """Run all of them in turns and compare them."""
    if not PYTHON.exists():
        raise NotMeasured(
            "The other products are not installed; run 'make bench-peers'."
        )
    rounds, approvals = (1, 2) if is_quick else (4, 10)
    taken: dict[str, list[tuple[float, ...]]] = {}
    for turn in range(rounds):
        progress(f"other products: round {turn + 1} of {rounds}")
        for name, samples in (await _round(approvals)).items():
            taken.setdefault(name, []).append(samples)
    twokey, *others = (
        Measured(name, "ms", tuple(rows)) for name, rows in taken.items()
    )
    return Figure(
        TITLE,
        f"From a decision to the first line of the tool, {rounds} rounds of "
        f"{approvals} approvals.\nAgentGate is in no package registry: not measured.",
        (twokey, *others),
        tuple(
            ratio(f"decision to tool: {one.name} / Twokey, p50", one, twokey)
            for one in others
        ),
    )


async def _round(approvals: int) -> dict[str, tuple[float, ...]]:
    ours = await decision_to_tool.measured(decision_to_tool.Plan(1, approvals))
    own = {one.name: one.rounds[0] for one in ours.measured}
    return {
        "Twokey": own["Twokey"],
        "LangChain": own["bare resume"],
        "Agno": await _of_peer("agno_work.py", approvals),
        "awaithumans": await _of_peer("awaithumans_work.py", approvals),
    }


async def _of_peer(script: str, approvals: int) -> tuple[float, ...]:
    process = await asyncio.create_subprocess_exec(
        PYTHON,
        _WORK / script,
        str(approvals),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_WITHIN_S):
            output, errors = await process.communicate()
    except TimeoutError:
        raise NotMeasured(f"{script} took more than {_WITHIN_S:.0f} s.") from None
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    if process.returncode:
        last = errors.decode().strip().splitlines()[-1:]
        raise NotMeasured(f"{script} failed: {''.join(last)}")
    return tuple(json.loads(output)["resume_ms"])

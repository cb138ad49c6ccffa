"""One process of a durable OpenAI agent: ``begin FOLDER`` or ``go-on FOLDER``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from agents import Agent, Runner, RunState, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

from keyturn.connect.openai_agents import decided, gate_tools
from tests.connect.killed.place import ARGS, Place


async def main(step: str, place: Place) -> None:
    """Begin a run and save it, or continue the saved one."""
    set_tracing_disabled(disabled=True)
    is_first = step == "begin"
    first = function_call("pay", ARGS, call_id="c0")
    model = ScriptedModel([[first if is_first else assistant_message("done")]])
    tools: list[Any] = [function_tool(place.pay)]
    plain = Agent(name="payer", model=model, tools=tools)
    agent = gate_tools(plain, "adapter", durable=True)
    if is_first:
        begun = await Runner.run(agent, "pay")
        place.saved.write_text(begun.to_state().to_string(), encoding="utf-8")
        return
    saved = place.saved.read_text(encoding="utf-8")
    state: Any = await RunState.from_string(agent, saved)
    result = await Runner.run(agent, await decided(state))
    sys.stdout.write("\n".join(str(getattr(i, "output", "")) for i in result.new_items))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Place(Path(sys.argv[2]))))

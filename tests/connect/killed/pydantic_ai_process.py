"""One process of a durable Pydantic AI agent: ``begin FOLDER`` or ``go-on FOLDER``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter
from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from keyturn.connect.pydantic_ai import KeyturnApproval
from tests.connect.killed.place import ARGS, Place

REQUESTS = TypeAdapter(DeferredToolRequests)


def model(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
    """Pay in the first response, and repeat the tool's text in the second."""
    parts = [part for message in messages[1:] for part in message.parts]
    texts = [str(part.content) for part in parts if part.part_kind == "tool-return"]
    answer = TextPart("\n".join(texts)) if texts else ToolCallPart("pay", ARGS)
    return ModelResponse(parts=[answer])


async def main(step: str, place: Place) -> None:
    """Begin a run and save it, or continue the saved one."""
    approval = KeyturnApproval("adapter", durable=True)
    agent: Agent[None, Any] = Agent(
        FunctionModel(model),
        output_type=[str, DeferredToolRequests],
        tools=[place.pay],
        capabilities=[approval],
    )
    if step == "begin":
        begun = await agent.run("pay")
        place.saved.write_bytes(begun.all_messages_json())
        place.requests.write_bytes(
            REQUESTS.dump_json(cast("DeferredToolRequests", begun.output))
        )
        return
    history = ModelMessagesTypeAdapter.validate_json(place.saved.read_bytes())
    output: Any = REQUESTS.validate_json(place.requests.read_bytes())
    while isinstance(output, DeferredToolRequests):
        results = await approval.results(output)
        result = await agent.run(message_history=history, deferred_tool_results=results)
        output, history = result.output, result.all_messages()
    sys.stdout.write(str(output))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Place(Path(sys.argv[2]))))

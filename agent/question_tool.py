"""The tool with which an agent asks people questions; the answers are its result.

    agent = create_agent(
        model, tools=[refund, ask_user], middleware=[ApprovalMiddleware("support")]
    )

The middleware sends the questions to people like a call that needs approval. It never
runs the tool: the answers are the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from langchain_core.tools import BaseTool
from langchain_core.tools.base import ArgsSchema

from keyturn.gateway.errors import NotAllowed
from keyturn.gateway.gates.gate import GuardedTool
from keyturn.gateway.protocol.questions import ASK_USER, QuestionSet

GUIDANCE = (
    f"With {ASK_USER} you can ask people. Ask rarely: only for what you cannot find "
    "out or decide yourself. Ask all you need to know in one call, and give choices "
    "where you can. Do not ask for permission with it: calls that need approval are "
    "sent to people automatically."
)
"""The system prompt's text about the tool."""


class AskUser(GuardedTool, BaseTool):
    """The tool `ask_user`; it works only with `ApprovalMiddleware`."""

    name: str = ASK_USER
    description: str = (
        "Ask the people you work for one or more questions and wait for their answers. "
        "The result lists each question with its answer."
    )
    args_schema: ArgsSchema | None = QuestionSet

    def _run(self, *args: object, **kwargs: object) -> NoReturn:
        del args, kwargs
        raise NotAllowed(
            f"The questions were not sent: {ASK_USER} works only in an agent with "
            "`ApprovalMiddleware`, listed last."
        )


ask_user: BaseTool = AskUser()
"""List it among an agent's tools."""


def is_question(name: str, tool: BaseTool | None) -> bool:
    """Return True if a call of this tool asks people."""
    # A process that resumes a thread may not have seen its tools yet. Treating the name
    # as a question is safe: nothing runs, whichever tool it is.
    return isinstance(tool, AskUser) or (tool is None and name == ASK_USER)


def can_ask(tools: Sequence[object]) -> bool:
    """Return True if an agent with these tools can ask people."""
    return any(isinstance(tool, AskUser) for tool in tools)


def without_ask_user(tools: Sequence[Any]) -> list[Any]:
    """Return the tools without `ask_user`, for an agent that people do not talk to."""
    return [tool for tool in tools if not isinstance(tool, AskUser)]

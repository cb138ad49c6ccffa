"""Scripted chat model for tests, demos and benchmarks.

LangChain's fake models do not accept tools, so no agent can use them. This one accepts
any tools, and a function returns its replies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolCall
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from pydantic import PrivateAttr
from typing_extensions import override

Reply = Callable[[list[BaseMessage]], AIMessage]

_MAX_PROMPTS = 100
"""How many prompts are kept: a demo may run for days."""


class ScriptedModel(BaseChatModel):
    """A chat model whose replies come from a function of its messages.

    Attributes:
        reply: returns the agent's next message, given all messages.
    """

    reply: Reply
    _seen: deque[list[BaseMessage]] = PrivateAttr(
        default_factory=lambda: deque(maxlen=_MAX_PROMPTS)
    )

    @property
    def seen(self) -> deque[list[BaseMessage]]:
        """Return the prompts of the last calls, newest last."""
        return self._seen

    @property
    @override
    def _llm_type(self) -> str:
        return "keyturn-scripted"

    @override
    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[Any, AIMessage]:
        """Accept any tools: the script contains their names."""
        del tools, tool_choice, kwargs
        return self

    @override
    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        del stop, run_manager, kwargs
        self._seen.append(list(messages))
        return ChatResult(generations=[ChatGeneration(message=self.reply(messages))])


def scripted(replies: Iterable[AIMessage]) -> ScriptedModel:
    """Return a model that gives these replies in order, and after them "done"."""
    coming = iter(list(replies))

    def reply(messages: list[BaseMessage]) -> AIMessage:
        del messages
        following = next(coming, None)
        # A copy: the graph writes an id into the message.
        return following.model_copy() if following else AIMessage("done")

    return ScriptedModel(reply=reply)


def calling(*calls: tuple[str, dict[str, Any], str], text: str = "") -> AIMessage:
    """Return an agent's message with calls: tool, arguments and call id."""
    asked = [ToolCall(name=name, args=args, id=each) for name, args, each in calls]
    return AIMessage(text, tool_calls=asked)

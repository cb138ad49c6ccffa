"""One cell of the matrix while it is played: its plan and its events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import BaseTool, tool

from keyturn.agent import guarded
from keyturn.agent.scripted_model import ScriptedModel, calling

GO = "go"
"""How every message of a person begins; each begins a turn of the plan."""

Call = tuple[str, dict[str, Any], str]
Step = str | list[Call]


class Planned(ScriptedModel):
    """The model of the agent with this label, which follows a plan.

    It finds its place in the plan by its earlier messages, so that a new model on the
    same thread continues where the last one stopped.
    """

    label: str


def planned(label: str, *turns: Sequence[Step]) -> Planned:
    """Return a model with a plan for each turn; the last one counts for later turns."""

    def reply(messages: Sequence[BaseMessage]) -> AIMessage:
        starts = [n for n, message in enumerate(messages) if _is_start(message)]
        turn = turns[min(len(starts), len(turns)) - 1]
        said = [m for m in messages[starts[-1] :] if isinstance(m, AIMessage)]
        for step in turn:
            if not any(_is_step(message, step) for message in said):
                return AIMessage(step) if isinstance(step, str) else calling(*step)
        return AIMessage(f"{label} has nothing more to do")

    return Planned(label=label, reply=reply)


def _is_start(message: BaseMessage) -> bool:
    return isinstance(message, HumanMessage) and str(message.text).startswith(GO)


def _is_step(message: AIMessage, step: Step) -> bool:
    if isinstance(step, str):
        return message.text == step
    return {call["id"] for call in message.tool_calls} == {call[2] for call in step}


class Choice(StrEnum):
    """How the wait for each payment ends."""

    APPROVE = "approve"
    EDIT = "edit"
    REJECT = "reject"
    RESPOND = "respond"
    EXPIRE = "expire"
    SUPERSEDE = "supersede"


class Killed(BaseException):
    """Represents the end of a process."""


class Failure(StrEnum):
    """What goes wrong around it."""

    NONE = "none"
    RAISES = "raises"
    KILLED = "killed"
    RESTART = "restart"


@dataclass(frozen=True, order=True)
class Cell:
    """One combination."""

    topology: str
    choice: Choice
    failure: Failure

    def __str__(self) -> str:
        """Return a name that is also a thread's."""
        return f"{self.topology}-{self.choice}-{self.failure}"


@dataclass
class Scene:
    """The parts to build one cell, again after a restart, and its events."""

    cell: Cell
    ledger: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    models: list[Planned] = field(default_factory=list[Planned])
    final: Any = None
    cut_off: set[str] = field(default_factory=set[str])

    @property
    def tool_name(self) -> str:
        """Return the name of the payment's tool; one of them expires soon."""
        return "pay_soon" if self.cell.choice is Choice.EXPIRE else "pay"

    def order(self, call_id: str) -> str:
        """Return an order that no other cell has."""
        return f"{self.cell}/{call_id}"

    def payment(self, call_id: str, amount: float = 8) -> tuple[str, Any, str]:
        """Return a call that pays."""
        args = {"order": self.order(call_id), "amount": amount}
        return (self.tool_name, args, call_id)

    def model(self, label: str, *turns: list[Step]) -> Planned:
        """Return a model whose inputs are kept."""
        model = planned(label, *turns, [f"{label} has a second turn"])
        self.models.append(model)
        return model

    def inputs(self, label: str) -> list[list[BaseMessage]]:
        """Return all that models of this label read, also before a restart."""
        return [seen for one in self.models if one.label == label for seen in one.seen]

    def everything_read(self) -> list[tuple[str, list[BaseMessage]]]:
        """Return every input of every model."""
        return [(one.label, seen) for one in self.models for seen in one.seen]

    async def do_pay(self, order: str, amount: float) -> str:
        """Pay, with the result that the cell plans."""
        self.ledger.append((order, amount))
        if self.cell.failure is Failure.RAISES:
            raise ValueError("the bank hung up")
        if self.cell.failure is Failure.KILLED and order not in self.cut_off:
            # What the process of a worker does when it ends between claim and record.
            self.cut_off.add(order)
            raise Killed
        return f"paid {order} {amount:g}"

    def pay_tool(self) -> BaseTool:
        """Return the payment's tool, made for this cell alone."""

        async def pay(order: str, amount: float) -> str:
            """Pay an order."""
            return await self.do_pay(order, amount)

        return guarded(tool(self.tool_name)(pay))

"""Drop-in replacement for LangChain's ``HumanInTheLoopMiddleware``."""

from __future__ import annotations

import warnings
from typing import Any, Literal, get_args

from keyturn.agent.interrupt_on import DESCRIPTION_PREFIX, InterruptOn
from keyturn.agent.middleware import ApprovalMiddleware
from keyturn.gateway.protocol.port import Gateway

InterruptMode = Literal["batched", "per_call"]
_UNSET = "\0"
"""Stands for no argument; no caller writes this text. LangChain's own None means that
the model gets no notice."""


class HumanInTheLoopMiddleware(ApprovalMiddleware):
    """Accept the arguments of LangChain's ``HumanInTheLoopMiddleware``.

    The gateway's policy is evaluated for every call too; the stricter of both wins.

    Args:
        interrupt_on: tool name to True, False, or an ``InterruptOnConfig``.
        description_prefix: what a reviewer reads about a tool without description.
        edit_notice: has no effect: the model always reads what a person changed.
        interrupt_mode: has no effect: every held call is its own interrupt.
        agent: the agent's name, as policy and cards know it.
        gateway: see `ApprovalMiddleware`.
        api_key: likewise.
        system_note: whether the system prompt lists the tools that need a person.
        options: ``interruptOn`` and ``descriptionPrefix``, JavaScript's spelling.

    Raises:
        ValueError: when a config has no ``allowed_decisions`` or an unknown one, or
            ``interrupt_mode`` is not a mode.
    """

    def __init__(
        self,
        interrupt_on: InterruptOn | None = None,
        *,
        description_prefix: str = DESCRIPTION_PREFIX,
        edit_notice: str | None = _UNSET,
        interrupt_mode: InterruptMode = "batched",
        agent: str = "agent",
        gateway: Gateway | str | None = None,
        api_key: str | None = None,
        system_note: bool = True,
        **options: Any,  # noqa: ANN401 - read by name below
    ) -> None:
        if interrupt_on is None:
            interrupt_on = options.pop("interruptOn", None)
        description_prefix = options.pop("descriptionPrefix", description_prefix)
        if interrupt_on is None or options:
            given = ", ".join(map(repr, options)) or "no `interrupt_on`"
            raise TypeError(
                f"HumanInTheLoopMiddleware got {given}. Give `interrupt_on`, or "
                "`interruptOn` with `descriptionPrefix` as LangChain for JavaScript."
            )
        if interrupt_mode not in (modes := get_args(InterruptMode)):
            allowed = " or ".join(repr(mode) for mode in modes)
            raise ValueError(
                f"`interrupt_mode` must be {allowed}, got {interrupt_mode!r}."
            )
        if edit_notice != _UNSET:
            warnings.warn(
                "`edit_notice` has no effect: the model always reads exactly what a "
                "reviewer changed. Leave it out.",
                UserWarning,
                stacklevel=2,
            )
        self.interrupt_mode = interrupt_mode  # read by nobody here; LangChain's has it
        super().__init__(
            agent,
            gateway=gateway,
            api_key=api_key,
            system_note=system_note,
            interrupt_on=interrupt_on,
            description_prefix=description_prefix,
        )

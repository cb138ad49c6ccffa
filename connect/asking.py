"""Propose the calls of an agent in a wrapped framework, and run them.

Connectors share the arguments of a user (`Asker`), the check that verdicts are about
the proposed calls, and the wait of a program that has paused its run (`has_decision`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import TypeVar

from keyturn.connect.gate import Gate, HttpGate
from keyturn.connect.once import POLL_S, Backoff, CallReport, NotDecided, Work, once
from keyturn.gateway.arguments import check_tool_names, is_a, require
from keyturn.gateway.client.bridge import AWAITING, ask_with_retries
from keyturn.gateway.client.claiming import HeldCall
from keyturn.gateway.client.http_gateway import address_of, agent_name
from keyturn.gateway.errors import FINAL_ERRORS, BadJson, KeyRefused
from keyturn.gateway.protocol import strict_json, texts, wire
from keyturn.gateway.protocol.http_api import (
    AnswersQuestion,
    OpenQuestion,
    RunFacts,
    check_gateway,
)
from keyturn.gateway.protocol.records import Person, RunRef, Tier
from keyturn.gateway.protocol.schema_validation import checkable
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import ProposedCall, Turn, Verdict, VerdictKind

R = TypeVar("R")


def gate_of(gateway: Gate | str | None, api_key: str | None = None) -> Gate:
    """Return a gateway, or the one at a URL; the environment may set URL and API key.

    Raises:
        SettingsError: when the URL or the key is missing or cannot be used.
    """
    if isinstance(gateway, str) or gateway is None:
        return HttpGate(*address_of(gateway, api_key))
    check_gateway(gateway)
    return gateway


class Asker:
    """An agent in another framework, as its connector was given it.

    Args:
        agent: the agent's name in policy and cards.
        gateway: the gateway, or its URL.
        api_key: the key for a gateway at a URL.
        ungated: names of tools that run without the gateway.
        limit_s: seconds that a call waits for people before it is withdrawn.

    Raises:
        SettingsError: when an argument cannot be used.
    """

    def __init__(
        self,
        agent: str,
        gateway: Gate | str | None,
        api_key: str | None,
        *,
        ungated: Collection[str],
        limit_s: float,
    ) -> None:
        check_tool_names("ungated", ungated)
        is_time = is_a(limit_s, (int, float)) and limit_s > 0
        require(is_time, "limit_s", limit_s, "give seconds, or math.inf")
        self.gate = gate_of(gateway, api_key)
        self.agent, self.ungated = agent_name(agent), frozenset(ungated)
        self._limit_s = limit_s

    async def verdict(
        self, turn: Turn, call: ProposedCall, requester: Person | None = None
    ) -> Verdict:
        """Propose a turn, which may be repeated; return the verdict on one call.

        A refusal by the gateway, or a verdict about another call, denies the call.

        Raises:
            StoreUnavailable: when the gateway does not answer; nothing ran.
            KeyRefused: when it refuses the API key of this process.
        """
        gate = self.gate
        try:
            if requester is not None:
                facts = RunFacts(run=turn.ref.run_ref, requester=requester)
                await ask_with_retries(AWAITING, partial(gate.remember, facts))
            found = await ask_with_retries(AWAITING, partial(gate.submit, turn))
        except KeyRefused:
            raise
        except FINAL_ERRORS as error:
            return _denied(call, str(error))
        about = call.tool, call.tool_call_id, wire.args_hash(call.args)
        for one in found:
            if (one.tool, one.tool_call_id, one.args_hash) == about:
                return one
        return _denied(call, texts.NO_VERDICT)

    async def run(self, held: HeldCall, work: Work[R]) -> CallReport[R]:
        """Run a call like `once`; withdraw it if people do not decide in time."""
        try:
            return await once(self.gate, held, work, limit_s=self._limit_s)
        except NotDecided:
            await self.gate.withdraw(held.ref.run_ref, (held.item_id,))
        # Returns the withdrawal, or a decision that came first.
        return await once(self.gate, held, work)


def _denied(call: ProposedCall, reason: str) -> Verdict:
    return Verdict(
        kind=VerdictKind.DENY,
        tool=call.tool,
        tool_call_id=call.tool_call_id,
        tier=Tier.DENY,
        args_hash=wire.args_hash(call.args),
        reason=reason,
    )


async def has_decision(
    gate: Gate, run: RunRef, question: OpenQuestion, *, waits: bool = True
) -> bool:
    """Wait until people have answered a question of a run; return True then.

    Args:
        gate: the gateway.
        run: the run of the call.
        question: the question about the call.
        waits: False returns at once, with False if the question is open.

    Raises:
        KeyRefused: when the gateway refuses the API key of this process.
        NotAllowed: when the gateway refuses the question.
    """
    wait_s = POLL_S if waits else 0.0
    asked = AnswersQuestion(run=run, questions=(question,), wait_s=wait_s)
    backoff = Backoff()
    while True:
        found = await backoff.ask(partial(gate.answers, asked))
        if found or not waits:
            return bool(found)


def schemas_of(schemas: Mapping[str, object]) -> dict[str, JsonObject]:
    """Return the schemas of tools in the form for edits, without unusable ones."""
    found = dict[str, JsonObject]()
    for tool, schema in schemas.items():
        with suppress(BadJson):
            found[tool] = checkable(strict_json.accept_object(schema))
    return found

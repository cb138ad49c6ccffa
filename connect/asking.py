"""Propose the calls of an agent in a wrapped framework, and run them.

Connectors share the arguments of a user (`Asker`), the check that verdicts are about
the proposed calls, and the wait of a program that has paused its run (`decided`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from keyturn.connect.gate import Gate, HttpGate
from keyturn.connect.once import (
    POLL_S,
    Backoff,
    CallReport,
    NotDecided,
    Work,
    once,
)
from keyturn.gateway.arguments import check_tool_names, is_a, require
from keyturn.gateway.client.bridge import AWAITING, ask_with_retries
from keyturn.gateway.client.claiming import HeldCall
from keyturn.gateway.client.http_gateway import address_of, agent_name
from keyturn.gateway.errors import FINAL_ERRORS, BadJson, KeyRefused
from keyturn.gateway.protocol import strict_json, texts, wire
from keyturn.gateway.protocol.http_api import AnswersQuestion, OpenQuestion, RunFacts
from keyturn.gateway.protocol.port import check_gateway
from keyturn.gateway.protocol.records import Person, RunRef, Tier
from keyturn.gateway.protocol.schema_validation import checkable
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import (
    APPROVAL_INTERRUPT,
    ProposedCall,
    Turn,
    Verdict,
    VerdictKind,
)

R = TypeVar("R")


def gate_at(url: str | None = None, api_key: str | None = None) -> HttpGate:
    """Return the gateway at a URL; the environment may set URL and API key.

    Raises:
        SettingsError: when the URL or the key is missing or cannot be used.
    """
    return HttpGate(*address_of(url, api_key))


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """An agent in another framework, as its connector was given it.

    Attributes:
        agent: the agent's name in policy and cards.
        gate: the gateway.
        ungated: names of tools that run without the gateway.
        limit_s: seconds that a call waits for people before it is withdrawn.
    """

    agent: str
    gate: Gate
    ungated: frozenset[str] = frozenset()
    limit_s: float = math.inf

    @classmethod
    def of(
        cls,
        agent: str,
        gateway: Gate | str | None,
        api_key: str | None,
        *,
        ungated: Collection[str],
        limit_s: float,
    ) -> Asker:
        """Check the arguments of a connector.

        Raises:
            SettingsError: when one of them cannot be used.
        """
        check_tool_names("ungated", ungated)
        is_time = is_a(limit_s, (int, float)) and limit_s > 0
        require(is_time, "limit_s", limit_s, "give seconds, or math.inf")
        if isinstance(gateway, str) or gateway is None:
            gate: Gate = gate_at(gateway, api_key)
        else:
            check_gateway(gateway)
            gate = gateway
        return cls(
            agent=agent_name(agent),
            gate=gate,
            ungated=frozenset(ungated),
            limit_s=limit_s,
        )

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
            return await once(self.gate, held, work, limit_s=self.limit_s)
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


async def decided(
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
    found = await backoff.ask(partial(gate.answers, asked))
    while waits and not found:
        found = await backoff.ask(partial(gate.answers, asked))
    return bool(found)


async def decided_on(
    gate: Gate, run: RunRef, verdict: Verdict, *, waits: bool = True
) -> bool:
    """Wait like `decided` if the verdict needs people; otherwise return True."""
    about = OpenQuestion(
        kind=APPROVAL_INTERRUPT,
        item_id=verdict.item_id,
        action_hash=verdict.action_hash,
    )
    is_held = verdict.kind is VerdictKind.HOLD
    return not is_held or await decided(gate, run, about, waits=waits)


def schema_of(schema: object) -> JsonObject | None:
    """Return a tool's schema in the form for edits; None if it cannot be used."""
    try:
        return checkable(strict_json.accept_object(schema))
    except BadJson:
        return None


def schemas_of(schemas: Mapping[str, object]) -> dict[str, JsonObject]:
    """Return the schemas of tools that can be used, by the tools' names."""
    found = {tool: schema_of(schema) for tool, schema in schemas.items()}
    return {tool: schema for tool, schema in found.items() if schema is not None}

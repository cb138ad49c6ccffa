"""Policy decision about one call: tier, required reviewers, time limits, preview.

A preview names the arguments that are an e-mail or a SQL statement, so that cards show
them so. It changes nothing that is hashed or run.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from pydantic import field_validator, model_validator

from keyturn.gateway.approvals.precedents import Past
from keyturn.gateway.approvals.requirement import Requirement, Role
from keyturn.gateway.protocol.records import Effect, Record, Tier, Verb
from keyturn.gateway.protocol.strict_json import JsonObject


class PreviewKind(StrEnum):
    """What the arguments are together."""

    EMAIL = "email"
    SQL = "sql"


_LABELS: Mapping[PreviewKind, Mapping[str, str]] = {
    PreviewKind.EMAIL: {
        "to": "To",
        "cc": "Cc",
        "bcc": "Bcc",
        "subject": "Subject",
        "body": "Body",
    },
    PreviewKind.SQL: {"statement": "SQL"},
}
"""The parts of each kind in the order of a card; the last is the text itself."""

_START = "args."


class Preview(Record):
    """Show some arguments as an e-mail or a SQL statement.

    The kind alone is enough if the arguments have the names of the keys below, as in
    ``preview: email``. Other arguments stay on the card, and ``redact`` still hides
    values. A SQL statement is shown with its kind and a warning for an ``UPDATE`` or
    ``DELETE`` without a condition. No warning is no proof of a condition.
    """

    kind: PreviewKind
    """``email`` has the first five keys below, ``sql`` has ``statement``."""
    to: str = ""
    """Argument with the recipients."""
    cc: str = ""
    """Argument with the recipients of copies."""
    bcc: str = ""
    """Argument with the recipients of hidden copies."""
    subject: str = ""
    """Argument with the subject."""
    body: str = ""
    """Argument with the text."""
    statement: str = ""
    """Argument with the statement."""

    @model_validator(mode="before")
    @classmethod
    def _of_a_kind(cls, value: object) -> object:
        return {"kind": value} if isinstance(value, str) else value

    @field_validator("to", "cc", "bcc", "subject", "body", "statement")
    @classmethod
    def _whole_argument(cls, path: str) -> str:
        name = path.removeprefix(_START)
        # What else such an argument holds would have no place on the card.
        if path and (name == path or not name or "." in name):
            raise ValueError(
                f"{path!r} is no whole argument; write args.name, without what is "
                "inside it."
            )
        return path

    @model_validator(mode="after")
    def _fits(self) -> Preview:
        parts = _LABELS[self.kind]
        for key in self.written:
            if key not in parts:
                raise ValueError(
                    f"{key!r} is no part of {self.kind.value!r}; write "
                    f"{', '.join(parts)}."
                )
        if len(self.labels) < len(parts):
            raise ValueError("two parts are the same argument; remove one.")
        return self

    @property
    def written(self) -> dict[str, str]:
        """Return the paths that somebody wrote, by their parts."""
        values: dict[str, Any] = self.model_dump(exclude={"kind"})
        return {key: path for key, path in values.items() if path}

    @property
    def labels(self) -> dict[str, str]:
        """Return the label of each argument of the preview, in the order of a card."""
        return {self._name(key): label for key, label in _LABELS[self.kind].items()}

    @property
    def text(self) -> str:
        """Return the name of the argument that is the body or the statement."""
        return [*self.labels][-1]

    @property
    def paths(self) -> dict[str, str]:
        """Return what a tool must have: the text, and all that somebody wrote."""
        text = [*_LABELS[self.kind]][-1]
        return {**self.written, text: f"{_START}{self.text}"}

    def _name(self, key: str) -> str:
        return self.written.get(key, key).removeprefix(_START)


class PolicyDecisionFields(Record):
    """What a policy says of one call, as far as its item keeps it from then on.

    Attributes:
        tier: how much the call needs.
        reasons: why, as sentences of ours without any text of the agent's.
        requirement: who must agree; meaningful when people are needed, and then its
            roles may hold nobody, so that nobody can approve.
        allow: what a reviewer may say.
        authorization_ms: how long an authorization may wait to run; 0 when nobody says.
        description: the policy's template, filled with the arguments that would run,
            which are untrusted; "" for none.
        agent_description: what the agent says instead, about the call as it asked for
            it: untrusted; "" for nothing.
        link: the filled link to a host that the policy names; "" for none.
        preview: the arguments that cards show as an e-mail or as a SQL statement.
        args_schema: what an edit is checked against; None: only strict JSON.
        has_policy_schema: the policy file has ``args_schema``. False: the agent's
            process declared it, so its titles and descriptions are the agent's words.
        redact: dotted paths that cards hide.
        totals: dotted paths that the card of many calls adds up, each with a format
            behind "|".
        formats: dotted paths that the description or a total shows in a format, which
            stands behind "|".
        requires_reason: the decisions that need a reason.
        asks_on_failure: a call that failed is in doubt until people reconcile it.
        effect_class: what the tool does to the world; None: nobody said, and it counts
            as irreversible.
        idempotent: an execution in doubt may be repeated under the same key.
        is_question: its arguments are questions to people; it never runs.
        is_standing: its arguments are the bounds of a standing approval; it never runs.
        can_cover: the policy lets people give a standing approval for such calls.
    """

    tier: Tier
    reasons: tuple[str, ...] = ()
    requirement: Requirement
    allow: tuple[Verb, ...]
    authorization_ms: int = 0
    description: str = ""
    agent_description: str = ""
    link: str = ""
    preview: Preview | None = None
    args_schema: JsonObject | None = None
    has_policy_schema: bool = False
    redact: tuple[str, ...] = ()
    totals: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    requires_reason: tuple[Verb, ...] = ()
    asks_on_failure: bool = False
    effect_class: Effect | None = None
    idempotent: bool = False
    is_question: bool = False
    is_standing: bool = False
    can_cover: bool = False

    @property
    def summary(self) -> str:
        """Return the description, else the agent's own, marked as its words."""
        if self.description or not self.agent_description:
            return self.description
        return f"The agent says: {self.agent_description}"

    @property
    def kept(self) -> dict[str, Any]:
        """Return the values that an item keeps, by their names."""
        return {name: getattr(self, name) for name in PolicyDecisionFields.model_fields}


class PolicyDecision(PolicyDecisionFields):
    """What a policy says of one call with the arguments that would run.

    Each later decision and claim is compared with what the policy in force then says,
    and the stricter counts.

    Attributes:
        policy_digest: of the policy that decided.
        ttl_ms: how long people may take; 0 when nobody says.
        channel: where the card goes, ``#name`` or an id.
        remind_at_ms: when to remind, counted from the opening; 0 for never.
        escalate_at_ms: when to call ``escalate_to``, counted alike; 0 for never.
        escalate_to: a role, a channel or a Slack user id, as the policy names it.
        escalate_roles: who holds that role; they may vote from the start.
        ask_again_ms: an approval that comes so soon after the call was shown is asked
            for once more; 0 for never.
        effect: the same for calls with the same effect; "" when nobody said.
        past: what is known of earlier calls.
        stopped: the freeze that keeps the call from running, as a sentence for a
            person; empty when the call could start.
    """

    policy_digest: str
    allow: tuple[Verb, ...] = tuple(Verb)
    ttl_ms: int = 0
    channel: str = ""
    remind_at_ms: int = 0
    escalate_at_ms: int = 0
    escalate_to: str = ""
    escalate_roles: tuple[Role, ...] = ()
    ask_again_ms: int = 0
    effect: str = ""
    past: Past = Past()
    stopped: str = ""

"""Policy decision about one call: tier, required reviewers, time limits, preview.

A preview names the arguments that are an e-mail, a SQL statement or a change of a text,
so that cards show them so. It changes nothing that is hashed or run.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from pydantic import field_validator, model_validator

from keyturn.gateway.approvals.precedents import Past
from keyturn.gateway.approvals.requirement import Requirement, Role
from keyturn.gateway.protocol.records import Effect, Evidence, Record, Tier, Verb
from keyturn.gateway.protocol.strict_json import JsonObject


class PreviewKind(StrEnum):
    """Kind of a preview."""

    EMAIL = "email"
    SQL = "sql"
    CHANGE = "change"


_LABELS: Mapping[PreviewKind, Mapping[str, str]] = {
    PreviewKind.EMAIL: {
        "to": "To",
        "cc": "Cc",
        "bcc": "Bcc",
        "subject": "Subject",
        "body": "Body",
    },
    PreviewKind.SQL: {"statement": "SQL"},
    PreviewKind.CHANGE: {"before": "Before", "after": "Change"},
}
"""Labels of each kind's arguments, in the order of a card; the last is the text."""

_START = "args."


class Preview(Record):
    """Show some arguments as an e-mail, a SQL statement or a change of a text.

    The kind alone is enough (``preview: email``) if the arguments have the names of the
    keys below. Other arguments stay on the card, and ``redact`` still hides values. A
    warning marks an ``UPDATE`` or ``DELETE`` without a condition, but no warning is no
    proof of a condition. A change is shown line by line: removed lines behind ``-``,
    added ones behind ``+``, others behind ``|``.
    """

    kind: PreviewKind
    """``email`` has the first five keys below, ``sql`` has ``statement``, and
    ``change`` has the last two."""
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
    before: str = ""
    """Argument with the text that is replaced. Without it, all lines are added."""
    after: str = ""
    """Argument with the new text."""

    @model_validator(mode="before")
    @classmethod
    def _of_a_kind(cls, value: object) -> object:
        return {"kind": value} if isinstance(value, str) else value

    @field_validator(
        "to", "cc", "bcc", "subject", "body", "statement", "before", "after"
    )
    @classmethod
    def _whole_argument(cls, path: str) -> str:
        name = path.removeprefix(_START)
        # A card has no place for the other parts of such an argument.
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
        """Return the configured paths, by their parts."""
        values: dict[str, Any] = self.model_dump(exclude={"kind"})
        return {key: path for key, path in values.items() if path}

    @property
    def labels(self) -> dict[str, str]:
        """Return the label of each argument of the preview, in the order of a card."""
        return {self._name(key): label for key, label in _LABELS[self.kind].items()}

    @property
    def text(self) -> str:
        """Return the name of the argument that is the body, statement or new text."""
        return [*self.labels][-1]

    @property
    def paths(self) -> dict[str, str]:
        """Return the arguments a tool must have: the text, and all configured paths."""
        text = [*_LABELS[self.kind]][-1]
        return {**self.written, text: f"{_START}{self.text}"}

    def _name(self, key: str) -> str:
        return self.written.get(key, key).removeprefix(_START)


class PolicyDecisionFields(Record):
    """The part of a policy decision that an item keeps.

    Attributes:
        tier: of the call.
        reasons: for the tier, as sentences of Keyturn without text of the agent.
        requirement: of the votes; used only if people are needed. Its roles may be
            empty, and then the call cannot be approved.
        allow: verbs that a reviewer may use.
        authorization_ms: time in which an authorization has to be used; 0 if not set.
        description: the policy's template, filled with the arguments that would run,
            which are untrusted; "" for none.
        agent_description: the agent's description of the requested call: untrusted; ""
            for none.
        evidence: the agent's sources, untrusted, with addresses on hosts that the
            policy names.
        act: the policy's word for a call; "" for none.
        link: the filled link to a host that the policy names; "" for none.
        preview: the arguments that cards show in another form; see `Preview`.
        args_schema: the schema for edits; None: only strict JSON.
        has_policy_schema: the policy file has ``args_schema``. False: the agent's
            process declared it, so its titles and descriptions are the agent's words.
        redact: dotted paths that cards hide.
        totals: dotted paths that the card of many calls adds up, each with a format
            after "|".
        formats: dotted paths that the description or a total formats, each with its
            format after "|".
        requires_reason: the decisions that need a reason.
        asks_on_failure: a failed call is in doubt until people reconcile it.
        effect_class: kind of the tool's effect; None: not set, and treated as
            irreversible.
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
    evidence: tuple[Evidence, ...] = ()
    act: str = ""
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
        """Return the policy's description, or else the agent's, marked as its words."""
        if self.description or not self.agent_description:
            return self.description
        return f"The agent says: {self.agent_description}"

    @property
    def kept(self) -> dict[str, Any]:
        """Return the values that an item keeps, by their names."""
        return {name: getattr(self, name) for name in PolicyDecisionFields.model_fields}


class PolicyDecision(PolicyDecisionFields):
    """A policy's decision on one call with the arguments that would run.

    Each later decision and claim compares it with the then current policy's decision,
    and the stricter one counts.

    Attributes:
        policy_digest: of the policy that decided.
        ttl_ms: time for people to decide; 0 if not set.
        channel: of the card, ``#name`` or an id.
        remind_at_ms: time of the reminder, counted from the opening; 0 for never.
        escalate_at_ms: time of the escalation, counted from the opening; 0 for never.
        escalate_to: a role, a channel or a Slack user id, as the policy names it.
        escalate_roles: the roles of the escalation; they may vote from the start.
        ask_again_ms: an approval this soon after the call was shown has to be repeated;
            0 for never.
        effect: equal for calls with the same effect; "" if not set.
        past: facts about earlier calls.
        stopped: the freeze that stops the call, as a sentence for a person; empty if
            the call could start.
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

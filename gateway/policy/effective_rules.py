"""Resolve the effective rules for one tool of one agent, most specific first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from itertools import combinations

from keyturn.gateway.approvals.quorum import stricter
from keyturn.gateway.approvals.requirement import Notify, Requirement, Role
from keyturn.gateway.approvals.timing import AUTHORIZATION_LIFETIME
from keyturn.gateway.policy.fields import is_channel
from keyturn.gateway.policy.rules import (
    AgentRule,
    PartRule,
    Policy,
    RaiseRule,
    ToolRule,
    TriageRule,
    WaitingRule,
)
from keyturn.gateway.protocol.records import Effect, Tier, Verb, gravest, join

# Resolve the requirements that a policy names, and combine them.
#
# ``all`` asks for different people for each part. By Hall's theorem such people exist
# exactly if every choice of parts has enough people: as many as these parts need
# together must have one of their roles. So each choice becomes a separate condition,
# and checking it only counts votes.


def required(policy: Policy, needs: tuple[str, ...], people: int = 1) -> Requirement:
    """Return the requirement that ``needs`` names, or of so many of these people.

    An unknown name can never be met; only a policy that was built in code has one.
    """
    rule = policy.requirement_in(needs)
    if rule is None:
        return Requirement(approvals=people, of=policy.roles_named(needs))
    if rule.of is not None:
        of, approvals = policy.roles_named(rule.of), rule.approvals or 1
        requirement = Requirement(approvals=approvals, of=of)
    else:
        requirement = joined(_choices(policy, rule.all_ or ()))
    return requirement.with_(editor_may_vote=rule.editor_may_vote)


def joined(requirements: Iterable[Requirement]) -> Requirement:
    """Return a requirement that is met exactly when all of these are.

    Raises:
        TypeError: when there is none.
    """
    return reduce(stricter, requirements)


def _choices(policy: Policy, parts: tuple[PartRule, ...]) -> Iterator[Requirement]:
    for size in range(1, len(parts) + 1):
        for chosen in combinations(parts, size):
            names = dict.fromkeys(name for part in chosen for name in part.of)
            yield Requirement(
                approvals=sum(part.approvals for part in chosen),
                of=policy.roles_named(tuple(names)),
            )


_NO_RULE = ToolRule()
_NO_AGENT_RULE = AgentRule()


class EffectiveRules:
    """The rules for one tool of one agent.

    Args:
        policy: the loaded policy.
        agent: name of the agent.
        tool: name of the tool.
        requested_tier: the tier that this run of the agent asks for.

    Attributes:
        first: the tool's rule, overridden by the values set for this agent.
    """

    def __init__(
        self, policy: Policy, agent: str, tool: str, requested_tier: Tier | None = None
    ) -> None:
        self._policy = policy
        self._agent = policy.agents.get(agent, _NO_AGENT_RULE)
        self._narrow = self._agent.tools.get(tool, _NO_RULE)
        self._listed = policy.tools.get(tool, _NO_RULE)
        self._is_listed = tool in policy.tools or any(
            tool in rule.tools for rule in policy.agents.values()
        )
        self._requested_tier = requested_tier
        set_here = {
            name: getattr(self._narrow, name) for name in self._narrow.model_fields_set
        }
        over = {name: one for name, one in set_here.items() if one is not None}
        # Copy only if it differs: each call reads it several times.
        self.first = self._listed.with_(**over) if over else self._listed

    def tier(self) -> tuple[Tier, tuple[str, ...]]:
        """Return the tier before any rule of ``raise``, and the reasons for it."""
        tier, reasons = self._asked_for()
        least = self._policy.effects.get(self.effect, tier)
        if join(tier, least) is tier:
            return tier, reasons
        said = f"without an effect counts as {self.effect} and"
        if self.effect_class is not None:
            said = f"whose effect is {self.effect}"
        text = f"A tool {said} needs {least} at least."
        return least, (*reasons, text)

    @property
    def effect_class(self) -> Effect | None:
        """Return the effect that the policy sets for the tool; None if unset."""
        # An agent's entry can only make it graver.
        said = [one.effect for one in (self._listed, self._narrow) if one.effect]
        return gravest(said) if said else None

    @property
    def effect(self) -> Effect:
        """Return the effect that counts: ``irreversible`` if unset."""
        return self.effect_class or Effect.IRREVERSIBLE

    def _asked_for(self) -> tuple[Tier, tuple[str, ...]]:
        """Return the tier that is listed, or that this run of the agent asks for."""
        tier, reasons = self._floor()
        asked = self._requested_tier
        if asked is None:
            return tier, reasons
        if join(tier, asked) is asked:
            return asked, (*reasons, f"This run of the agent asked for {asked}.")
        if self.overridable and tier is not Tier.DENY:
            text = f"This run of the agent asked for {asked}, as the policy lets it."
            return asked, (*reasons, text)
        text = f"This run of the agent asked for {asked}; the policy does not let it."
        return tier, (*reasons, text)

    @property
    def overridable(self) -> bool:
        """Return whether a run of the agent may ask for less than is listed.

        The default applies only to tools without any entry. An entry for another agent
        counts as an entry.
        """
        if self._is_listed:
            return bool(self.first.overridable)
        return self._policy.defaults.overridable

    def raising(self) -> tuple[RaiseRule, ...]:
        """Return the rules of ``raise``: the tool's, then those for this agent."""
        # Both apply: an entry for one agent cannot switch off a rule of the tool.
        return (*self._listed.raise_, *self._narrow.raise_)

    def allow(self) -> tuple[Verb, ...]:
        """Return the decisions a reviewer may make; an agent's entry cannot add any."""
        sources = (self._listed.allow, self._narrow.allow)
        listed = tuple(Verb) if self.first.allow is None else self.first.allow
        kept = tuple(
            verb
            for verb in listed
            if all(allow is None or verb in allow for allow in sources)
        )
        # Without a common decision the card can only be rejected.
        return tuple(dict.fromkeys(kept)) or (Verb.REJECT,)

    def requires_reason(self) -> tuple[Verb, ...]:
        """Return the decisions that need a reason."""
        sources = (self._listed, self._narrow)
        # Joined, not replaced: an agent's entry can only add required reasons.
        needed = {verb for one in sources for verb in one.requires_reason or ()}
        return tuple(verb for verb in Verb if verb in needed)

    def requirement(
        self, tier: Tier, needs: Iterable[tuple[str, ...]] = ()
    ) -> Requirement:
        """Return the requirement of a call.

        Args:
            tier: the tier of the call.
            needs: the ``needs`` of rules of ``raise``, which add to it.
        """
        policy, own = self._policy, self._own_needs()
        base = [required(policy, one) for one in own if policy.requirement_in(one)]
        people = next((one for one in own if policy.requirement_in(one) is None), None)
        if tier is Tier.ESCALATE:
            known = tuple(role.name for one in base for role in one.roles)
            people = policy.tiers.escalate.needs or people or known
        if people is not None:
            base.append(self._by_people(tier, people))
        requirement = joined([*base, *(required(policy, one) for one in needs)])
        return requirement.with_roles(lambda role: self._notified(role, tier))

    def everybody(self) -> tuple[Role, ...]:
        """Return every role that could be asked, at any tier and by any rule."""
        requirements = [
            self.requirement(tier) for tier in (Tier.APPROVE, Tier.ESCALATE)
        ]
        requirements += [
            required(self._policy, rule.needs) for rule in self.raising() if rule.needs
        ]
        return tuple(role for requirement in requirements for role in requirement.roles)

    def waiting(self, tier: Tier) -> WaitingRule:
        """Return the settings of a tier that waits for people."""
        return self._policy.tiers.waiting(tier)

    def escalation(
        self, tier: Tier, requirement: Requirement
    ) -> tuple[str, tuple[Role, ...]]:
        """Return the person, role or channel that is called later, and its roles.

        The target is empty unless at least one of its people is listed among the
        voters. Members of user groups are not known here, so groups are compared by id.
        A channel has no roles.
        """
        name = self.waiting(tier).escalate_to or ""
        if not name or is_channel(name):
            return name, ()
        roles = self._policy.roles_named((name,))
        # A tool with `notify: none` stays quiet until then, like a tier with it.
        if self.first.notify not in {None, Notify.NONE}:
            roles = tuple(role.with_(notify=self.first.notify) for role in roles)
        # By people, not by name: the same people may have two roles.
        voters = {id_ for role in requirement.roles for id_ in _listed(role)}
        may_vote = any(id_ in voters for role in roles for id_ in _listed(role))
        return (name, roles) if may_vote else ("", ())

    def ttl_ms(self, tier: Tier) -> int:
        """Return the time to decide at a tier."""
        defaults = self._policy.defaults.expires_in
        ttl = self.first.expires_in or self.waiting(tier).expires_in or defaults
        return int(ttl.total_seconds() * 1000)

    def authorization_ms(self, tier: Tier) -> int:
        """Return how long an authorization may wait for its execution."""
        set_here = self.first.authorization or self.waiting(tier).authorization
        age = set_here or AUTHORIZATION_LIFETIME
        return int(age.total_seconds() * 1000)

    def ask_again_ms(self, tier: Tier) -> int:
        """Return how soon an approval has to be given again; 0 for never."""
        within = self._policy.tiers.escalate.ask_again_within
        if tier is not Tier.ESCALATE or within is None:
            return 0
        return int(within.total_seconds() * 1000)

    def share_ms(self, tier: Tier, percent: int | None) -> int:
        """Return a share of the time to decide; 0 for None."""
        return self.ttl_ms(tier) * (percent or 0) // 100

    def channel(self, tier: Tier) -> str:
        """Return the channel of a card or, at ``notify``, of a notification."""
        notices = self._policy.tiers.notify.channel if tier is Tier.NOTIFY else None
        named = self.first.channel or self._agent.channel or notices
        return named or self._policy.defaults.channel

    def triage(self, tier: Tier) -> TriageRule | None:
        """Return the triage settings for calls of a tier; None without triage."""
        rule = self.first.triage or self._policy.defaults.triage
        return rule if rule is not None and tier in rule.tiers else None

    def redact(self) -> tuple[str, ...]:
        """Return the paths that cards hide."""
        # Joined: an agent's entry cannot reveal arguments that the tool hides.
        return tuple(dict.fromkeys((*self._listed.redact, *self._narrow.redact)))

    def _notified(self, role: Role, tier: Tier) -> Role:
        """Set how the holders of a role learn of a card of this tool and tier."""
        rule = self._policy.roles.get(role.name)
        # The narrowest place with a value wins: the tool, the role, the tier.
        own = rule.notify if rule is not None else None
        notify = self.first.notify or own or self.waiting(tier).notify
        return role.with_(notify=notify or Notify.MENTION)

    def _floor(self) -> tuple[Tier, tuple[str, ...]]:
        listed, narrow = self._listed.tier, self._narrow.tier
        tier = self._policy.defaults.tier if listed is None else listed
        reason = f"The policy lists this tool as {tier}."
        if listed is None:
            reason = f"The policy sets no tier for this tool; the default is {tier}."
        if narrow is None:
            return tier, (reason,)
        more = f"The policy lists it as {narrow} for this agent."
        # A policy built in code may list a lower tier; a file with one is refused.
        return join(tier, narrow), (reason, more)

    def _own_needs(self) -> list[tuple[str, ...]]:
        """Return ``needs`` of the narrowest place that sets it.

        Both entries of a tool count, the one for this agent first.
        """
        own = [one.needs for one in (self._narrow, self._listed) if one.needs]
        inherited = self._agent.needs or self._policy.defaults.needs
        return own or [inherited]

    def _by_people(self, tier: Tier, needs: tuple[str, ...]) -> Requirement:
        """Return the requirement of a tier: of so many people, or a named one."""
        target = self.waiting(tier).escalate_to
        is_named = self._policy.requirement_in(needs) is not None
        if target is not None and not (is_named or is_channel(target)):
            needs = (*needs, target)
        people = 2 if tier is Tier.ESCALATE else 1
        return required(self._policy, tuple(dict.fromkeys(needs)), people)


def _listed(role: Role) -> tuple[str, ...]:
    return (*role.users, *role.usergroups)

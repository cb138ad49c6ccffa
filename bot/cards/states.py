"""Describe in words what a call needs, its state, its votes and its end."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import LiteralString, NamedTuple

from keyturn.bot.cards.refs import calls_named, join_list, people, when, who
from keyturn.bot.text import (
    Ref,
    Template,
    Untrusted,
    code,
    fit,
    joined,
    program,
    spoken,
    template,
    untrusted,
)
from keyturn.gateway.approvals.lifecycle import UNEXECUTED, ApprovalState
from keyturn.gateway.approvals.quorum import Tally, is_dead_end, tally
from keyturn.gateway.approvals.record import (
    Approval,
    DecisionRecord,
    Item,
    is_collected,
)
from keyturn.gateway.approvals.requirement import Requirement, Vote
from keyturn.gateway.approvals.timing import end_of, ends, is_late, is_over
from keyturn.gateway.protocol.records import (
    Finding,
    ItemState,
    NotTaken,
    Person,
    Tier,
    Verb,
)

MAX_ACT = 140
"""Maximum characters of a call's title in a header; Slack accepts 150 in all."""

_S = ItemState


class _Words(NamedTuple):
    """The words for a state.

    Attributes:
        name: one short word, for counts and the fallback text.
        head: its sign, and the words before the names of the people who caused it.
        tail: the words after these names.
    """

    name: LiteralString
    head: LiteralString
    tail: LiteralString = ""


_WORDS: dict[ItemState, _Words] = {
    _S.PENDING: _Words("waiting", "⏳"),
    _S.AUTHORIZED: _Words("approved", "🔑 *Approved*", ", {at}. Waiting to run."),
    _S.EXECUTING: _Words("running", "🔄 *Approved*", ", running since {at}."),
    _S.EXECUTED: _Words("done", "✅ *Approved*", ", done {at}."),
    _S.FAILED: _Words("failed", "❌ *Approved*", ", but it failed {at}."),
    _S.IN_DOUBT: _Words(
        "in doubt",
        "❓ *We don't know whether this ran*",
        ": the worker stopped in the middle {at}. Please check, then choose.",
    ),
    _S.REJECTED: _Words("rejected", "🚫 *Rejected*", ", {at}. Nothing ran."),
    _S.ANSWERED: _Words("answered", "💬 *Answered*", ", {at}. Nothing ran."),
    _S.EXPIRED: _Words("expired", "⌛ *Expired*", " {at}. Nothing ran."),
    _S.SUPERSEDED: _Words(
        "cancelled", "⏩ *Cancelled*", " {at}: a newer message came. Nothing ran."
    ),
    _S.WITHDRAWN: _Words("withdrawn", "↩ *Withdrawn*", " {at}. Nothing ran."),
    _S.LAPSED: _Words("lapsed", "⌛ *Approved*", ", but it lapsed {at}. Nothing ran."),
    _S.HANDING_OVER: _Words(
        "being handed over",
        "📤 *Approved*",
        ", {at}. Being handed to {name}, which runs it by itself.",
    ),
    _S.HANDED_OVER: _Words(
        "handed over",
        "📤 *Approved*",
        ". Handed {at} to {name}, which runs it by itself.",
    ),
    _S.NOT_TAKEN: _Words(
        "not taken", "⚠️ *Approved*", ", but not taken {at} by {name}: {why}."
    ),
}

STATE_NAMES: dict[ItemState, LiteralString] = {
    state: words.name for state, words in _WORDS.items()
}
"""One short word for each state."""

UNREVIEWED_STATE_NAMES: dict[ItemState, LiteralString] = {
    **STATE_NAMES,
    _S.AUTHORIZED: "not started yet",
}
"""The same for calls that the policy authorized without review."""

SIGNS: dict[ItemState, LiteralString] = {
    state: words.head.partition(" ")[0] for state, words in _WORDS.items()
}
"""The sign of each state; its sentence begins with the same sign."""

ENDED = UNEXECUTED | {_S.EXECUTED, _S.FAILED, _S.HANDED_OVER, _S.NOT_TAKEN}
"""States that need no action; a failure is one of them."""

SEVERAL = "☑️"
"""The sign of calls that ended in different ways."""

FINDINGS: dict[Finding, LiteralString] = {
    Finding.EXECUTED: "it took effect",
    Finding.RERUN: "run it again",
    Finding.SKIP: "leave it",
}
"""Findings about a call in doubt, in words."""

TRIAGE_TITLE = "Triage (a model's opinion, unverified)"
"""Title of the rationale of a model that raised a call's tier."""


_STOPPED: LiteralString = "the worker stopped in the middle"
_OLDER: LiteralString = "its record was restored from an older copy"

_APPROVED = frozenset(
    {
        *{_S.AUTHORIZED, _S.EXECUTING, _S.EXECUTED, _S.FAILED, _S.IN_DOUBT, _S.LAPSED},
        *{_S.HANDING_OVER, _S.HANDED_OVER, _S.NOT_TAKEN},
    }
)
"""States that follow an approval."""

_UNDECIDED = frozenset({_S.PENDING, _S.IN_DOUBT, _S.EXPIRED, _S.SUPERSEDED})
"""States that votes do not cause."""

NOTHING_RAN: LiteralString = "Nothing ran."
_HAD_STARTED: LiteralString = "It had started and does not continue."
_NOT_HANDED: LiteralString = "It was not handed over."
_NOT_KNOWN: LiteralString = "We don't know whether it ran before."


def frozen(items: Sequence[Item]) -> list[Template]:
    """Explain that pending calls cannot be approved, because of a freeze."""
    if not any(item.is_pending and item.is_frozen for item in items):
        return []
    return [template("🧊 *Frozen*: approve after the freeze ends.")]


def what_ran(item: Item) -> LiteralString:
    """Return the true sentence to use instead of `NOTHING_RAN`.

    Args:
        item: a call in one of the states `UNEXECUTED`, or one that expires.
    """
    if item.is_restored:
        return _NOT_KNOWN
    if item.handed_to:
        # A rejection is handed over, too; a broken hand-over shows its reason.
        is_answer = item.state in {_S.REJECTED, _S.ANSWERED}
        return "" if item.has_started or is_answer else _NOT_HANDED
    if item.is_question:
        return ""
    return _HAD_STARTED if item.has_started else NOTHING_RAN


def counted(calls: int) -> str:
    """Return the number of calls, in words."""
    return "1 call" if calls == 1 else f"{calls} calls"


def state_counts(approval: Approval) -> Template:
    """Return the number of items in each state: "2 done, 1 rejected"."""
    counts = Counter(item.state for item in approval.items)
    words = UNREVIEWED_STATE_NAMES if approval.is_auto_approved else STATE_NAMES
    each: list[tuple[LiteralString, int]]
    each = [(words[state], counts[state]) for state in ItemState if counts[state]]
    return joined(", ", [template("{n} " + word, n=count) for word, count in each])


def batch_state(approval: Approval, *, now_ms: int = 0) -> tuple[str, Template]:
    """Return the state of several calls: a sign, and a few words with numbers."""
    states = Counter(item.state for item in approval.items)
    every, waiting, doubts = (
        len(approval.items),
        states[_S.PENDING],
        states[_S.IN_DOUBT],
    )
    # The sweeper closes the record a moment later; until then its state is still open.
    if waiting and is_over(approval, now_ms):
        return SIGNS[_S.EXPIRED], template("The time is over")
    if waiting:
        needed: LiteralString = "Approval needed: {n}{of} calls"
        of = template(" of {all}", all=every) if waiting < every else template("")
        return SIGNS[_S.PENDING], template(needed, n=waiting, of=of)
    if doubts:
        words = template("Please check {n} of {all} calls", n=doubts, all=every)
        return SIGNS[_S.IN_DOUBT], words
    worst = _S.FAILED if states[_S.FAILED] else min(states)
    is_one = len(states) == 1 or worst is _S.FAILED
    return SIGNS[worst] if is_one else SEVERAL, state_counts(approval)


def status_sentence(approval: Approval, item: Item, *, now_ms: int = 0) -> Template:
    """Return the state of one item, with the people who caused it and the time."""
    if item.is_pending:
        return _pending(approval, item, now_ms=now_ms)
    at_ms = item.changed_at_ms or approval.created_at_ms
    return state_sentence(item, item.state, at_ms, has_names=True)


def _words_of(item: Item, state: ItemState) -> tuple[LiteralString, LiteralString]:
    """Return the words of a state before and after the names of people."""
    _, head, tail = _WORDS[state]
    if state is _S.IN_DOUBT and item.has_failed:
        head, tail = "❌ *Failed*", " {at}. Should it run again?"
    elif item.is_restored:
        tail = tail.replace(_STOPPED, _OLDER)
    if state is _S.FAILED and item.finding is Finding.SKIP and item.result is None:
        tail = ", then left in doubt {at}. It may have run, and does not run again."
    return head, tail.replace(NOTHING_RAN, what_ran(item))


def state_sentence(
    item: Item, state: ItemState, at_ms: int, *, has_names: bool
) -> Template:
    """Return the sentence about an item that reached a state at a time.

    Args:
        item: the item, at that time or later.
        state: any state except pending.
        at_ms: the time.
        has_names: whether to name the people who caused the state.
    """
    head, tail = _words_of(item, state)
    # With a decision a person withdrew it, and with `revoked` it ended by itself.
    if state is _S.WITHDRAWN and not item.decision and not item.revoked:
        tail = " by the agent" + tail
    tail, more = _in_words_of_hand_over(item, tail)
    if item.is_standing:
        tail = tail.removesuffix(" Waiting to run.").replace(NOTHING_RAN, "")
    if item.is_auto_approved:
        head = head.replace("*Approved*", "*Without review*")
    if item.is_question:
        head = head.replace("*Rejected*", "*Skipped*")
    at = when(at_ms)
    if not has_names or state in _UNDECIDED or not approvers(item):
        return template((head + tail).rstrip(), at=at, **more)
    if is_own_edit(item):
        head = head.replace("*Approved*", "*Edited and approved*")
    said = (head + " by {who}" + tail).rstrip()
    return template(said, who=by_whom(item), at=at, **more)


NOT_TAKEN: dict[NotTaken, LiteralString] = {
    "": "the reason is not known",
    "answered_elsewhere": "it was answered elsewhere",
    "deleted": "the conversation was deleted",
    "refused": "the agent refused it",
    "failed": "the agent broke off, perhaps after the call had begun",
}
"""Why a decision was not taken, in words."""


def _in_words_of_hand_over(
    item: Item, tail: LiteralString
) -> tuple[LiteralString, dict[str, Ref | Template]]:
    """Return a sentence's end for a call that another program runs, and its names."""
    if item.handed_to:
        tail = tail.replace("Waiting to run.", "Waiting to be handed to {name}.")
        # The call may have been answered elsewhere, and that by a person.
        tail = tail.replace(" by the agent {at}.", " {at}: {name} no longer asks.")
    reported = item.handed.reported
    if reported is not None:
        ran: LiteralString = "it ran" if reported.ok else "it failed"
        tail = tail.replace("runs it by itself", "reports that " + ran)
    if item.handed.problem == "failed":
        tail = ", handed to {name}, which broke off {at}. The call may have begun."
    tail = tail.replace("{why}", NOT_TAKEN[item.handed.problem])
    return tail, {"name": handed_to(item)} if "{name}" in tail else {}


def handed_words(item: Item) -> list[tuple[LiteralString, str]]:
    """Return a program's words about a call that was handed to it, with their title."""
    reported = item.handed.reported
    found: list[tuple[LiteralString, str]] = [
        ("The program's error:", item.handed.detail),
        ("The program reports:", reported.summary if reported else ""),
        ("It could not ask again:", item.handed.again_detail),
    ]
    return [one for one in found if one[1]]


def asked_again(item: Item, by: Person) -> Template:
    """Describe a person's request that the agent asks again, or its answer."""
    if not item.handed.asked_again_ms:
        return template("{who} wants the agent to ask again.", who=who(by))
    at = when(item.handed.asked_again_ms)
    return template("The agent asked again {at}, for {who}.", at=at, who=who(by))


def run_elsewhere(approval: Approval) -> list[Template]:
    """Explain who runs the pending calls of a card, if their caller does not."""
    named = {
        it.handed_to: it for it in approval.items if it.is_pending and it.handed_to
    }
    names = [template("{name}", name=handed_to(item)) for item in named.values()]
    said: LiteralString = (
        "Your decision is handed to {names}, which runs this by itself: Keyturn cannot "
        "see what runs."
    )
    return [template(said, names=join_list(names))] if names else []


def handed_to(item: Item) -> Ref:
    """Name the program that runs a call by itself."""
    return program(item.handed_to or "another program")


def is_just_waiting(approval: Approval, item: Item) -> bool:
    """Return whether a call needs one person's vote, and has no other notes."""
    count = counted_votes(item)
    return (
        item.is_pending
        and (count.have, count.need) == (0, 1)
        and not count.lacking
        and item.tier is not Tier.DENY
        and not is_dead_end(approval, item, item.requirement)
    )


def taken_by(approval: Approval, *, now_ms: int) -> Template | None:
    """Return the person who said "I'm on it"; None if that is over."""
    taken = approval.acknowledged
    if taken is None or approval.state is not ApprovalState.OPEN:
        return None
    until_ms = min(taken.until_ms, max(ends(approval), default=taken.until_ms))
    if now_ms >= until_ms:
        return None
    words: LiteralString = "👀 {who} is on it until {at}."
    if taken.is_snooze:
        words = "😴 {who} snoozed this card until {at}."
    return template(words, who=who(taken.by), at=when(until_ms))


def caller_gone(approval: Approval, *, now_ms: int) -> Template | None:
    """Return a sentence if the program that made the calls has stopped waiting."""
    until_ms = max(
        item.lapses_at_ms if item.state is _S.AUTHORIZED else end_of(approval, item)
        for item in approval.items
    )
    is_open = any(item.may_run for item in approval.items) and now_ms < until_ms
    if not approval.caller_gone or not is_open:
        return None
    said: LiteralString = "The client has stopped waiting. It can return until {at}."
    return template(said, at=when(until_ms))


def approvers(item: Item) -> list[Person]:
    """Return the people who decided an item: its voters, or the decider."""
    return [one.by for one in _signed(item)]


def is_own_edit(item: Item) -> bool:
    """Return whether the same single person edited and approved a call."""
    edit = item.edit
    return edit is not None and item.state in _APPROVED and approvers(item) == [edit.by]


def by_whom(item: Item) -> Template:
    """Name the same people, each with the people for whom they decided."""
    return join_list([_signature(one) for one in _signed(item)])


def _signed(item: Item) -> Sequence[Vote | DecisionRecord]:
    decision = item.decision
    if decision is not None and decision.verb in {Verb.REJECT, Verb.RESPOND}:
        return [decision]
    if item.state is _S.WITHDRAWN:
        return []
    # Votes for the version before an edit stay in the record, but did not cause its
    # state.
    votes = [vote for vote in item.votes if vote.action_hash == item.action_hash]
    return votes or ([decision] if decision else [])


def _signature(one: Vote | DecisionRecord) -> Template:
    by = who(one.by)
    if not one.on_behalf_of:
        return template("{by}", by=by)
    return template("{by} for {others}", by=by, others=people(one.on_behalf_of))


def _pending(approval: Approval, item: Item, *, now_ms: int) -> Template:
    at = when(end_of(approval, item))
    if is_late(approval, item, now_ms):
        ran = what_ran(item)
        return template("⌛ *The time to decide ended* {at}. " + ran, at=at)
    if item.is_question:
        return template(
            "⏳ *Waiting for an answer* until {at}; then the agent continues without "
            "it.",
            at=at,
        )
    expires = template("Expires {at}.", at=at)
    # A batch shows its end once, in its head.
    until = [] if approval.is_batch else [expires]
    if item.tier is Tier.DENY:
        denied = template(
            "⛔ *No longer allowed by the policy.* That may change again."
        )
        return joined(" ", [denied, *until])
    if is_dead_end(approval, item, item.requirement):
        stuck: LiteralString = "⛔ *Cannot be approved:* too few people are allowed to."
        if Verb.REJECT in item.allow:
            stuck += " It can be rejected."
        return joined(" ", [template(stuck), expires])
    count = counted_votes(item)
    if not count.have:
        waits = template("*Approval needed*")
        if count.need > 1:
            waits = template("*Needs {need} approvals*", need=count.need)
        sentence = template("⏳ {waits}{more}.", waits=waits, more=still_needed(item))
        return joined(" ", [sentence, *until])
    end = template("{more}.", more=still_needed(item))
    if count.is_met:
        end = template(". Enough people approved: press *Approve* once more.")
    have = template(
        "⏳ {votes}, by {who}{end}", votes=approvals(item), who=by_whom(item), end=end
    )
    return joined(" ", [have, *until])


# The gateway's prefix before the words of a policy, or of a problem.
_RAISED = re.compile(r"(?:Raised to [a-z]+(?:, and needs [^:]+)?|Needs [^:]+): ")


def needs(item: Item) -> Template:
    """Return the approvals that a call needs, such as "Needs 2 people"."""
    if item.cover is not None:
        return template("*No review needed*: a standing approval covers it")
    if item.tier.is_auto_approved:
        return template("*No review needed*")
    if item.tier is Tier.DENY:
        return template("⛔ *Not allowed*")
    need = counted_votes(item).need
    verb: LiteralString = "Needs " if item.is_pending else "Needed "
    people: LiteralString = "one person" if need == 1 else "{n} people"
    return template("*" + verb + people + "*", **({"n": need} if need > 1 else {}))


def is_usual(item: Item) -> bool:
    """Return whether a call needs one person or no review, as its tool usually does.

    The first reason is the policy's tier of the tool, which is not about this call.
    """
    is_of_tool = item.tier is Tier.APPROVE or item.is_auto_approved
    return is_of_tool and not item.reasons[1:]


def why(item: Item) -> str:
    """Return the reasons that are about this call; "" if there are none."""
    return " · ".join(map(without_tier, item.reasons[1:]))


def because(words: Template, reasons: str, most: int) -> Template | Untrusted:
    """Return words and their reasons, cut to ``most`` characters, as one sentence.

    Plain text if there are reasons, because Slack separates the parts of a line.
    """
    if not reasons:
        return words
    return untrusted(f"{spoken(words)}: {fit(reasons, most)}")


def without_tier(reason: str) -> str:
    """Return a reason without the tier or requirement before it."""
    return _RAISED.sub("", reason, count=1) if _RAISED.match(reason) else reason


_MAX_NAMES = 3
"""Maximum roles and parts of a requirement in one line; the rest is "others"."""


def counted_votes(item: Item) -> Tally:
    """Return the tally of a call, for exactly its current version."""
    return tally(item.requirement, item.votes, item.action_hash)


def votes_missing(item: Item) -> int:
    """Return the minimum number of people who still have to approve."""
    count = counted_votes(item)
    return max(count.need - count.have, sum(count.lacking.values()))


def approvals(item: Item) -> Template:
    """Return "1 of 2 approvals", or "2 approvals" once their number suffices."""
    have, need = counted_votes(item).have, counted_votes(item).need
    if have < need:
        return template("*{have} of {need} approvals*", have=have, need=need)
    noun: LiteralString = "approval" if have == 1 else "approvals"
    return template("*{have} " + noun + "*", have=have)


def still_needed(item: Item) -> Template:
    """Return "; still needs 1 from senior" while votes of a role are missing.

    Before the first approval it is ", including 1 from senior".
    """
    count = counted_votes(item)
    if not count.lacking:
        return template("")
    # `Tally.lacking` joins the names of alternatives; a name has no space.
    lacking = [
        template("{n} from {roles}", n=missing, roles=_roles(names.split(" or ")))
        for names, missing in count.lacking.items()
    ]
    head: LiteralString = ", including "
    if count.have:
        head = "; still needs "
    elif sum(count.lacking.values()) >= count.need:
        head = ": "
    return template(head + "{lack}", lack=_few(" and ", lacking))


def roles_of(requirement: Requirement) -> Template:
    """Name the roles whose holders may vote."""
    return _roles([role.name for role in requirement.roles])


def _roles(names: Sequence[str]) -> Template:
    """Name one role, or several alternatives."""
    return _few(" or ", [named_role(name) for name in names])


def _few(separator: LiteralString, parts: Sequence[Template]) -> Template:
    others = [template("others")] if parts[_MAX_NAMES:] else []
    return joined(separator, [*parts[:_MAX_NAMES], *others])


def named_role(name: str) -> Template:
    """Name a role."""
    try:
        return template("{role}", role=code(name))
    except ValueError:
        return template("{role}", role=code("another-role"))


_MOST_ENDS = 3
"""Maximum number of expiry times with their calls in one line."""


def expiry(approval: Approval) -> Template:
    """Return when the calls expire, or the first of them."""
    said: LiteralString = "Expires {at}."
    if len(ends(approval)) > 1:
        said = "The first of its calls expires {at}."
    return template(said, at=when(approval.expires_at_ms))


def expires_each(approval: Approval) -> list[Template]:
    """Return when the pending calls of a batch expire; empty if none is pending."""
    each = [*ends(approval).items()]
    # Collected calls arrived moments apart.
    if len(each) <= 1 or is_collected(approval):
        return [expiry(approval)] if each else []
    said = [
        template("Expires {at}: {calls}.", at=when(end_ms), calls=_named(items))
        for end_ms, items in each[:_MOST_ENDS]
    ]
    rest = [template("The others expire later.")]
    return [*said, *(rest if len(each) > _MOST_ENDS else [])]


def _named(items: Sequence[Item]) -> Template:
    return calls_named(item.index for item in items)


_UNNAMED_TOOL = template("another tool")
_TOOL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def card_sentence(approval: Approval) -> Template:
    """Return the state of a card and its tools."""
    said = _state_of(approval)
    if _has_own_subject(approval):
        return said
    names = _tool_names(approval.items)
    noun: LiteralString = "Tools: " if len(names) > 1 else "Tool: "
    return template("{said} " + noun + "{each}.", said=said, each=join_list(names))


def card_fallback(approval: Approval) -> str:
    """Return the sentence for a card."""
    said = _state_of(approval)
    return spoken(said) if _has_own_subject(approval) else about(approval.items, said)


def about(items: Sequence[Item], sentence: Template) -> str:
    """Return a sentence about calls as it is read aloud: the acts come first."""
    named = join_list(_tool_names(items, has_acts=True)).text.replace("`", "")
    first = named[0].upper() if items[0].act else named[0]
    return f"{first}{named[1:]}: {spoken(sentence)}"


def _has_own_subject(approval: Approval) -> bool:
    return approval.is_auto_approved or approval.is_question


def _state_of(approval: Approval) -> Template:
    said = status_sentence(approval, approval.items[0])
    if approval.is_batch:
        words = template("{words}.", words=batch_state(approval)[1])
        return joined(" ", [words, *expires_each(approval)])
    return said


def _tool_names(items: Sequence[Item], *, has_acts: bool = False) -> list[Template]:
    """Return the tools or acts of calls, without names that could be read as markup."""
    each = {item.tool: item for item in items}.values()
    return [_tool_name(one, one.act if has_acts else "") for one in each]


def _tool_name(item: Item, act: str) -> Template:
    if item.is_standing:
        return template("similar calls")
    name = act or item.tool
    return (
        template("{name}", name=code(name))
        if _TOOL_NAME.fullmatch(name)
        else _UNNAMED_TOOL
    )

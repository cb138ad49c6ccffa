"""State the policy of the matrix in the plainest way, cell by cell.

Nothing here is computed by the project: the tables are the policy as its author would
explain it, and `expected` reads them from top to bottom.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from enum import StrEnum

from keyturn.gateway.protocol.records import Verb
from tests.matrix.people import Kind


class Requirement(StrEnum):
    """What the call needs, and what already happened to it."""

    BY_GROUP = "approve by support group"
    BY_LIST = "approve by user list"
    NOBODY = "approve by nobody"
    EMPTY = "approve by a group of nobody"
    MISSING = "approve by a group that is gone"
    FIRST = "escalate, first vote"
    AFTER_SELF = "escalate, second vote by the same person"
    AFTER_JUNIOR = "escalate, second vote after a junior"
    AFTER_SENIOR = "escalate, second vote after a senior"
    AFTER_DEACTIVATED = "escalate, second vote after a senior who is deactivated"
    AFTER_REVOKED = "escalate, second vote after a senior who left the group"
    AFTER_DEMOTED = "escalate, second vote after a senior who is only support now"
    RAISED = "escalate, first vote after another's edit raised it"
    RAISED_BY_SELF = "escalate, first vote after one's own edit raised it"

    @property
    def is_escalated(self) -> bool:
        """Return whether two people have to agree, one of them a senior."""
        return self.value.startswith("escalate")


class Word(StrEnum):
    """The outcome of a decision."""

    DECIDED = "decided"
    VOTED = "voted"
    REFUSED = "refused"


class Voter(StrEnum):
    """The people whose votes count afterwards."""

    BEFORE = "the one before"
    SELF = "the one who decides"


@dataclass(frozen=True)
class Cell:
    """One kind of person, one requirement, one decision."""

    kind: Kind
    requirement: Requirement
    verb: Verb

    def __str__(self) -> str:
        """Return the cell as a line of a report."""
        return f"{self.kind} | {self.requirement} | {self.verb}"


@dataclass(frozen=True)
class End:
    """The result of a decision.

    ``state`` and ``voters`` are the item's afterwards; ``is_edited`` is True if other
    arguments than the requested ones would run.
    """

    word: Word
    state: str
    voters: frozenset[Voter]
    is_edited: bool = False


CAN_VOTE = (Kind.BY_ID, Kind.BY_GROUP, Kind.SENIOR)
CELLS = tuple(
    Cell(kind, requirement, verb)
    for kind, requirement, verb in itertools.product(Kind, Requirement, Verb)
    # Whose first word does not count has no second one.
    if requirement not in {Requirement.AFTER_SELF, Requirement.RAISED_BY_SELF}
    or kind in CAN_VOTE
)
KNOWN = frozenset(
    {
        Cell(Kind.REVOKED_NOW, Requirement.BY_GROUP, Verb.APPROVE),
        Cell(Kind.DEACTIVATED_NOW, Requirement.BY_LIST, Verb.APPROVE),
    }
)
"""In whose channels the bot hears of somebody who is gone later."""

_STATES = {
    Verb.APPROVE: "authorized",
    Verb.EDIT: "authorized",
    Verb.REJECT: "rejected",
    Verb.RESPOND: "answered",
}
_YOURS = "You asked for this"
_CHANGED = "You edited this"
_ASKERS = {Kind.REQUESTER, Kind.OWNER}
_NEVER = {
    Kind.REQUESTER: _YOURS,
    Kind.OWNER: _YOURS,
    Kind.MULTI_GUEST: "Guests cannot decide",
    Kind.SINGLE_GUEST: "Guests cannot decide",
    Kind.DEACTIVATED: "This account is deactivated",
    Kind.STRANGER: "People from other organizations cannot decide",
    Kind.OTHER_TEAM: "People from other organizations cannot decide",
    Kind.OTHER_WORKSPACE: "This card belongs to another workspace",
    Kind.BOT: "Bots and workflows cannot decide",
    Kind.NO_ACCOUNT: "Slack did not say who you are",
}
_ROLES = {
    Kind.BY_ID: {"listed"},
    Kind.BY_GROUP: {"support"},
    Kind.SENIOR: {"senior"},
    Kind.OUTSIDER: set[str](),
    Kind.DEACTIVATED_NOW: {"listed", "support"},
    Kind.REVOKED_NOW: {"support"},
    Kind.REVOKED: set[str](),
    Kind.NO_GROUPS: set[str](),
    Kind.NO_GROUPS_BY_ID: {"listed"},
}
_ASKED = {
    Requirement.BY_GROUP: {"support"},
    Requirement.BY_LIST: {"listed"},
    Requirement.EMPTY: {"empty"},
    Requirement.MISSING: {"missing"},
}
_ESCALATED = {"support", "listed", "senior"}
_RAISED = {Requirement.RAISED, Requirement.RAISED_BY_SELF}
_VOID = {Requirement.AFTER_DEACTIVATED, Requirement.AFTER_REVOKED}
_NO_GROUPS = {Kind.NO_GROUPS, Kind.NO_GROUPS_BY_ID}
_RECORDED = "is recorded"


def expected(cell: Cell) -> End:
    """Return what the policy makes of a cell."""
    before, is_other = _before(cell.requirement), cell.requirement in _RAISED
    if refusal(cell):
        return End(Word.REFUSED, "pending", before, is_other)
    if cell.verb in {Verb.REJECT, Verb.RESPOND}:  # one word against it is enough
        state = "withdrawn" if cell.kind in _ASKERS else _STATES[cell.verb]
        return End(Word.DECIDED, state, before, is_other)
    is_edited = cell.verb is Verb.EDIT
    # Votes count for the call in its version, by people who may still vote.
    is_void = is_edited or cell.requirement in _VOID
    votes = {Voter.SELF} if is_void else {*before, Voter.SELF}
    word = Word.DECIDED if _is_enough(cell, votes) else Word.VOTED
    state = _STATES[cell.verb] if word is Word.DECIDED else "pending"
    return End(word, state, frozenset(votes), is_edited or is_other)


def few() -> tuple[Cell, ...]:
    """Return all people with each requirement, and each result of a button.

    The buttons take turns, so that all people click each one.
    """
    kinds, requirements, verbs = [*Kind], [*Requirement], [*Verb]

    def is_its_turn(cell: Cell) -> bool:
        turn = kinds.index(cell.kind) + requirements.index(cell.requirement)
        return verbs[turn % len(verbs)] is cell.verb

    chosen = {cell for cell in CELLS if cell in KNOWN or is_its_turn(cell)}
    seen = set(map(ending, chosen))
    for cell in CELLS:
        if ending(cell) not in seen:
            seen.add(ending(cell))
            chosen.add(cell)
    return tuple(cell for cell in CELLS if cell in chosen)


def ending(cell: Cell) -> tuple[Requirement, Verb, End]:
    """Return the possible results of a button that a sample must contain."""
    return cell.requirement, cell.verb, expected(cell)


def sentence(cell: Cell) -> str:
    """Return how the sentence for the person goes, in part; "" for none."""
    words = {Word.DECIDED: "", Word.VOTED: _RECORDED, Word.REFUSED: refusal(cell)}
    return words[expected(cell).word]


def refusal(cell: Cell) -> str:
    """Return in part why a decision does not count; "" when it does."""
    kind, requirement = cell.kind, cell.requirement
    is_rejected = cell.verb is Verb.REJECT
    if kind in _ASKERS and is_rejected:  # the requester may take it back
        return ""
    if kind in _NEVER:
        return _NEVER[kind]
    # For an escalated call Slack is asked again; otherwise a minute-old answer may
    # count.
    if kind is Kind.DEACTIVATED_NOW and requirement.is_escalated:
        return _NEVER[Kind.DEACTIVATED]
    if requirement is Requirement.RAISED_BY_SELF and not is_rejected:
        return _CHANGED
    if requirement is Requirement.NOBODY:
        return "nobody can approve it"
    return _doubt(cell) if _roles(cell) else _stranger_to_it(cell)


def _stranger_to_it(cell: Cell) -> str:
    """Refuse a person without a required role, as far as Slack answers."""
    is_asking = cell.requirement is not Requirement.BY_LIST and cell.kind in _NO_GROUPS
    if is_asking:
        return "Slack did not say who is in"
    if cell.requirement in {Requirement.EMPTY, Requirement.MISSING}:
        return "its user group is empty or gone"
    return "Please ask one of them"


def _doubt(cell: Cell) -> str:
    """Refuse a second vote, and any vote while a role that is asked for is open."""
    if cell.verb in {Verb.REJECT, Verb.RESPOND}:
        return ""
    if cell.requirement is Requirement.AFTER_SELF and cell.verb is Verb.APPROVE:
        return "You already approved"
    is_open = cell.kind is Kind.NO_GROUPS_BY_ID and cell.requirement.is_escalated
    return "Slack did not say who is in" if is_open else ""


def _roles(cell: Cell) -> set[str]:
    if cell.kind is Kind.REVOKED_NOW and cell.requirement.is_escalated:
        return set()
    asked = _ESCALATED if cell.requirement.is_escalated else _ASKED[cell.requirement]
    return _ROLES[cell.kind] & asked


def _before(requirement: Requirement) -> frozenset[Voter]:
    if requirement is Requirement.AFTER_SELF:
        return frozenset({Voter.SELF})
    is_second = requirement.value.startswith("escalate, second")
    return frozenset({Voter.BEFORE} if is_second else ())


def _is_enough(cell: Cell, votes: set[Voter]) -> bool:
    if not cell.requirement.is_escalated:
        return True
    is_senior = cell.kind is Kind.SENIOR or cell.requirement is Requirement.AFTER_SENIOR
    return len(votes) == 2 and is_senior

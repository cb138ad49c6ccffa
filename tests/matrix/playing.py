"""Play the whole matrix once, and note the outcome of every cell."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

import pytest

from keyturn.bot import reviewers
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.protocol.records import Verb
from keyturn.sandbox.client import UserActionFailed
from keyturn.sandbox.faults import Fault
from keyturn.sandbox.records import Message
from keyturn.sandbox.workspace import Workspace
from tests.conftest import eventually
from tests.matrix.interactions import (
    click,
    close_forms,
    form,
    is_warned,
    notice,
    submit,
    version_shown,
)
from tests.matrix.matrix_stack import PATIENCE_S, MatrixStack, Table, open_matrix_stack
from tests.matrix.model import KNOWN, Cell, End, Requirement, Voter, Word
from tests.matrix.people import (
    DEACTIVATED_BEFORE,
    DEMOTED_BEFORE,
    JUNIOR_BEFORE,
    PLACES,
    REVOKED_BEFORE,
    SENIOR,
    SENIOR_BEFORE,
    SUPPORT,
    Kind,
    Place,
    join_group,
    leave_group,
)

FOR_EVER_S = 1e9
AT_ONCE = 16

_FIRST: dict[Requirement, Place] = {
    Requirement.AFTER_JUNIOR: JUNIOR_BEFORE,
    Requirement.AFTER_SENIOR: SENIOR_BEFORE,
    Requirement.AFTER_DEACTIVATED: DEACTIVATED_BEFORE,
    Requirement.AFTER_REVOKED: REVOKED_BEFORE,
    Requirement.AFTER_DEMOTED: DEMOTED_BEFORE,
    Requirement.RAISED: JUNIOR_BEFORE,
}
_RAISED = {Requirement.RAISED, Requirement.RAISED_BY_SELF}


class Hour(StrEnum):
    """What time it is, and how Slack is: the cells of one hour are played together."""

    APPROVING = "what Slack said is young"
    ESCALATING = "what Slack said is young, and some who voted are none any more"
    LATER = "what Slack said is older than a minute"
    NO_ACCOUNTS = "Slack fails on users.info"
    NO_GROUPS = "Slack fails on usergroups.users.list"


_HOURS = {
    Kind.REVOKED: Hour.LATER,
    Kind.NO_ACCOUNT: Hour.NO_ACCOUNTS,
    Kind.NO_GROUPS: Hour.NO_GROUPS,
    Kind.NO_GROUPS_BY_ID: Hour.NO_GROUPS,
}
_FAULTS = {
    Hour.NO_ACCOUNTS: "users.info",
    Hour.NO_GROUPS: "usergroups.users.list",
}


@dataclass(frozen=True)
class Played:
    """The outcome of a cell, and every sentence about it.

    Attributes:
        end: the state of the call; None when Slack got no answer.
        trouble: the error that Slack got instead of an answer.
        told: the person's private texts, in a modal or in a message.
        leaked: texts that other people could read besides the card and its thread.
    """

    end: End | None
    trouble: str = ""
    told: tuple[str, ...] = ()
    leaked: tuple[str, ...] = ()


@dataclass(frozen=True)
class Results:
    """The outcomes of the matrix, and the problems that Slack showed to anyone."""

    cells: dict[Cell, Played]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class _Shown:
    """The facts of a cell right after it was played."""

    end: End | None
    trouble: str
    in_modal: str
    earlier: frozenset[str]


def hour_of(cell: Cell) -> Hour:
    """Return when a cell is played."""
    usual = Hour.ESCALATING if cell.requirement.is_escalated else Hour.APPROVING
    return _HOURS.get(cell.kind, usual)


async def play(cells: Sequence[Cell]) -> Results:
    """Play these cells in one stack; texts are read when the stack is closed.

    Each kind of person decides one cell after another, all kinds at the same time.
    """
    shown: dict[Table, _Shown] = {}
    async with open_matrix_stack(cells) as stack:
        sandbox = stack.demo.sandbox
        tables = await stack.lay(cells)
        await _vote_first(stack, tables)
        await _raise(stack, tables)
        await _introduce(stack, tables)
        for hour in Hour:
            with _during(stack, hour):
                now = [table for table in tables if hour_of(table.cell) is hour]
                shown |= await _play_together(stack, now)
    workspace = sandbox.workspace
    notices = (one.text for each in workspace.notices.values() for one in each)
    return Results(
        {table.cell: _played(workspace, table, one) for table, one in shown.items()},
        (*sandbox.problems, *notices),
    )


async def _vote_first(stack: MatrixStack, tables: Sequence[Table]) -> None:
    """Vote as the earlier voters; each of them reads that the vote counts."""
    voters = {
        table: _first(table)
        for table in tables
        if "second vote" in table.cell.requirement
    }
    room = asyncio.Semaphore(AT_ONCE)

    async def vote(table: Table, user: str) -> None:
        async with room:
            await click(stack, table, Verb.APPROVE, user)

    await asyncio.gather(*(vote(table, user) for table, user in voters.items()))

    async def all_told() -> bool:
        workspace = stack.demo.sandbox.workspace
        return len(workspace.ephemerals) == len(voters)

    await eventually(all_told, within_s=PATIENCE_S)


async def _raise(stack: MatrixStack, tables: Sequence[Table]) -> None:
    """Edit as the earlier editors: each edit asks for more, on the same card."""
    raised = [table for table in tables if table.cell.requirement in _RAISED]
    for table in raised:
        user = _first(table)
        await click(stack, table, Verb.EDIT, user)
        await submit(stack, Verb.EDIT, user, amount=900)
        assert is_warned(form(stack, user))
        await submit(stack, Verb.EDIT, user, amount=900)
        close_forms(stack, user)

    async def all_shown() -> bool:
        return all(version_shown(stack, table) == 2 for table in raised)

    await eventually(all_shown, within_s=PATIENCE_S)


async def _introduce(stack: MatrixStack, tables: Sequence[Table]) -> None:
    """Let the bot see people who will have left, while they are still there."""
    for table in tables:
        if table.cell in KNOWN:
            await click(stack, table, Verb.RESPOND, table.person)
            assert form(stack, table.person) is not None
            close_forms(stack, table.person)


@contextmanager
def _during(stack: MatrixStack, hour: Hour) -> Generator[None]:
    """Set the current hour."""
    sandbox = stack.demo.sandbox
    if hour is Hour.ESCALATING:
        for place in (REVOKED_BEFORE, DEMOTED_BEFORE):
            leave_group(sandbox.workspace, SENIOR, place.user.id)
        sandbox.control.deactivate(DEACTIVATED_BEFORE.user.id)
    if hour is Hour.LATER:
        leave_group(sandbox.workspace, SUPPORT, PLACES[Kind.REVOKED].user.id)
    if hour in _FAULTS:
        sandbox.faults.plan(Fault.HTTP_500, _FAULTS[hour], calls=1_000_000)
    is_young = hour in {Hour.APPROVING, Hour.ESCALATING}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reviewers, "KEPT_S", FOR_EVER_S if is_young else 0.0)
        patch.setattr(reviewers, "FRESH_S", 0.0)
        yield
    sandbox.faults.clear()


async def _play_together(
    stack: MatrixStack, tables: Sequence[Table]
) -> dict[Table, _Shown]:
    async def in_turn(own: Sequence[Table]) -> list[_Shown]:
        return [await _play_one(stack, table) for table in own]

    ordered = sorted(tables, key=_kind)
    rows = [list(own) for _, own in itertools.groupby(ordered, _kind)]
    played = await asyncio.gather(*(in_turn(own) for own in rows))
    return dict(
        zip(itertools.chain(*rows), itertools.chain(*played), strict=True),
    )


async def _play_one(stack: MatrixStack, table: Table) -> _Shown:
    workspace = stack.demo.sandbox.workspace
    before = await stack.approval(table)
    earlier = frozenset(one.ts for one in _private(workspace, table))
    trouble = ""
    try:
        await _decide(stack, table)
    except UserActionFailed as error:
        trouble = str(error)
    said = notice(form(stack, table.person))
    close_forms(stack, table.person)
    end = None if trouble else _end(table, before, await stack.approval(table))
    return _Shown(end, trouble, said, earlier)


async def _decide(stack: MatrixStack, table: Table) -> None:
    """Click and, in a form that opens, submit; some are gone just before that."""
    verb, user = table.cell.verb, table.person
    if verb is Verb.APPROVE:
        with _gone(stack, table):
            await click(stack, table, verb, user)
        return
    await click(stack, table, verb, user)
    if form(stack, user) is not None:
        with _gone(stack, table):
            await submit(stack, verb, user)


@contextmanager
def _gone(stack: MatrixStack, table: Table) -> Generator[None]:
    """Remove the people who leave right before the decision."""
    workspace, user = stack.demo.sandbox.workspace, table.person
    kind = table.cell.kind
    if kind is Kind.REVOKED_NOW:
        leave_group(workspace, SUPPORT, user)
    if kind is Kind.DEACTIVATED_NOW:
        workspace.set_deleted(user, deleted=True)
    try:
        yield
    finally:
        if kind is Kind.REVOKED_NOW:
            join_group(workspace, SUPPORT, user)
        if kind is Kind.DEACTIVATED_NOW:
            workspace.set_deleted(user, deleted=False)


def _end(table: Table, before: Approval, after: Approval) -> End:
    item = after.items[0]
    if not item.is_pending:
        word = Word.DECIDED
    else:
        word = Word.REFUSED if after.rev == before.rev else Word.VOTED
    voters = frozenset(
        Voter.SELF if vote.by.user == table.person else Voter.BEFORE
        for vote in item.votes
        if vote.action_hash == item.action_hash
    )
    is_edited = item.args != item.requested_args
    return End(word, item.state.value, voters, is_edited)


def _played(workspace: Workspace, table: Table, shown: _Shown) -> Played:
    new = [one for one in _private(workspace, table) if one.ts not in shown.earlier]
    own = [one.text for one in new if one.ephemeral_to == table.person]
    others = [one.text for one in new if one.ephemeral_to != table.person]
    public = [
        one.text
        for one in workspace.messages[table.channel].values()
        if one.thread_ts is None
    ][1:]
    told = ([shown.in_modal] if shown.in_modal else []) + own
    return Played(shown.end, shown.trouble, tuple(told), (*others, *public))


def _private(workspace: Workspace, table: Table) -> list[Message]:
    found = workspace.ephemerals.values()
    return [one for one in found if one.channel == table.channel]


def _first(table: Table) -> str:
    place = _FIRST.get(table.cell.requirement)
    return table.person if place is None else place.user.id


def _kind(table: Table) -> Kind:
    return table.cell.kind

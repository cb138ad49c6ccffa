"""Reload a changed policy file; an invalid file never replaces a valid policy.

A change counts once the file has stood still from one look to the next, because half
of a file can be a policy, too: one that lacks the rules of the other half. What cannot
be read or is not a policy is refused, and then the policy in force stays. So a file
that is emptied, deleted or misspelt never loosens anything.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.standing import POLICY_CHANGED
from keyturn.gateway.config import PolicySource, Settings
from keyturn.gateway.errors import PolicyError, SettingsError
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.resume.transient_retry import repeat
from keyturn.gateway.service.call_evaluation import dead_ends
from keyturn.gateway.service.standing import end_those
from keyturn.gateway.store.store import Store

logger = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often to look at the file, about."""

_LONGEST_REASON = 500


@dataclass(frozen=True)
class Change:
    """The result of reading a changed file.

    Attributes:
        was: digest of the policy that was in force; empty at the start.
        now: digest of the policy that is in force.
        why: why the file was refused, with file and line; empty when it was taken.
    """

    was: str
    now: str
    why: str = ""


class _Reading(NamedTuple):
    """What a look at the file found: its text, or why it cannot be read."""

    text: str = ""
    problem: str = ""

    def load(self, source: PolicySource) -> Policy:
        if self.problem:
            raise SettingsError(self.problem)
        return load_policy(self.text, str(source.path), under=source.under)


class PolicyFile:
    """A policy that follows its file; call it for the policy in force.

    It may be called from any thread.

    Args:
        source: where the policy stands.

    Raises:
        PolicyError: when the file is not a policy at the start; names the line.
        SettingsError: when it cannot be read at the start.
    """

    def __init__(self, source: PolicySource) -> None:
        self._source = source
        self._evaluated = self._standing = _Reading(source.read())
        self._is_asked = False
        self._policy = self._evaluated.load(source)
        # A pipe is read once, and would block a second reader.
        self._is_followed = source.path.is_file()

    def __call__(self) -> Policy:
        """Return the policy in force."""
        return self._policy

    def reload(self) -> None:
        """Parse the file again at the next looks, even if it has not changed."""
        self._is_asked = True

    def look(self) -> Change | None:
        """Look at the file once, and take it when it is a policy; blocks on the disk.

        Returns:
            None when there is nothing to tell: nothing changed, or it changes still.
        """
        if not self._is_followed:
            return None
        found = _read(self._source)
        # Compared by content: a time stamp has the grain of its file system, and a link
        # may be turned to another file.
        is_still, self._standing = found == self._standing, found
        if not is_still or (found == self._evaluated and not self._is_asked):
            return None
        # Before it is loaded: a file that is refused is refused once and not each
        # second.
        self._is_asked, self._evaluated = False, found
        was = self._policy.digest
        try:
            policy = found.load(self._source)
        except (PolicyError, SettingsError) as error:
            return Change(was, was, str(error)[:_LONGEST_REASON])
        # The digest is computed here, off the event loop, before anybody needs it.
        change = Change(was, policy.digest)
        # One assignment, which is atomic among threads: a turn sees the old policy or
        # the new.
        self._policy = policy
        return change


def policy_of(
    settings: Settings | None, policy: Policy | Path | None
) -> Callable[[], Policy]:
    """Return what gives the policy in force: of the settings, a file, or as given.

    Raises:
        SettingsError: when there is not exactly one of the two, or no such file.
        PolicyError: when it is not a policy.
    """
    if settings is not None and policy is None:
        return PolicyFile(settings.policy)
    if settings is not None or policy is None:
        raise SettingsError(
            "Keyturn needs either settings or a policy: Keyturn(settings), or "
            "Keyturn(policy=Path('policy.yml'))."
        )
    if isinstance(policy, Policy):
        return lambda: policy
    return PolicyFile(PolicySource(path=policy))


@asynccontextmanager
async def followed(
    policy: PolicyFile, store: Store, *, tenant: str, every_s: float = LOOK_S
) -> AsyncGenerator[None]:
    """Follow the file of a policy while the block runs; the event loop never waits.

    What is in force at the start and each change is logged and told, once; what
    cannot be told is told later. Before it is told, standing approvals under any other
    policy end.

    Args:
        policy: to keep up to date.
        store: whose audit log and outbox are told.
        tenant: whose policy it is.
        every_s: about how often to look.
    """
    untold = [_logged(Change(was="", now=policy().digest), tenant)]
    keys = store.keys_of_tenant(tenant)
    outbox = store.outbox(keys, reader="")

    async def look() -> None:
        # In a thread: a file on a network may block, and a large policy takes a while
        # to check.
        change = await asyncio.to_thread(policy.look)
        if change is not None:
            untold.append(_logged(change, tenant))
        while untold:
            await outbox.put(await counted(untold[0]))
            # After the put: what cannot be told now is told at a later look.
            del untold[0]

    async def counted(event: Event) -> Event:
        """End what another policy allowed; count calls that nobody can approve."""
        if event.name is not EventName.POLICY_LOADED:
            return event
        # By the policy that was loaded then, even if the file was put back since.
        loaded = event.policy_digest
        await end_those(
            store, keys, lambda one: one.policy_digest != loaded, POLICY_CHANGED
        )
        found = await dead_ends(store, policy(), tenant=tenant)
        if not found:
            return event
        logger.warning(
            "policy.nobody_can_approve calls=%d first=%s", len(found), found[0].id
        )
        return event.with_(data={**event.data, "dead_ends": str(len(found))})

    stop = asyncio.Event()
    following = asyncio.create_task(repeat(look, stop, every_s=every_s))
    try:
        yield
    finally:
        stop.set()
        await following


def _read(source: PolicySource) -> _Reading:
    try:
        is_pipe = stat.S_ISFIFO(source.path.stat().st_mode)
    except (OSError, ValueError):
        is_pipe = False  # reading it says what is wrong
    if is_pipe:
        # It would be waited for until somebody writes, also when the process ends.
        return _Reading(problem=f"{str(source.path)!r}, the policy, is not a file now.")
    try:
        return _Reading(source.read())
    except SettingsError as error:
        return _Reading(problem=str(error))


def _logged(change: Change, tenant: str) -> Event:
    """Log a change where it is seen under any settings of logs, and make its event."""
    process = f"{socket.gethostname()}-{os.getpid()}"
    if change.why:
        name = EventName.POLICY_REFUSED
        logger.error("policy.refused kept=%s why=%s", change.was, change.why)
    else:
        name = EventName.POLICY_LOADED
        level = logging.WARNING if change.was else logging.INFO
        logger.log(level, "policy.loaded was=%s now=%s", change.was, change.now)
    return Event(
        name=name,
        tenant=tenant,
        policy_digest=change.now,
        reason=change.why,
        data={"was": change.was, "process": process},
    )

"""Reload a changed policy file; an invalid file never replaces a valid policy.

A change is applied once two successive looks find the same content, because half of a
file can also be a policy: one without the rules of the other half. An unreadable file
or an invalid policy is refused, and the policy in force remains. So is a policy that
puts a tool to people about which its agent does not ask. So an emptied, deleted
or misspelt file never loosens a rule.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from keyturn.gateway.approvals.events import ROLES, Event, EventName
from keyturn.gateway.approvals.standing import POLICY_CHANGED
from keyturn.gateway.arguments import is_a, require
from keyturn.gateway.config import PolicySource, Settings
from keyturn.gateway.errors import GraphError, PolicyError, SettingsError
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.resume.transient_retry import repeat
from keyturn.gateway.service.people.queue import dead_ends
from keyturn.gateway.service.report.process_check import process_name
from keyturn.gateway.service.submit.standing import end_those
from keyturn.gateway.store.store import Store

logger = logging.getLogger(__name__)

LOOK_S = 1.0
"""Approximate interval between looks at the file."""

_LONGEST_REASON = 500


@dataclass(frozen=True)
class Change:
    """The result of reading a changed file.

    Attributes:
        was: digest of the policy that was in force; empty at the start.
        now: digest of the policy that is in force.
        why: reason of a refusal, with file and line; empty if it was accepted.
    """

    was: str
    now: str
    why: str = ""


class PolicyFile:
    """A policy that follows its file; call it for the policy in force.

    It may be called from any thread.

    Args:
        source: place of the policy.

    Attributes:
        check: raises a `GraphError` for a changed policy that the agents do not fit.

    Raises:
        PolicyError: the file is not a policy at the start; names the line.
        SettingsError: it cannot be read at the start.
    """

    def __init__(self, source: PolicySource) -> None:
        self._source = source
        self.check: Callable[[Policy], None] = lambda _: None
        # Each is the text, or the problem of reading it.
        self._evaluated = self._standing = (source.read(), "")
        self._policy = self._load(*self._evaluated)
        # A pipe can be read only once, and would block a second reader.
        self._is_followed = source.path.is_file()

    def __call__(self) -> Policy:
        """Return the policy in force."""
        return self._policy

    def look(self) -> Change | None:
        """Look at the file once, and apply it if it is a policy; blocks on the disk.

        Returns:
            None if the file has not changed, or is still changing.
        """
        if not self._is_followed:
            return None
        try:
            found = self._source.read(), ""
        except SettingsError as error:
            found = "", str(error)
        # Compared by content: the precision of a time stamp depends on the file system,
        # and a link may be changed to another file.
        is_still, self._standing = found == self._standing, found
        if not is_still or found == self._evaluated:
            return None
        # Before loading: a refused file is refused once and not each second.
        self._evaluated = found
        was = self._policy.digest
        try:
            policy = self._load(*found)
            self.check(policy)
        except (PolicyError, SettingsError, GraphError) as error:
            return Change(was, was, str(error)[:_LONGEST_REASON])
        # The digest is computed here, off the event loop, before its first use.
        change = Change(was, policy.digest)
        # One assignment, which is atomic among threads: a turn uses either the old
        # policy or the new one.
        self._policy = policy
        return change

    def _load(self, text: str, problem: str) -> Policy:
        if problem:
            raise SettingsError(problem)
        source = self._source
        return load_policy(text, str(source.path), under=source.under)


def policy_of(
    settings: Settings | None, policy: Policy | Path | None
) -> Callable[[], Policy]:
    """Return a function for the policy in force: of the settings, a file, or fixed.

    Raises:
        SettingsError: there is not exactly one of the two, or no such file.
        PolicyError: it is not a policy.
    """
    needed = "give what Settings.load returns, or policy=Path('…')"
    require(settings is None or is_a(settings, Settings), "settings", settings, needed)
    if settings is not None and policy is None:
        return PolicyFile(settings.policy)
    if settings is not None or policy is None:
        raise SettingsError(
            "Keyturn needs either settings or a policy: Keyturn(settings), or "
            "Keyturn(policy=Path('policy.yml'))."
        )
    if isinstance(policy, Policy):
        return lambda: policy
    needed = "give the path of the file, Path('policy.yml')"
    require(is_a(policy, Path), "policy", policy, needed)
    return PolicyFile(PolicySource(path=policy))


@asynccontextmanager
async def followed(
    policy: PolicyFile, store: Store, *, tenant: str, every_s: float = LOOK_S
) -> AsyncGenerator[None]:
    """Follow the file of a policy while the block runs; the event loop never waits.

    The policy at the start and each change is logged and announced, once. A failed
    announcement is repeated later. Before it, standing approvals under any other policy
    end.

    Args:
        policy: the policy to keep up to date.
        store: its audit log and outbox get the announcement.
        tenant: owner of the policy.
        every_s: approximate interval between looks.
    """
    untold = [_logged(Change(was="", now=policy().digest), policy(), tenant)]
    keys = store.keys_of_tenant(tenant)
    outbox = store.outbox(keys, reader="")

    async def look() -> None:
        # In a thread: a file on a network may block, and checking a large policy takes
        # time.
        change = await asyncio.to_thread(policy.look)
        if change is not None:
            untold.append(_logged(change, policy(), tenant))
        while untold:
            await outbox.put(await counted(untold[0]))
            # After the put: a failed announcement is repeated at a later look.
            del untold[0]

    async def counted(event: Event) -> Event:
        """End standing approvals of other policies; count calls without approvers."""
        if event.name is not EventName.POLICY_LOADED:
            return event
        # By the policy that was loaded then, even if the file has changed back since.
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


def _logged(change: Change, policy: Policy, tenant: str) -> Event:
    """Log a change at a level that is always visible, and return its event."""
    data = {"was": change.was, "process": process_name()}
    if change.why:
        name = EventName.POLICY_REFUSED
        logger.error("policy.refused kept=%s why=%s", change.was, change.why)
    else:
        name = EventName.POLICY_LOADED
        level = logging.WARNING if change.was else logging.INFO
        logger.log(level, "policy.loaded was=%s now=%s", change.was, change.now)
        holders = {
            name: [*role.users, *role.usergroups] for name, role in policy.roles.items()
        }
        data[ROLES] = json.dumps(holders)
    return Event(
        name=name, tenant=tenant, policy_digest=change.now, reason=change.why, data=data
    )

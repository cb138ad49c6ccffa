"""Redis key names and lifetimes.

Every key starts with ``tk:{<tenant>}:``: all keys of a tenant share a hash tag, so one
script can touch any of them in a cluster (Redis Cluster specification, "Hash tags").
An approval's id contains the tenant, so that a click finds its keys by itself.

One rule for every lifetime: what is still needed has none. An approval, the place of
its card, the verdicts of its turn and the list of its run live while an item of it is
open, and a thread's facts while its run goes on; the step that ends the last of them
gives them `RETENTION`. Everything else has a lifetime from the start or is permanent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from functools import lru_cache

from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import RunRef

RETENTION = timedelta(days=30)
"""How long an approval, its card and its thread are kept after they have ended."""

KEEP_MS = int(RETENTION.total_seconds() * 1000)
"""The same in milliseconds."""

NONCE_MS = 11 * 60 * 1000
"""Twice Slack's five-minute window and a little: Bolt accepts future timestamps."""

MESSAGE_LIFETIME = RETENTION
"""How long a person's message is known: Slack tells of it again when it is edited."""

DRAFT_MS = 60 * 60 * 1000
"""How long a person's words wait for the form that they are to stand in."""

VIEW_MS = 24 * 60 * 60 * 1000
"""How long an open modal stays bound to the item it was opened for."""

RESPONSE_URL_MS = 29 * 60 * 1000
"""A minute less than Slack takes a response URL for."""

LEASE_MS = 15_000
"""Lifetime of a thread lease and of a claim without a heartbeat."""

HALF = 32
"""How many hexadecimal digits of a hash name its key, or a turn's first approval."""

LISTED_BYTES = 16
"""How long the member is by which a sorted set lists an approval."""

PERMANENT = frozenset(
    {
        "x", "timers", "ev", "rs", "dead", "members", "au", "audit_sealed",
        "audit_tree", "retry", "frozen", "frozen_sealed", "undrawn", "fences",
        "agents", "queues", "queue_groups", "stalled", "stalled_waiting",
        "stalled_parked", "restore_counters", "standing", "sealed_by", "format",
        "api_keys", "messages_due", "moved_channels",
    }
)  # fmt: skip
"""Last part of the keys that live as long as the store: indexes, streams, freezes."""

# A click or an agent may send anything as an id: only what matches becomes a key.
_TENANT = r"(?P<tenant>[a-z0-9][a-z0-9_-]{0,63})"
_APPROVAL_ID = re.compile(rf"ap_{_TENANT}_(?P<random>[0-9a-f]{{32}})")
_RUN_ID = re.compile(rf"run_{_TENANT}_[0-9a-f]{{32}}")


def approval_id(tenant: str, bits: str) -> str:
    """Return an approval id: the tenant and 128 bits in hex."""
    return f"ap_{tenant}_{bits}"


def tenant_of_approval(approval: str) -> str | None:
    """Return the tenant of an approval id; None for another text."""
    found = _APPROVAL_ID.fullmatch(approval)
    return found["tenant"] if found else None


def tenant_of_run(run: str) -> str | None:
    """Return the tenant of the id of a failed run; None for another text."""
    found = _RUN_ID.fullmatch(run)
    return found["tenant"] if found else None


class Keys:
    """The keys of one tenant."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        base = f"tk:{{{tenant}}}"
        self._base = base
        self.expiry = f"{base}:x"
        self.timers = f"{base}:timers"
        self.outbox = f"{base}:ev"
        self.jobs = f"{base}:rs"
        self.dead = f"{base}:dead"
        self.audit = f"{base}:au"
        self.audit_sealed = f"{base}:audit_sealed"
        self.audit_tree = f"{base}:audit_tree"
        self.retry = f"{base}:retry"
        self.fences = f"{base}:fences"
        self.members = f"{base}:members"
        self.sealed_by = f"{base}:sealed_by"
        self.format = f"{base}:format"
        self.stalled = f"{base}:stalled"
        self.stalled_waiting = f"{base}:stalled_waiting"
        self.stalled_parked = f"{base}:stalled_parked"
        self.messages_due = f"{base}:messages_due"
        """Sorted set: approvals by when their messages in Slack are looked at."""
        self.moved_channels = f"{base}:moved_channels"
        """Hash: the ids that channels have now, by the ones that they had before."""
        self.outdated = f"{base}:undrawn"
        """Sorted set: approvals whose card is missing or old, by when they are gone."""
        self.restore_counters = f"{base}:restore_counters"
        """Hash: the store's id, and a counter for each set of checkpoints."""
        self.frozen = f"{base}:frozen"
        """Hash: what is frozen of a tenant, and who is paused."""
        self.api_keys = f"{base}:api_keys"
        """Hash: the sealed API keys of a tenant, by their ids."""
        self.standing = f"{base}:standing"
        """Sorted set: standing approvals that may be in force, by when they end."""
        self.delegations = f"{base}:dg"
        """Hash: who stands in for whom; lives as long as the longest of them."""
        self.agents = f"{base}:agents"
        """Set: agents of a tenant that may have pending items, so `waiting` ones."""
        self.queue_groups = f"{base}:queue_groups"
        """Set: user groups that were named in a person queue."""
        self.seeded = f"{base}:seeded"
        """Hash: the seeded defect that is shown, its answer, and when the next is."""
        self.home_tabs = f"{base}:homes"
        """Hash: who used their Home tab lately, their filter, and what it shows."""

    def stalled_run(self, agent: str, thread: str) -> str:
        """Return the id of a thread's run: the tenant and a hash."""
        return f"run_{self.tenant}_{_hashed(agent, thread)}"

    def dropped(self, run: str) -> str:
        """String: mark of a run that is not advanced any more."""
        return f"{self._base}:dropped:{run}"

    def head(self, approval: str) -> str:
        """Hash of what scripts compare of an approval: rev, times, states, its seal."""
        return f"{self._base}:a:{approval}"

    def document(self, approval: str) -> str:
        """String: the JSON document of an approval."""
        return f"{self._base}:p:{approval}"

    def listed(self, approval: str) -> bytes:
        """Return by what sorted sets list an approval: the random half of its id."""
        found = _APPROVAL_ID.fullmatch(approval)
        # Junk is listed as it stands, so that it can be taken out.
        return bytes.fromhex(found["random"]) if found else approval.encode()

    def unlisted(self, member: bytes) -> str:
        """Return the id of an approval that is listed so.

        Raises:
            ValueError: when it is junk, and no text.
        """
        if len(member) == LISTED_BYTES:
            return approval_id(self.tenant, member.hex())
        return member.decode("utf-8")

    def suffix(self, key: str) -> str:
        """Return what follows the hash tag in a key."""
        return key.removeprefix(f"{self._base}:")

    def card(self, approval: str) -> str:
        """Hash: where a card stands in Slack and which rev it shows."""
        return f"{self._base}:card:{approval}"

    def short(self, short: str) -> str:
        """Set: the collected cards of a short id; see also `short_ids.lua`."""
        return f"{self._base}:short:{short}"

    def card_at(self, channel: str, ts: str) -> str:
        """String: which approval a message in Slack shows."""
        return f"{self._base}:at:{_hashed(channel, ts)}"

    def messages(self, approval: str) -> str:
        """Hash: where messages about an approval are in Slack, and how it ended."""
        return f"{self._base}:told:{approval}"

    def draft(self, approval: str, user: str, ts: str) -> str:
        """String: what a person wrote in a message under a card."""
        return f"{self._base}:draft:{_hashed(approval, user, ts)}"

    def turn(self, turn_key: str) -> str:
        """String: the verdicts of a submitted turn, for submitting it again."""
        return f"{self._base}:turn:{_half(turn_key)}"

    def approval_of_turn(self, turn_key: str, number: int) -> str:
        """Return the id of a turn's approval.

        It follows from the turn: if everything about the turn is gone from the store,
        and it is submitted again, its calls are those that the ledger knows.
        """
        return approval_id(self.tenant, _hashed(turn_key, str(number)))

    def begun(self, turn_key: str) -> str:
        """Hash: auto-approved calls of a turn: who began each, and its end."""
        return f"{self._base}:begun:{turn_key.removeprefix('sha256:')}"

    def run(self, run_ref: RunRef) -> str:
        """Sorted set: ended approvals of a run, inner agents' too, by their opening."""
        return f"{self._base}:run:{_hashed(run_ref.agent, run_ref.thread)}"

    def answered(self, run_ref: RunRef) -> str:
        """Sorted set: a run's newest answered approvals, for a day; scripts name it."""
        # A hash holds no colon, so only the kind of the key is replaced.
        return self.run(run_ref).replace(":run:", ":answered:")

    def thread_facts(self, agent: str, thread: str) -> str:
        """Hash: who asked in this thread, where in Slack, and what is open in it."""
        return f"{self._base}:tm:{_hashed(agent, thread)}"

    def questions(self, agent: str, thread: str) -> str:
        """Hash: until when other libraries ask something in this thread, by its id."""
        return f"{self._base}:ask:{_hashed(agent, thread)}"

    def lease(self, agent: str, thread: str) -> str:
        """Hash: who runs this thread now, and under which fence."""
        # With the tenant: checkpoints keep fences by this name, and tenants share them.
        return f"{self._base}:lease:{_hashed(self.tenant, agent, thread)}"

    def reservation(self, turn_key: str, uses: str) -> str:
        """String: what a turn that is being evaluated has reserved, for a minute."""
        return f"{self._base}:hold:{_hashed(turn_key, uses)}"

    def window(self, window: str, resource: str) -> str:
        """Sorted set: uses of one window for one resource by when each ends to count.

        Beside it, under the same name and ``:sum``, stands their running sum.
        """
        return f"{self._base}:w:{_hashed(window, resource)}"

    def http_answer(self, api_key: str, idempotency_key: str) -> str:
        """String: the answer to a write over HTTP, for a day."""
        return f"{self._base}:done:{_hashed(api_key, idempotency_key)}"

    def webhook(self, target: str) -> str:
        """Hash: how a program that receives webhooks did lately."""
        return f"{self._base}:hook:{_hashed(target)}"

    def waiting(self, agent: str) -> str:
        """Sorted set: an agent's pending items by when they expire."""
        return f"{self._base}:wait:{_hashed(agent)}"

    def person_queue(self, users: Sequence[str], groups: Sequence[str]) -> str:
        """Sorted set: what waits for the same people, by when it expires."""
        return f"{self.person_queues}{_hashed(*users, '', *groups)}"

    @property
    def person_queues(self) -> str:
        """What the names of all queues of people begin with."""
        return f"{self._base}:pq:"

    def queues_of(self, kind: str, name: str) -> str:
        """Set: the person queues in which a user or a user group is named."""
        return f"{self._base}:{_hashed(kind, name)}:queues"

    def requests_10m(self, agent: str) -> str:
        """Hash: how much an agent asked people for, by when it ends to count."""
        return f"{self._base}:asked:{_hashed(agent)}"

    def failures(self, agent: str) -> str:
        """Sorted set: an agent's failed executions by when they end to count."""
        return f"{self._base}:fail:{_hashed(agent)}"

    def rejections(self, agent: str) -> str:
        """String: how many of an agent's calls were rejected in a row."""
        return f"{self._base}:row:{_hashed(agent)}"

    def rejected(self, agent: str, thread: str) -> str:
        """Hash: calls that were rejected in a thread and why; its turns since then."""
        return f"{self._base}:no:{_hashed(agent, thread)}"

    def precedents(self, effect: str) -> str:
        """Hash: how the newest calls with one effect ended, by call."""
        return f"{self._base}:same:{_hashed(effect)}"

    def spot_checks(self, day: int) -> str:
        """String: about how many calls people were asked on a day, for two days."""
        return f"{self._base}:checked:{_hashed(str(day))}"

    def security(self, found: str) -> str:
        """String: mark of a security event that was told, for ten minutes."""
        return f"{self._base}:found:{_hashed(found)}"

    def nonce(self, request_digest: str) -> str:
        """String: a signed request that was seen."""
        return f"{self._base}:seen:{request_digest.removeprefix('sha256:')}"

    def message_kept(self, message: str) -> str:
        """String: a person's message that was kept for an agent."""
        return f"{self._base}:said:{_hashed(message)}"

    def view(self, view_id: str) -> str:
        """String: which item and version an open modal belongs to."""
        return f"{self._base}:view:{view_id}"

    def response_url(self, channel: str, ts: str) -> str:
        """String: where the message that somebody clicked on can be replaced."""
        return f"{self._base}:url:{_hashed(channel, ts)}"

    def opened(self, approval: str) -> str:
        """Hash: how far each reviewer has paged through an item's full view."""
        return f"{self._base}:seen_by:{approval}"


@lru_cache(maxsize=256)
def keys_of_tenant(tenant: str) -> Keys:
    """Return the keys of a tenant, made once: a click asks for them five times."""
    return Keys(tenant)


def _half(turn_key: str) -> str:
    return turn_key.removeprefix("sha256:")[:HALF]


# Each turn uses a dozen keys of the same few names.
@lru_cache(maxsize=1024)
def _hashed(*parts: str) -> str:
    # Hashed, because names come from outside: they may be long, or hold the braces of a
    # hash tag, which would move the key to another node. As a JSON list, so that ("a",
    # "bc") and ("ab", "c") differ.
    body = digest.canonical(list(parts))
    return digest.tagged_hash("keyturn/v1/key", body).removeprefix("sha256:")[:32]

"""Redis key names and lifetimes.

Every key starts with ``tk:{<tenant>}:``: all keys of a tenant share a hash tag, so one
script can touch any of them in a cluster (Redis Cluster specification, "Hash tags").
An approval's id contains the tenant, so a click alone identifies all keys.

Data in use never expires. An approval, its card's location, its turn's verdicts and its
run's list stay while one of its items is open. A thread's facts stay while its run is
active. The step that ends the last item or the run sets a lifetime of `RETENTION`. All
other keys are permanent or have a lifetime from the start.
"""

from __future__ import annotations

import re
from datetime import timedelta
from functools import lru_cache

from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import RunRef

RETENTION = timedelta(days=30)
"""How long an ended approval, its card and its thread are kept."""

KEEP_MS = int(RETENTION.total_seconds() * 1000)
"""`RETENTION` in milliseconds."""

NONCE_MS = 11 * 60 * 1000
"""Slightly more than twice Slack's five minutes: Bolt accepts future timestamps."""

MESSAGE_LIFETIME = RETENTION
"""How long a message is remembered: Slack sends an event again when it is edited."""

DRAFT_MS = 60 * 60 * 1000
"""How long a person's draft waits for the form that it will prefill."""

VIEW_MS = 24 * 60 * 60 * 1000
"""How long an open modal stays bound to its item."""

LEASE_MS = 15_000
"""Lifetime of a thread lease and of a claim without a heartbeat."""

HALF = 32
"""Hex digits of a hash in a key name or in the id of a turn's approval."""

LISTED_BYTES = 16
"""Length of an approval's member in a sorted set."""

# Ids come from clicks and agents: only a match may become a key.
_TENANT = r"(?P<tenant>[a-z0-9][a-z0-9_-]{0,63})"
_APPROVAL_ID = re.compile(rf"ap_{_TENANT}_(?P<random>[0-9a-f]{{32}})")
_RUN_ID = re.compile(rf"run_{_TENANT}_[0-9a-f]{{32}}")


def approval_id(tenant: str, bits: str) -> str:
    """Return an approval id: the tenant and 128 bits in hex."""
    return f"ap_{tenant}_{bits}"


def tenant_of_approval(approval: str) -> str | None:
    """Return the tenant of an approval id; None for a malformed id."""
    found = _APPROVAL_ID.fullmatch(approval)
    return found["tenant"] if found else None


def tenant_of_run(run: str) -> str | None:
    """Return the tenant of a stalled run's id; None for a malformed id."""
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
        self.audit = f"{base}:au"
        self.audit_tree = f"{base}:audit_tree"
        self.retry = f"{base}:retry"
        self.fences = f"{base}:fences"
        self.members = f"{base}:members"
        self.sealed_by = f"{base}:sealed_by"
        self.format = f"{base}:format"
        self.stalled = f"{base}:stalled"
        self.messages_due = f"{base}:messages_due"
        """Sorted set: approvals by the time to update their messages in Slack."""
        self.moved_channels = f"{base}:moved_channels"
        """Hash: former channel id to current channel id."""
        self.outdated = f"{base}:undrawn"
        """Sorted set: approvals with a missing or outdated card, by their expiry."""
        self.restore_counters = f"{base}:restore_counters"
        """Hash: the store's id, and a counter for each checkpoint database."""
        self.frozen = f"{base}:frozen"
        """Hash: freezes of the tenant, and paused people."""
        self.definitions = f"{base}:definitions"
        """Hash: approved tool definitions, by agent and server."""
        self.api_keys = f"{base}:api_keys"
        """Hash: the tenant's sealed API keys, by id."""
        self.standing = f"{base}:standing"
        """Sorted set: standing approvals that may be in force, by their end."""
        self.delegations = f"{base}:dg"
        """Hash: delegations; expires with the longest of them."""
        self.installations = f"{base}:installations"
        """Hash: encrypted installations of the Slack app, by workspace or organization.
        """
        self.seeded = f"{base}:seeded"
        """String: the current seeded defect, its answer, and the time of the next one.
        """
        self.home_tabs = f"{base}:homes"
        """Hash: recent users of the Home tab, with their filter and its content."""

    def stalled_run(self, agent: str, thread: str) -> str:
        """Return the id of a thread's run: the tenant and a hash."""
        return f"run_{self.tenant}_{_hashed(agent, thread)}"

    def dropped(self, run: str) -> str:
        """String: marks a run that is no longer advanced."""
        return f"{self._base}:dropped:{run}"

    def head(self, approval: str) -> str:
        """Hash: fields that scripts compare: revision, times, states and seal."""
        return f"{self._base}:a:{approval}"

    def document(self, approval: str) -> str:
        """String: the JSON document of an approval."""
        return f"{self._base}:p:{approval}"

    def listed(self, approval: str) -> bytes:
        """Return an approval's member in sorted sets: the random half of its id."""
        found = _APPROVAL_ID.fullmatch(approval)
        # A malformed id is its own member, so that it can be removed.
        return bytes.fromhex(found["random"]) if found else approval.encode()

    def unlisted(self, member: bytes) -> str:
        """Return the approval id of a member of a sorted set.

        Raises:
            ValueError: the member is not valid UTF-8.
        """
        if len(member) == LISTED_BYTES:
            return approval_id(self.tenant, member.hex())
        return member.decode("utf-8")

    def suffix(self, key: str) -> str:
        """Return the part of a key after the hash tag."""
        return key.removeprefix(f"{self._base}:")

    def card(self, approval: str) -> str:
        """Hash: a card's location in Slack and the revision it shows."""
        return f"{self._base}:card:{approval}"

    def short(self, short: str) -> str:
        """String: approvals and collected cards with this short id, as `listed`."""
        return f"{self._base}:short:{short}"

    def card_at(self, channel: str, ts: str) -> str:
        """String: the approval that a message in Slack shows."""
        return f"{self._base}:at:{_hashed(channel, ts)}"

    def messages(self, approval: str) -> str:
        """Hash: messages in Slack about an approval, and its outcome."""
        return f"{self._base}:told:{approval}"

    def notified(self, whom: str) -> str:
        """Sorted set: cards of the last hour that notified a person or a user group."""
        return f"{self._base}:told:{_hashed(whom)}"

    def draft(self, approval: str, user: str, ts: str) -> str:
        """String: the text of a person's message under a card."""
        return f"{self._base}:draft:{_hashed(approval, user, ts)}"

    def turn(self, turn_key: str) -> str:
        """String: the verdicts of a submitted turn, for a repeated submission."""
        return f"{self._base}:turn:{_half(turn_key)}"

    def approval_of_turn(self, turn_key: str, number: int) -> str:
        """Return the id of a turn's approval.

        The id is derived from the turn. If the store lost the turn and it is submitted
        again, the ledger therefore recognizes its calls.
        """
        return approval_id(self.tenant, _hashed(turn_key, str(number)))

    def begun(self, turn_key: str) -> str:
        """Hash: a turn's auto-approved calls: the owner of each run, and its end."""
        return f"{self._base}:begun:{turn_key.removeprefix('sha256:')}"

    def run(self, run_ref: RunRef) -> str:
        """Sorted set: ended approvals of a run and its nested runs, by creation."""
        return f"{self._base}:run:{_hashed(run_ref.agent, run_ref.thread)}"

    def open_of(self, run_ref: RunRef) -> str:
        """Sorted set: the same for approvals with an open item; used by scripts."""
        return f"{self._base}:open:{_hashed(run_ref.agent, run_ref.thread)}"

    def answered(self, run_ref: RunRef) -> str:
        """Sorted set: a run's latest answered approvals, for a day; used by scripts."""
        return f"{self._base}:answered:{_hashed(run_ref.agent, run_ref.thread)}"

    def thread_facts(self, agent: str, thread: str) -> str:
        """Hash: a thread's requesters, its location in Slack, and its open run."""
        return f"{self._base}:tm:{_hashed(agent, thread)}"

    def questions(self, agent: str, thread: str) -> str:
        """Hash: deadlines of other libraries' interrupts in a thread, by id."""
        return f"{self._base}:ask:{_hashed(agent, thread)}"

    def lease(self, agent: str, thread: str) -> str:
        """Hash: the current holder of a thread's lease, and its fence."""
        # Includes the tenant: checkpoint databases store fences by this name, and
        # tenants may share a database.
        return f"{self._base}:lease:{_hashed(self.tenant, agent, thread)}"

    def reservation(self, turn_key: str, uses: str) -> str:
        """String: spending reserved for a minute by a turn under evaluation."""
        return f"{self._base}:hold:{_hashed(turn_key, uses)}"

    def window(self, window: str, resource: str) -> str:
        """Sorted set: uses in one window for one resource, by their expiry.

        The key with the suffix ``:sum`` contains their running sum.
        """
        return f"{self._base}:w:{_hashed(window, resource)}"

    def left_calls(self, place: str) -> str:
        """Sorted set: calls of a place that may be joined, by the end of their wait."""
        return f"{self._base}:left:{_hashed(place)}"

    def joined_call(self, place: str) -> str:
        """String: the earlier call that the call at this place has joined."""
        return f"{self._base}:joined:{_hashed(place)}"

    def webhook(self, target: str) -> str:
        """String: recent deliveries to a webhook target."""
        return f"{self._base}:hook:{_hashed(target)}"

    def waiting(self, agent: str) -> str:
        """Sorted set: an agent's pending items, by their expiry."""
        return f"{self._base}:wait:{_hashed(agent)}"

    def requests_10m(self, agent: str) -> str:
        """Hash: an agent's recent requests for approval, by their expiry."""
        return f"{self._base}:asked:{_hashed(agent)}"

    def failures(self, agent: str) -> str:
        """Sorted set: an agent's failed executions, by their expiry."""
        return f"{self._base}:fail:{_hashed(agent)}"

    def rejections(self, agent: str) -> str:
        """String: how many of an agent's calls in a row were rejected."""
        return f"{self._base}:row:{_hashed(agent)}"

    def rejected(self, agent: str, thread: str) -> str:
        """Hash: a thread's rejected calls with reasons, and the turns since then."""
        return f"{self._base}:no:{_hashed(agent, thread)}"

    def precedents(self, effect: str) -> str:
        """Hash: results of the latest calls with one effect, by call."""
        return f"{self._base}:same:{_hashed(effect)}"

    def spot_checks(self, day: int) -> str:
        """String: calls put to reviewers on one day; expires after two days."""
        return f"{self._base}:checked:{_hashed(str(day))}"

    def security(self, found: str) -> str:
        """String: marks a security event as reported, for ten minutes."""
        return f"{self._base}:found:{_hashed(found)}"

    def install_state(self, state: str) -> str:
        """String: marks a `state` of the installation pages as unused."""
        return f"{self._base}:install_state:{_hashed(state)}"

    def renewing(self, installation: str) -> str:
        """String: marks an installation whose token a process is renewing."""
        return f"{self._base}:renewing:{_hashed(installation)}"

    def nonce(self, request_digest: str) -> str:
        """String: marks a signed request as seen."""
        return f"{self._base}:seen:{request_digest.removeprefix('sha256:')}"

    def message_kept(self, message: str) -> str:
        """String: marks a person's message as accepted for an agent."""
        return f"{self._base}:said:{_hashed(message)}"

    def view(self, view_id: str) -> str:
        """String: the item and version of an open modal."""
        return f"{self._base}:view:{view_id}"

    def opened(self, approval: str) -> str:
        """Hash: each reviewer's progress through an item's full view."""
        return f"{self._base}:seen_by:{approval}"


@lru_cache(maxsize=256)
def keys_of_tenant(tenant: str) -> Keys:
    """Return a tenant's keys, cached: each click needs them five times."""
    return Keys(tenant)


def hash_of(key: str) -> str:
    """Return the hash at the end of a key, in hex."""
    return key.rpartition(":")[2]


def _half(turn_key: str) -> str:
    return turn_key.removeprefix("sha256:")[:HALF]


# Cached: each turn uses a dozen keys made from the same few names.
@lru_cache(maxsize=1024)
def _hashed(*parts: str) -> str:
    # Names come from outside: they may be long, or contain the braces of a hash tag and
    # so move the key to another node. The JSON list keeps ("a", "bc") and ("ab", "c")
    # apart.
    body = digest.canonical(list(parts))
    return digest.tagged_hash("keyturn/v1/key", body).removeprefix("sha256:")[:32]

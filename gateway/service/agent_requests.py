"""Give agents what people ask them for."""

from __future__ import annotations

import secrets

from twokey.gateway.approvals.record import Origin
from twokey.gateway.protocol.records import Person
from twokey.gateway.service.away_parts import of_each
from twokey.gateway.service.tenant_service import PolicyService
from twokey.gateway.store.jobs import Job, JobKind
from twokey.gateway.store.threads import ThreadFacts


class AgentRequests(PolicyService):
    """What people of a tenant ask its agents for."""

    async def ask_agent(
        self,
        agent: str,
        thread: str,
        text: str,
        *,
        requester: Person,
        origin: Origin | None,
        message_key: str = "",
    ) -> bool:
        """Give an agent a person's message; a worker runs it.

        Everybody who spoke in the thread is a principal of every call that comes of
        it. A message into a thread that waits supersedes what waits there.

        Args:
            agent: who is asked.
            thread: where.
            text: what.
            requester: who asks.
            origin: where in Slack the agent's words belong.
            message_key: names the message where it may be delivered again.

        Returns:
            False when this message was kept before: it runs once.

        Raises:
            StoreUnavailable: when it is not known to be kept; deliver it again.
            TooManySpeakers: when more people spoke here than are remembered.
        """

        def change(before: ThreadFacts) -> ThreadFacts:
            return before.asked_by(requester).with_(origin=origin)

        job = Job(
            kind=JobKind.START,
            tenant=self._tenant,
            agent=agent,
            thread=thread,
            input=text,
            id=secrets.token_hex(8),
        )
        key, keys = message_key or job.id, self._keys_of(agent)
        # An edited message may name another agent, whose shard has not kept it.
        if len(self._parts) > 1 and not await self._store.threads.is_for(
            self._own, self._tenant, key, agent
        ):
            return False
        return await self._store.threads.ask(keys, job, key, change)

    async def was_asked(self, message_key: str) -> bool:
        """Return whether a message was kept for an agent."""
        threads = self._store.threads
        found = await of_each(
            self._parts, lambda keys: threads.was_asked(keys, self._tenant, message_key)
        )
        return any(found)

"""Keep the tool definitions of other servers that people approved.

A server may change what its tools say about themselves, and with that what a model does
with them. The approval is an ordinary call (`DEFINITIONS_TOOL`): people see it on a
card, and it is claimed like any other. Its claim is the only way to a kept definition.
"""

from __future__ import annotations

from pydantic import ValidationError

from keyturn.gateway.approvals.record import approval_of
from keyturn.gateway.errors import NotAllowed
from keyturn.gateway.protocol.http_api import (
    DEFINITIONS_TOOL,
    Definitions,
    DefinitionsQuestion,
    DefinitionsToApprove,
)
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.service.tenant_service import TenantService


class DefinitionService(TenantService):
    """The approved definitions of one tenant."""

    async def definitions(self, asked: DefinitionsQuestion) -> Definitions:
        """Return the approved definitions of a server's tools."""
        store = self._store.definitions
        return await store.read(self._keys, asked.agent, asked.server)

    async def keep_definitions(self, item_id: str, fence: int) -> bool:
        """Keep the definitions of a claimed call; False when the claim is lost.

        They come from the record that people decided on, never from the request.

        Raises:
            NotAllowed: it is another call, or there are too many definitions.
        """
        approval_id, index = approval_of(item_id)
        loaded = await self._load(approval_id)
        if loaded is None or index >= len(loaded.approval.items):
            return False
        item = loaded.approval.items[index]
        if (item.state, item.fence) != (ItemState.EXECUTING, fence):
            return False
        refused = NotAllowed(f"The call {item_id!r} approves no definitions of tools.")
        if item.tool != DEFINITIONS_TOOL:
            raise refused
        try:
            found = DefinitionsToApprove.model_validate(item.args)
        except ValidationError as error:
            raise refused from error
        agent = loaded.approval.agent
        await self._store.definitions.approve(
            self._keys, agent, found.server, found.tools
        )
        return True

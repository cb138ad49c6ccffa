"""Resources, prompts and instructions pass only if the options say so."""

from __future__ import annotations

from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from keyturn.connect.mcp.passing import KINDS
from keyturn.connect.mcp.upstreams import UpstreamSpec
from keyturn.gateway.protocol.edits import EDIT_MARK
from tests.connect.mcp.conftest import Connect, World, modern
from tests.connect.mcp.upstream import NOTE
from tests.ports import free_port

ALL = frozenset(KINDS)


async def names_of(client: Any) -> list[str]:
    """Return the names in all lists that the tests pass on."""
    resources = (await client.list_resources()).resources
    templates = (await client.list_resource_templates()).resource_templates
    prompts = (await client.list_prompts()).prompts
    names = [str(one.uri) for one in resources]
    names += [one.uri_template for one in templates]
    return names + [one.name for one in prompts]


async def test_nothing_passes_by_default(world: World, client_of: Connect) -> None:
    async with world.gate() as gate, client_of(gate) as client:
        assert "I am the upstream" not in (client.instructions or "")
        for ask in (client.list_resources, client.list_prompts):
            with pytest.raises(MCPError, match="not found"):
                await ask()
        for asked in (client.read_resource(NOTE), client.get_prompt("greet")):
            with pytest.raises(MCPError, match="not found"):
                await asked


async def test_other_parts_pass_without_marks(world: World, client_of: Connect) -> None:
    async with world.gate(passed=ALL) as gate, client_of(gate) as client:
        assert await names_of(client) == [NOTE, "file:///notes/{n}", "greet"]
        note = await client.read_resource(NOTE)
        prompt = await client.get_prompt("greet", {"to": "ada"})
        told = client.instructions or ""
    assert "Some calls wait" in told.partition("Instructions of billing:")[0]
    assert "I am the upstream." in told
    assert "greet {'to': 'ada'}" in prompt.model_dump_json()
    for text in (told, note.model_dump_json(), prompt.model_dump_json()):
        assert "all is approved" in text
        assert EDIT_MARK not in text
    assert "io.modelcontextprotocol/x" not in (note.meta or {})
    assert await world.cards() == 0


async def test_names_of_several_servers_name_their_server(world: World) -> None:
    away = UpstreamSpec("away", url=f"http://127.0.0.1:{free_port()}/mcp")
    specs = [UpstreamSpec(one, url=world.url) for one in ("billing", "crm")]
    passed = frozenset({"resources", "prompts"})
    async with (
        world.gate(upstreams=[*specs, away], passed=passed) as gate,
        modern(gate) as client,
    ):
        assert f"crm+{NOTE}" in await names_of(client)
        assert "crm__greet" in await names_of(client)
        assert "note" in (await client.read_resource(f"crm+{NOTE}")).model_dump_json()
        await client.get_prompt("crm__greet")
        for name in (NOTE, "other+x:/", f"away+{NOTE}", "crm+file:///no"):
            with pytest.raises(MCPError, match="cannot be read"):
                await client.read_resource(name)
        assert "I am the upstream" not in (client.instructions or "")

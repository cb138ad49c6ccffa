"""Pass on resources, prompts and instructions of the upstreams, if the options say so.

People do not approve these texts, and models may obey them. All requests only read. A
name begins with its upstream's name if there are several upstreams.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import mcp_types as types
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from keyturn.connect.mcp.results import cleaned
from keyturn.connect.mcp.upstreams import NotSent, Upstream
from keyturn.gateway.protocol import edits

logger = logging.getLogger(__name__)

KINDS = RESOURCES, PROMPTS, INSTRUCTIONS = "resources", "prompts", "instructions"

Handler = Callable[[Any, Any], Awaitable[Any]]


class Passing:
    """Answers requests about resources and prompts.

    Args:
        upstreams: the servers, by name.
        kinds: which of `KINDS` are passed on.
    """

    def __init__(
        self, upstreams: Mapping[str, Upstream], kinds: frozenset[str]
    ) -> None:
        self._upstreams, self._kinds = upstreams, kinds

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers, by their names in the SDK."""
        listing = self._lister(types.ListResourcesResult, "resources", "uri", "+")
        templates = self._lister(
            types.ListResourceTemplatesResult, "resource_templates", "uri_template", "+"
        )
        prompts = self._lister(types.ListPromptsResult, "prompts", "name", "__")
        every: dict[str, tuple[str, Handler]] = {
            "on_list_resources": (RESOURCES, listing),
            "on_list_resource_templates": (RESOURCES, templates),
            "on_read_resource": (RESOURCES, self._reader("read_resource", "uri", "+")),
            "on_list_prompts": (PROMPTS, prompts),
            "on_get_prompt": (PROMPTS, self._reader("get_prompt", "name", "__")),
        }
        return {name: one for name, (of, one) in every.items() if of in self._kinds}

    async def instructions(self) -> str:
        """Return the instructions of the servers that answer; "" for none."""

        async def ask(session: ClientSession) -> str:
            return session.instructions or ""

        found = list[str]()
        for name, upstream in self._upstreams.items():
            try:
                if INSTRUCTIONS in self._kinds and (text := await upstream.read(ask)):
                    found.append(f"\n\nInstructions of {name}:\n{edits.defuse(text)}")
            except NotSent as error:
                logger.warning("mcp.no_instructions upstream=%s %s", name, error)
        return "".join(found)

    def _lister(
        self, kind: type[types.Result], what: str, field: str, mark: str
    ) -> Handler:
        """Return the handler of a list, with the server's name before ``field``."""

        async def listed(_ctx: object, _params: object) -> types.Result:
            found = list[Any]()
            for name, upstream in self._upstreams.items():
                start = f"{name}{mark}" if len(self._upstreams) > 1 else ""
                try:
                    rows = await upstream.listed(what)
                except NotSent as error:
                    logger.warning("mcp.unlisted upstream=%s %s", name, error)
                    continue
                for row in rows:
                    shown = start + getattr(row, field)
                    found.append(row.model_copy(update={field: shown}))
            return cleaned(kind.model_validate({what: found, "ttl_ms": 0}))

        return listed

    def _reader(self, method: str, field: str, mark: str) -> Handler:
        """Return the handler that reads one of a list."""

        async def read(_ctx: object, params: Any) -> types.Result:  # noqa: ANN401 - two
            server, name = next(iter(self._upstreams)), getattr(params, field)
            if len(self._upstreams) > 1:
                server, _, name = name.partition(mark)
            more = (params.arguments,) if method == "get_prompt" else ()

            try:
                found: types.Result = await self._upstreams[server].read(
                    lambda session: getattr(session, method)(name, *more)
                )
                return cleaned(found)
            except (KeyError, NotSent) as error:
                raise MCPError(INVALID_PARAMS, f"It cannot be read: {error}") from error

        return read

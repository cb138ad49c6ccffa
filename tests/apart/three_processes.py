"""Two scripts of the demo with a gateway, a bot and an agent in three processes.

The agent's process gets the gateway's URL and an API key. It has neither the address of
the store nor any of Keyturn's secrets.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import yaml
from typing_extensions import override

from keyturn.cli.demo_context import DemoContext, Say, expect
from keyturn.cli.demo_scripts import approve, edit
from keyturn.cli.demo_stack import CHANNEL, FIRST_REQUEST, REQUESTER, DemoStack
from keyturn.gateway.approvals.record import Approval
from tests.apart.house import House, Member, Watched, open_house

ROOT = Path(__file__).parents[2]

Script = Callable[[DemoContext], Awaitable[None]]


@dataclass
class ApartContext(Watched):
    """A script whose agent runs in a separate process.

    Attributes:
        house: the other processes.
        thread: the agent's.
    """

    house: House = field(kw_only=True)
    thread: str = field(kw_only=True)
    agent: Member | None = None

    @override
    async def ask(self, text: str = FIRST_REQUEST) -> tuple[str, Approval]:
        """Start the agent's process with a person's request; wait for the card."""
        before = await self.ana.messages(CHANNEL)
        self.asked_at = str(before[-1]["ts"]) if before else ""
        self.agent = await self.house.start(
            *(self.thread, "examples.agent_apart", self.thread, text),
            KEYTURN_DEMO_LEDGER=str(self.ledger),
            AGENT_THREADS=str(self.house.folder / f"{self.thread}.sqlite"),
        )
        self.say("agent.asked", by=REQUESTER, text=text)
        return await self.card_after(self.asked_at)

    @override
    async def final_message(self) -> str:
        """Wait for the end of the agent's process, which prints its answer."""
        assert self.agent is not None
        code, words = await self.agent.ended(), self.house.said(self.thread).strip()
        expect(code == 0, f"The agent's process failed: {words}")
        self.say("agent.said", text=words)
        return words


async def play_apart(
    folder: Path, say: Say, scripts: Sequence[Script] = (approve, edit)
) -> None:
    """Play scripts of the demo, each with an agent in a separate process.

    Raises:
        KeyturnError: when the result differs from that in one process.
    """
    document = yaml.safe_load((ROOT / "keyturn.yml").read_text(encoding="utf-8"))
    del document["agents"]
    async with open_house(folder, document=document) as house:
        for script in scripts:
            context = ApartContext(
                # A script uses only the sandbox of the one-process demo.
                DemoStack(house.sandbox, cast("Any", None), cast("Any", None)),
                say,
                folder / f"{script.__name__}.jsonl",
                folder / "outage",
                reviews=house.reviews,
                house=house,
                thread=script.__name__,
            )
            await script(context)


async def main() -> None:
    """Play the scripts in a temporary folder, and print each step."""

    def say(event: str, **fields: object) -> None:
        rest = "  ".join(f"{name}={value}" for name, value in fields.items())
        print(f"{event:<20} {rest}")  # noqa: T201 - what `make demo-apart` shows

    with tempfile.TemporaryDirectory(prefix="keyturn-") as folder:
        await play_apart(Path(folder), say)


if __name__ == "__main__":
    asyncio.run(main())

"""The folder that all processes of one agent share, and its tool."""

from __future__ import annotations

import asyncio
from pathlib import Path

ARGS = {"amount": 5, "to": "ada"}


class Place:
    """Where a durable agent keeps its saved run, and where its tool acts."""

    def __init__(self, folder: Path) -> None:
        self.saved, self.requests = folder / "saved", folder / "requests"
        self.paid, self.may_end = folder / "paid", folder / "may-end"

    async def pay(self, amount: int, to: str) -> str:
        """Pay; without the file ``may-end``, never return."""
        with self.paid.open("a", encoding="utf-8") as file:
            file.write(f"{amount} to {to}\n")
        print("begun", flush=True)  # noqa: T201 - to the test
        if not self.may_end.exists():
            await asyncio.Event().wait()
        return f"paid {amount} to {to}"

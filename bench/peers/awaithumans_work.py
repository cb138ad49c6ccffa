"""The work of the benchmark on awaithumans; run by the peers' own Python.

The agent waits by `await_human`, its direct mode: its server looks for the answer once
a second. In its durable mode the answer comes by a webhook, sent every five seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import tempfile
import time
from pathlib import Path

import httpx
from awaithumans import await_human
from pydantic import BaseModel

_START_S = 60.0


class Refund(BaseModel):
    """What the person sees."""

    order: str
    amount: float


class Answer(BaseModel):
    """What the person decides."""

    approved: bool


async def main(count: int) -> dict[str, list[float]]:
    """Return milliseconds from a decision to the first line of the tool."""
    with tempfile.TemporaryDirectory(prefix="tk-bench-") as folder:
        # The client finds the server and its token through a file in the home folder.
        os.environ["HOME"] = folder
        server = await asyncio.create_subprocess_exec(
            *[
                Path(sys.executable).with_name("awaithumans"),
                *("dev", "--host", "127.0.0.1", "--port", str(_free_port())),
                *("--db-path", f"{folder}/dev.db", "--log-level", "ERROR"),
            ],
            cwd=folder,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            url, headers = await _found(Path(folder))
            async with httpx.AsyncClient(base_url=url, headers=headers) as client:
                taken = [await _once(client, number) for number in range(count + 1)]
        finally:
            server.terminate()
            await server.wait()
    return {"resume_ms": taken[1:]}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


async def _found(home: Path) -> tuple[str, dict[str, str]]:
    """Return address and headers once the server answers."""
    place = home / ".awaithumans-dev.json"
    async with asyncio.timeout(_START_S):
        while True:
            if place.exists():
                found = json.loads(place.read_text())
                headers = {"Authorization": f"Bearer {found['admin_token']}"}
                try:
                    async with httpx.AsyncClient(headers=headers) as client:
                        (
                            await client.get(f"{found['url']}/api/tasks")
                        ).raise_for_status()
                    return found["url"], headers
                except httpx.HTTPError:
                    pass
            await asyncio.sleep(0.1)


async def _once(client: httpx.AsyncClient, number: int) -> float:
    begun: list[float] = []

    async def agent() -> None:
        answer = await await_human(
            task=f"Refund {number}",
            payload_schema=Refund,
            payload=Refund(order=f"order-{number}", amount=49.5),
            response_schema=Answer,
            timeout_seconds=600,
        )
        assert answer.approved
        begun.append(time.perf_counter())

    running = asyncio.create_task(agent())
    async with asyncio.timeout(_START_S):
        while True:
            tasks = (await client.get("/api/tasks")).json()
            mine = [one for one in tasks if one["task"] == f"Refund {number}"]
            if mine:
                break
            await asyncio.sleep(0.02)
    # The agent's poll has to be waiting; moments within its pause are spread evenly.
    await asyncio.sleep(0.5 + number * 0.6180339887 % 1)
    began = time.perf_counter()
    body = {"response": {"approved": True}, "completed_via_channel": "api"}
    (
        await client.post(f"/api/tasks/{mine[0]['id']}/complete", json=body)
    ).raise_for_status()
    await running
    return (begun[0] - began) * 1000


if __name__ == "__main__":
    sys.stdout, real = sys.stderr, sys.stdout
    json.dump(asyncio.run(main(int(sys.argv[1]))), real)

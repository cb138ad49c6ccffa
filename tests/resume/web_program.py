"""A web application that opens a Keyturn in every request, as many would write it.

Started by the tests: ``python -m tests.resume.web_program SOCKET WORKERS``.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from keyturn.gateway.embed import Keyturn
from keyturn.gateway.policy.load import load_policy
from tests.resume import sample_tools
from tests.resume.resume_stack import POLICY

DATA, STORE = "WEB_DATA", "WEB_STORE"
RULES = load_policy(POLICY, "policy.yml")

app = FastAPI()


@app.get("/look_up/{order}")
async def look_up(order: str) -> dict[str, str]:
    """Have the agent look up an order, in a separate thread."""
    asked = {
        "messages": [
            {"role": "user", "content": f'[["look_up", {{"order": "{order}"}}]]'}
        ]
    }
    folder, url = Path(os.environ[DATA]), os.environ.get(STORE) or None
    async with Keyturn(policy=RULES, data_dir=folder, url=url) as tk:
        final = await tk.run(
            sample_tools.graph, asked, thread_id=order, agent="shop", timeout_s=50
        )
    return {"words": final["messages"][-1].text}


@app.get("/worker")
async def worker(block: str = "") -> int:
    """Return the worker's process; if a file is named, make it and wait for its end.

    A blocked worker accepts no connection.
    """
    if block:
        file = Path(block)
        file.touch()  # noqa: ASYNC240 - this is to block
        while file.exists():  # noqa: ASYNC240
            time.sleep(0.01)  # noqa: ASYNC251
    return os.getpid()


if __name__ == "__main__":
    uvicorn.run(
        "tests.resume.web_program:app",
        uds=sys.argv[1],
        workers=int(sys.argv[2]),
        log_level="warning",
        # On a busy machine the imports of a worker take longer than the usual 5 s.
        timeout_worker_healthcheck=120,
    )

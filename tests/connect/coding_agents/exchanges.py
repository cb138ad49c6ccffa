"""Exchanges of the real client with the gateway, recorded once and played again.

A case is what the model does and what people decide. The deep level plays it with the
real client, and writes its exchanges if ``KEYTURN_RECORD`` is set. Every level plays
the recorded requests, and compares the answers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from keyturn.gateway.api.server import Api
from keyturn.gateway.approvals.decisions import Approve, Decision, Edit, Reject, Respond
from keyturn.gateway.trust.api_keys import ApiKey
from tests.connect.coding_agents.fake_model import Call

FOLDER = Path(__file__).with_name("recorded")
FILE = "made.txt"


def bash(command: str) -> Call:
    """Return a call of the shell."""
    return "Bash", {"command": command, "description": "Do it"}


EXPIRES = "expires"
End = Decision | str
"""What becomes of a call that waits for people."""


@dataclass(frozen=True)
class Case:
    """The calls of the model, and the decisions of people.

    Attributes:
        calls: the calls of each turn of the model.
        ends: for each call that waits, in order.
        made: content of the file that the calls make; None if nothing ran.
        told: texts that the model reads afterwards.
        states: states of the calls at the end.
        permissions: permission rules of the client's settings.
        reported: for each call that was handed over, whether the client reports that it
            ran; None without a report.
    """

    calls: Sequence[Sequence[Call]]
    ends: Sequence[End] = ()
    made: str | None = None
    told: Sequence[str] = ()
    states: Sequence[str] = ()
    permissions: dict[str, Any] = field(default_factory=dict[str, Any])
    reported: Sequence[bool | None] = ()


WRITE = bash(f"echo one > {FILE}")
APPROVED: dict[str, Any] = {"ends": [Approve()], "states": ["handed_over"]}

CASES = {
    "approve": Case([[WRITE]], made="one\n", reported=[True], **APPROVED),
    "edit": Case(
        [[WRITE]],
        [Edit(args={"command": f"echo two > {FILE}"}, reason="two is better")],
        made="two\n",
        told=["two is better", f"echo two > {FILE}"],
        states=["handed_over"],
        reported=[True],
    ),
    "reject": Case(
        [[WRITE]],
        [Reject(reason="not on Friday")],
        told=["rejected this call", "not on Friday"],
        states=["rejected"],
    ),
    "respond": Case(
        [[WRITE]],
        [Respond(message="it exists already")],
        told=["it exists already"],
        states=["answered"],
    ),
    "expire": Case([[WRITE]], [EXPIRES], told=["in time"], states=["expired"]),
    "fails": Case(
        [[bash(f"echo one > {FILE}; exit 3")]],
        made="one\n",
        told=["Exit code 3"],
        reported=[False],
        **APPROVED,
    ),
    # The settings' own rule wins over the approval.
    "deny_rule": Case(
        [[WRITE]],
        permissions={"deny": ["Bash(echo *)"]},
        told=["denied"],
        reported=[None],
        **APPROVED,
    ),
    "parallel": Case(
        [[bash(f"echo {n} >> {FILE}") for n in range(3)]],
        [Approve(), Reject(), Approve()],
        made="0\n2\n",
        told=["rejected this call"],
        states=["handed_over", "rejected", "handed_over"],
        reported=[True, None, True],
    ),
    "quiet": Case([[("Read", {"file_path": "notes.txt"})]], told=["the notes"]),
}


CODEX_WRITE: Call = ("exec_command", {"cmd": f"echo one > {FILE}"})
CODEX_CASES = {
    "codex_approve": Case([[CODEX_WRITE]], made="one\n", **APPROVED),
    "codex_reject": Case(
        [[CODEX_WRITE]],
        [Reject(reason="not on Friday")],
        told=["not on Friday"],
        states=["rejected"],
    ),
}


def keep(name: str, exchanges: list[dict[str, Any]], home: Path) -> None:
    """Write the exchanges of a case without this machine's folders, if asked to."""
    if not os.environ.get("KEYTURN_RECORD"):
        return
    for one in exchanges:
        one["request"]["transcript_path"] = "/home/dan/transcript.jsonl"
    text = json.dumps(exchanges, indent=1).replace(str(home), "/home/dan")
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text(f"{text}\n")


def record(api: Api) -> list[dict[str, Any]]:
    """Return a list of the exchanges of hooks from now on."""
    found: list[dict[str, Any]] = []

    def recording(answer: Callable[..., Any]) -> Any:
        async def both(key: ApiKey, request: web.BaseRequest) -> Any:
            reply = await answer(key, request)
            body = json.loads(await request.read())
            found.append({"request": body, "reply": json.loads(reply.text)})
            return reply

        return both

    api.routes = {
        path: route._replace(answer=recording(route.answer))
        for path, route in api.routes.items()
    }
    return found

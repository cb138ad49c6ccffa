"""Ask the gateway about a call of Codex, from a command hook.

Codex runs a call whose hook fails, unless the hook exits with 2 and writes a reason to
stderr. So every unclear answer raises `NoAnswer`. Codex starts the hook for each call,
so this module has only cheap imports.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
from collections.abc import Mapping
from typing import cast
from urllib.parse import urlsplit

from keyturn.connect.coding_agents import ANSWER_HEADER, CODEX, TIMEOUT_S
from keyturn.gateway.errors import KeyturnError

_BLOCKED = 2
"""The only exit code with which Codex blocks the call."""

_TOO_SLOW = (
    "This call did not run: the approval gateway is too slow. Try it again later, or "
    "tell the user.\n"
)
_LONGEST = 1024 * 1024
_KEY_REFUSED = {http.client.UNAUTHORIZED, http.client.FORBIDDEN}
_OTHER_KEY = (
    " Ask the user to set KEYTURN_API_KEY to another key: "
    "'keyturn api-keys create NAME --agent AGENT' makes one."
)


class NoAnswer(KeyturnError):
    """The gateway gave no usable answer, so the call must not run."""


def run(env: Mapping[str, str]) -> int:
    """Answer the hook's request on stdin; return the exit code.

    Args:
        env: ``KEYTURN_GATEWAY`` is the gateway's URL, ``KEYTURN_API_KEY`` its key.
    """
    # The client's timeout is for each read; many slow reads would outlast Codex.
    timer = threading.Timer(TIMEOUT_S, _end)
    timer.daemon = True
    timer.start()
    try:
        url, key = env.get("KEYTURN_GATEWAY", ""), env.get("KEYTURN_API_KEY", "")
        sys.stdout.write(ask(sys.stdin.buffer.read(), url, key))
        sys.stdout.flush()
    except Exception as error:  # noqa: BLE001 - each failure has to block the call
        sys.stderr.write(f"{str(error) or type(error).__name__}\n")
        return _BLOCKED
    finally:
        timer.cancel()
    return 0


def _end() -> None:
    os.write(2, _TOO_SLOW.encode())
    os._exit(_BLOCKED)


def ask(body: bytes, url: str, api_key: str) -> str:
    """Send a hook's request, and return the text for its stdout.

    Args:
        body: the JSON that Codex wrote to the hook's stdin.
        url: URL of the gateway.
        api_key: its API key.

    Raises:
        NoAnswer: with a sentence for the model.
    """
    if not url or not api_key:
        raise NoAnswer(
            "This call did not run: KEYTURN_GATEWAY or KEYTURN_API_KEY is not set. Ask "
            "the user to set both for Codex."
        )
    parts = urlsplit(url)
    connect = (
        http.client.HTTPSConnection
        if parts.scheme == "https"
        else http.client.HTTPConnection
    )
    connection = connect(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
    headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
    try:
        path = f"{parts.path.rstrip('/')}{CODEX.url_path}"
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        text = answer.read(_LONGEST)
    except (OSError, http.client.HTTPException) as error:
        raise NoAnswer(
            "This call did not run: the approval gateway does not answer "
            f"({type(error).__name__}). Try it again later, or tell the user."
        ) from error
    finally:
        connection.close()
    if answer.status != http.client.OK:
        is_refused = answer.status in _KEY_REFUSED
        told = f"{_detail(text, answer.status)}{_OTHER_KEY if is_refused else ''}"
        raise NoAnswer(f"This call did not run: {told}")
    # A proxy may answer {} in the gateway's place, and Codex would run the call.
    return _checked(text if answer.getheader(ANSWER_HEADER) else b"")


def _checked(text: bytes) -> str:
    """Return an answer that Codex understands.

    Raises:
        NoAnswer: when Codex would ignore it, and run the call.
    """
    found = _parsed(text)
    output = _object(_object(found).get("hookSpecificOutput"))
    reason = str(output.get("permissionDecisionReason") or "").strip()
    is_denied = output.get("permissionDecision") == "deny" and reason
    if found != {} and not is_denied:
        raise NoAnswer(
            "This call did not run: the approval gateway's answer is not that of a "
            "hook. Ask the user to check the gateway's URL."
        )
    return json.dumps(found, allow_nan=False)


def _detail(text: bytes, status: int) -> str:
    detail = _object(_parsed(text)).get("detail")
    return str(detail or f"the gateway answered with the status {status}.")


def _parsed(text: bytes) -> object:
    """Return JSON; None for other texts. Codex gets it written anew."""
    try:
        return cast("object", json.loads(text))
    except (ValueError, RecursionError):
        return None


def _object(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}

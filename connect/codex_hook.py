"""Ask the gateway about a call of Codex, from a command hook.

Codex runs a call whose hook fails, unless the hook exits with 2 and writes a reason to
stderr. So every unclear answer raises `NoAnswer`.
"""

from __future__ import annotations

import http.client
import json
from urllib.parse import urlsplit

from keyturn.connect.coding_agents import ANSWER_HEADER, CODEX, TIMEOUT_S
from keyturn.gateway.errors import BadJson, KeyturnError
from keyturn.gateway.protocol import strict_json

_LONGEST = 1024 * 1024
_KEY_REFUSED = {http.client.UNAUTHORIZED, http.client.FORBIDDEN}
_OTHER_KEY = (
    " Ask the user to set KEYTURN_API_KEY to another key: "
    "'keyturn api-keys create NAME --agent AGENT' makes one."
)


class NoAnswer(KeyturnError):
    """The gateway gave no usable answer, so the call must not run."""


def ask(body: bytes, url: str, api_key: str) -> str:
    """Send a hook's request, and return the text for its stdout.

    Args:
        body: the JSON that Codex wrote to the hook's stdin.
        url: URL of the gateway.
        api_key: its API key.

    Raises:
        NoAnswer: with a sentence for the model.
    """
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
    try:
        found = strict_json.parse_object(text)
    except BadJson:
        found = None
    output = found.get("hookSpecificOutput") if found else None
    is_denied = (
        isinstance(output, dict)
        and output.get("permissionDecision") == "deny"
        and bool(str(output.get("permissionDecisionReason") or "").strip())
    )
    if found is None or (found and not is_denied):
        raise NoAnswer(
            "This call did not run: the approval gateway's answer is not that of a "
            "hook. Ask the user to check the gateway's URL."
        )
    return json.dumps(found)


def _detail(text: bytes, status: int) -> str:
    try:
        found = strict_json.parse_object(text)
    except BadJson:
        found = {}
    return str(found.get("detail") or f"the gateway answered with the status {status}.")

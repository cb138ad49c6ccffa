"""Ask the gateway about a call of Codex, from its command hook.

Codex runs a call if its hook fails, except when the hook ends with 2 and writes a
reason to stderr. So everything that is no clear answer is a `NoAnswer`.
"""

from __future__ import annotations

import http.client
import json
from urllib.parse import urlsplit

from keyturn.connect.coding_agents import CODEX, TIMEOUT_S
from keyturn.gateway.errors import BadJson, KeyturnError
from keyturn.gateway.protocol import strict_json

_LONGEST = 1024 * 1024


class NoAnswer(KeyturnError):
    """The gateway gave no usable answer, so the call must not run."""


def ask(body: bytes, url: str, api_key: str) -> str:
    """Send a hook's request, and return the text for its stdout.

    Args:
        body: what Codex wrote to the hook's stdin.
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
            f"The approval gateway does not answer ({type(error).__name__}), so this "
            "call did not run. Try it again later, or tell the user."
        ) from error
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise NoAnswer(f"This call did not run: {_detail(text, answer.status)}")
    return _checked(text)


def _checked(text: bytes) -> str:
    """Return an answer that Codex understands.

    Raises:
        NoAnswer: when Codex would ignore it, and run the call.
    """
    try:
        found = strict_json.parse_object(text)
    except BadJson:
        found = None
    said = found.get("hookSpecificOutput") if found else None
    is_denied = (
        isinstance(said, dict)
        and said.get("permissionDecision") == "deny"
        and bool(str(said.get("permissionDecisionReason") or "").strip())
    )
    if found is None or (found and not is_denied):
        raise NoAnswer(
            "The approval gateway gave an answer that is none of a hook, so this call "
            "did not run. Tell the user to check the gateway's URL."
        )
    return json.dumps(found)


def _detail(text: bytes, status: int) -> str:
    try:
        found = strict_json.parse_object(text)
    except BadJson:
        found = {}
    return str(found.get("detail") or f"the gateway answered with the status {status}.")

"""Write the settings of coding agents, and find settings that fail open.

Claude Code runs a call whose hook fails, unless ``onFailure: block`` is set. Each
problem below made the real program run a call without asking the gateway.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

from pydantic import JsonValue

from keyturn.connect.coding_agents import (
    CLAUDE_CODE,
    MARGIN_S,
    REQUESTER_HEADER,
    TIMEOUT_S,
    WAIT_HEADER,
)
from keyturn.gateway.client.http_gateway import KEY_VARIABLE
from keyturn.gateway.protocol.strict_json import JsonObject

CODEX_COMMAND = "keyturn hook codex"
_BEFORE, _AFTER = "PreToolUse", ("PostToolUse", "PostToolUseFailure")
_VARIABLE = re.compile(r"\$\{?([A-Z_][A-Z0-9_]*)\}?")
_ALL_TOOLS = {"", "*", ".*", None}


def claude_settings(
    url: str, *, requester: str = "", reports: bool = False, defers: bool = False
) -> JsonObject:
    """Return the settings of Claude Code for a gateway at a URL.

    Args:
        url: URL of the gateway.
        requester: Slack user id of the person at the coding agent; "" if unknown.
        reports: also report the results of approved calls.
        defers: end a run of ``claude -p`` while people decide.
    """
    headers: JsonObject = {"Authorization": f"Bearer ${KEY_VARIABLE}"}
    if requester:
        headers[REQUESTER_HEADER] = requester
    hook: JsonObject = {
        "type": "http",
        "url": f"{url.rstrip('/')}{CLAUDE_CODE.url_path}{'?defer=1' if defers else ''}",
        "timeout": int(TIMEOUT_S),
        "onFailure": "block",
        "headers": headers,
        "allowedEnvVars": [KEY_VARIABLE],
    }
    report = {name: value for name, value in hook.items() if name != "onFailure"}
    hooks: JsonObject = {_BEFORE: [{"matcher": "*", "hooks": [hook]}]}
    for event in _AFTER if reports else ():
        hooks[event] = [{"matcher": "*", "hooks": [report]}]
    return {"hooks": hooks}


def codex_settings(*, is_managed: bool = False) -> str:
    """Return the settings of Codex, for its ``config.toml``.

    Codex runs such a hook only after its user has trusted it. With ``is_managed`` the
    settings are for ``requirements.toml``: its hooks need no trust, and no others run.
    """
    return ("allow_managed_hooks_only = true\n\n" if is_managed else "") + (
        "[[hooks.PreToolUse]]\n"
        "[[hooks.PreToolUse.hooks]]\n"
        'type = "command"\n'
        # If the program is missing, the shell exits with 127 and Codex runs the call.
        f'command = "{CODEX_COMMAND} || exit 2"\n'
        f"timeout = {int(TIMEOUT_S + 2 * MARGIN_S)}\n"
    )


def problems(settings: JsonObject) -> list[str]:
    """Return a sentence for each mistake that makes calls run without a decision."""
    hooks = _hooks(settings)
    if settings.get("disableAllHooks"):
        return ["'disableAllHooks' is set, so no hook runs: remove it."]
    if not hooks:
        text = f"No 'http' hook of {_BEFORE!r} has a URL with {CLAUDE_CODE.url_path!r}"
        return [f"{text}: copy the output of 'keyturn hooks claude-code'."]
    # One complete hook is enough; another hook may be for another gateway.
    return min((_problems_of(group, hook) for group, hook in hooks), key=len)


def _hooks(settings: JsonObject) -> list[tuple[JsonObject, JsonObject]]:
    """Return the hooks that ask Keyturn before a call, each with its group."""
    groups = _mapping(settings.get("hooks")).get(_BEFORE)
    return [
        (_mapping(group), _mapping(hook))
        for group in _list(groups)
        for hook in _list(_mapping(group).get("hooks"))
        if _mapping(hook).get("type") == "http"
        and _url(_mapping(hook)).path == CLAUDE_CODE.url_path
    ]


def _problems_of(group: JsonObject, hook: JsonObject) -> list[str]:
    given = _mapping(hook.get("headers"))
    headers = {name.lower(): str(value) for name, value in given.items()}
    key, url = headers.get("authorization", ""), _url(hook)
    used = {name for text in headers.values() for name in _VARIABLE.findall(text)}
    missing = sorted(used - {str(one) for one in _list(hook.get("allowedEnvVars"))})
    waits = headers.get(WAIT_HEADER.lower(), f"{TIMEOUT_S}")
    address = _address(url.hostname)
    is_here = url.hostname == "localhost" or (address and address.is_loopback)
    checks: list[tuple[object, str]] = [
        (hook.get("onFailure") != "block", _FAILS_OPEN),
        (not _outlasts(hook.get("timeout"), waits), _TOO_SHORT),
        (not key.startswith("Bearer "), _NO_KEY),
        (missing, f"{_NO_VARIABLE} add {', '.join(missing)}."),
        ("tk_" in key, _WRITTEN_KEY),
        (group.get("matcher") not in _ALL_TOOLS or "if" in hook, _SOME_TOOLS),
        (hook.get("once"), "'once' removes the hook after a call: remove 'once'."),
        (url.scheme != "https" and not is_here, _IN_CLEAR),
        (address and address.is_private and not is_here, _PRIVATE),
    ]
    return [text for is_wrong, text in checks if is_wrong]


_FAILS_OPEN = (
    "'onFailure' is not \"block\": calls run while the gateway is away or has errors. "
    'Set "onFailure": "block" (Claude Code 2.1.295 or newer).'
)
_TOO_SHORT = (
    "'timeout' is shorter than the wait of the gateway: set \"timeout\": "
    f"{TIMEOUT_S:.0f}, or send a shorter one in the header {WAIT_HEADER}."
)
_NO_KEY = (
    "The header 'Authorization' is missing, so every request is refused: set "
    f'"Authorization": "Bearer ${KEY_VARIABLE}".'
)
_NO_VARIABLE = (
    "'allowedEnvVars' lacks a variable, so the header is sent without it and every "
    "request is refused:"
)
_WRITTEN_KEY = (
    "The API key is written into the file: set it in the environment as "
    f"{KEY_VARIABLE}, and name the variable."
)
_SOME_TOOLS = (
    "'matcher' or 'if' skips tools, so their calls run unasked: set \"matcher\": "
    "\"*\", and remove 'if'. The policy decides which calls need people."
)
_IN_CLEAR = "The URL sends the API key in the clear: use https."
_PRIVATE = (
    "Claude Code sends no hook to a private address: use the name of a host with a "
    "public address, or a proxy on this machine."
)


def _outlasts(timeout: JsonValue, waits: str) -> bool:
    """Return True if a hook's timeout is at least as long as the gateway's wait."""
    try:
        return isinstance(timeout, int | float) and timeout >= float(waits)
    except ValueError:
        return False


def _url(hook: JsonObject) -> SplitResult:
    try:
        return urlsplit(str(hook.get("url")))
    except ValueError:
        return urlsplit("")


def _address(host: str | None) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host or "")
    except ValueError:
        return None


def _mapping(value: JsonValue) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []

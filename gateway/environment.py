"""Map environment variables to settings and secrets; refuse misspelled ones."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Final

from pydantic import SecretStr

from twokey.gateway.documents import BadDocument, Problem
from twokey.gateway.errors import SettingsError
from twokey.gateway.secret_file import parse_secrets

VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "TWOKEY_TENANT": ("tenant",),
    "TWOKEY_DATA_DIR": ("data_dir",),
    "TWOKEY_AUDIT_FOLDER": ("audit_folder",),
    "TWOKEY_REDIS_URL": ("redis_url",),
    "TWOKEY_SHARDS": ("shards",),
    "TWOKEY_SPLIT_BY_AGENT": ("split_by_agent",),
    "TWOKEY_ENCRYPT_STORE": ("encrypt_store",),
    "TWOKEY_CHECKPOINTS": ("checkpoints",),
    "TWOKEY_POLICY": ("policy",),
    "TWOKEY_WORKERS": ("workers",),
    "TWOKEY_SLACK_MODE": ("slack", "mode"),
    "TWOKEY_SLACK_HOST": ("slack", "host"),
    "TWOKEY_SLACK_PORT": ("slack", "port"),
    "TWOKEY_SLACK_COMMAND": ("slack", "command"),
    "TWOKEY_SLACK_API_URL": ("slack", "api_url"),
    "TWOKEY_SLACK_FALLBACK_CHANNEL": ("slack", "fallback_channel"),
    "TWOKEY_SLACK_TEAM": ("slack", "team"),
    "TWOKEY_API_LISTEN": ("api", "listen"),
    "TWOKEY_LOG_LEVEL": ("log", "level"),
    "TWOKEY_LOG_FORMAT": ("log", "format"),
}
"""Environment variable to the setting it overrides; an empty variable is not set."""

SECRETS: Final[Mapping[str, str]] = {
    "TWOKEY_SECRET": "secret",
    "SLACK_BOT_TOKEN": "bot_token",
    "SLACK_APP_TOKEN": "app_token",
    "SLACK_SIGNING_SECRET": "signing_secret",
}
"""Environment variable to the name of the secret; none of them may be in a file."""

OF_AGENTS: Final = ("TWOKEY_GATEWAY", "TWOKEY_API_KEY", "TWOKEY_WEBHOOK_SECRET")
"""What an agent in another process reads (`twokey.gateway.client.choice`, and
`twokey.gateway.remote.webhooks`)."""

_WHERE: Final[Mapping[str, str]] = {
    "SLACK_BOT_TOKEN": (
        "copy the Bot User OAuth Token (xoxb-…) from your app's page "
        "'OAuth & Permissions'"
    ),
    "SLACK_APP_TOKEN": (
        "create an app-level token (xapp-…) with connections:write on your app's page "
        "'Basic Information'"
    ),
    "SLACK_SIGNING_SECRET": "copy it from your app's page 'Basic Information'",
}

_NO_TOKEN = re.compile(r"[^!-~]")
"""What is in no token of Slack, and comes from copying: blanks and line breaks."""


def refuse_misspelled(env: Mapping[str, str]) -> None:
    """Refuse ``TWOKEY_REDIS_ULR``: silence would start another store.

    Raises:
        BadDocument: names the variable that was probably meant.
    """
    known = [*VARIABLES, *SECRETS, *OF_AGENTS]
    for name in sorted(env):
        if not name.startswith(("TWOKEY_", "SLACK_")) or name in known:
            continue
        # One or two letters of a long name, or one of our names without its last word.
        # Other programs have variables of these prefixes, which are none of our
        # business: tools of Slack, and Kubernetes, which names services so
        # (TWOKEY_REDIS_PORT).
        least = 0.85 if name.startswith("TWOKEY_") else 0.9
        close = difflib.get_close_matches(name, known, n=1, cutoff=least)
        if close:
            text = f"This variable is not known; did you mean {close[0]!r}?"
            raise BadDocument([Problem(name, text)])


def not_set(name: str) -> str:
    """Say that a secret is not set, and where it is to be found."""
    return f"{name} is not set; {_WHERE[name]}."


def secrets_in(env: Mapping[str, str]) -> dict[str, SecretStr]:
    """Return the secrets that an environment holds, by their names.

    Raises:
        SettingsError: when one of them cannot be what its variable is for.
    """
    found = {
        secret: SecretStr(env[name])
        for name, secret in SECRETS.items()
        if env.get(name)
    }
    # At the start and not at the first click: a key that cannot be used seals nothing.
    if "secret" in found:
        parse_secrets(found["secret"].get_secret_value())
    for name in _WHERE:
        # With a blank in the signing secret the bot would start, and refuse each click.
        if strange := _NO_TOKEN.search(env.get(name, "")):
            raise SettingsError(
                f"{name} has a blank, a line break or another character that is in no "
                f"token, at place {strange.start() + 1}; remove it, or {_WHERE[name]}."
            )
    for name, prefix in (("SLACK_BOT_TOKEN", "xoxb-"), ("SLACK_APP_TOKEN", "xapp-")):
        # https://docs.slack.dev/authentication/using-token-rotation
        if env.get(name, "").startswith("xoxe.xoxb-"):
            raise SettingsError(
                f"{name} is of an app with token rotation, so it ends after 12 hours, "
                "and Twokey does not renew it. Make an app from the manifest of "
                "'twokey manifest', which leaves token rotation off."
            )
        if env.get(name) and not env[name].startswith(prefix):
            raise SettingsError(
                f"{name} does not begin with {prefix!r}, so it is another kind of "
                f"token; {_WHERE[name]}."
            )
    return found

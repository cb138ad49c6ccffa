"""Read secrets from files, as Docker and Kubernetes mount them.

``KEYTURN_SECRET_FILE`` names a file whose content becomes ``KEYTURN_SECRET``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from keyturn.gateway.errors import SettingsError

FROM_FILES: Final = (
    "KEYTURN_SECRET",
    "SLACK_BOT_TOKEN",
    "SLACK_APP_TOKEN",
    "SLACK_SIGNING_SECRET",
    "SLACK_CLIENT_SECRET",
    "KEYTURN_REDIS_URL",
    "KEYTURN_CHECKPOINTS",
    "KEYTURN_API_KEY",
    "KEYTURN_WEBHOOK_SECRET",
)
"""Variables whose value may be in a file; the last two are those of an agent."""


def with_files(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which each variable has the content of its file.

    Raises:
        SettingsError: a variable is set twice, or a file is empty or unreadable.
    """
    files = {f"{name}_FILE" for name in FROM_FILES}
    values = {name: value for name, value in env.items() if name not in files}
    return values | {name: found for name in FROM_FILES if (found := secret(env, name))}


def secret(env: Mapping[str, str], name: str) -> str:
    """Return the value of a variable or the content of its file; "" for neither.

    A byte order mark, and blanks and line breaks around the content, are dropped.

    Raises:
        SettingsError: as `with_files`.
    """
    file, value = env.get(f"{name}_FILE", ""), env.get(name, "")
    if not file:
        return value
    if value:
        raise SettingsError(f"{name} and {name}_FILE are both set; unset one.")
    try:
        value = Path(file).read_text(encoding="utf-8-sig").strip()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        problem = f"{file!r}, named by {name}_FILE, cannot be read: {why}."
        raise SettingsError(problem) from error
    if not value:
        raise SettingsError(f"{file!r}, named by {name}_FILE, is empty.")
    return value

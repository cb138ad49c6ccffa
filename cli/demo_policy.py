"""Shorten the timeouts of a policy for scripted demos."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

_NOBODY_COMES = "2s"


def with_short_timeouts(config: Path, story: str, folder: Path) -> Path | None:
    """Write the policy of the settings anew, as impatient as a story needs it.

    Args:
        config: the settings file whose key ``policy`` is taken.
        story: name of the script; None comes back for one that waits for nothing.
        folder: where the new policy goes.
    """
    hasten = _STORIES.get(story)
    if hasten is None:
        return None
    policy: dict[str, Any] = yaml.safe_load(config.read_text(encoding="utf-8"))[
        "policy"
    ]
    hasten(policy)
    path = folder / "policy.yml"
    path.write_text(yaml.safe_dump(policy, sort_keys=False), encoding="utf-8")
    return path


def _expire(policy: dict[str, Any]) -> None:
    """Let every call expire before anybody comes."""
    policy["defaults"]["expires_in"] = _NOBODY_COMES
    for tool in policy.get("tools", {}).values():
        tool.pop("expires_in", None)


def _escalate(policy: dict[str, Any]) -> None:
    """Remind after two seconds, call the senior after four."""
    rule = policy["tiers"]["escalate"]
    rule |= {"expires_in": "100s", "remind_at": "2%", "escalate_at": "4%"}


_STORIES = {"expire": _expire, "escalate": _escalate}

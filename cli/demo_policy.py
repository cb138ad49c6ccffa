"""Change the policy of the demo for scripts that need another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from twokey.cli.demo_stack import QUEUED

_SHORT_EXPIRY = "2s"


def policy_for(config: Path, script: str, folder: Path) -> Path | None:
    """Write a copy of the policy as a script needs it.

    Args:
        config: the settings file whose key ``policy`` is taken.
        script: its name; the result is None for one that needs no change.
        folder: where the new policy goes.
    """
    change = _CHANGES.get(script)
    if change is None:
        return None
    # Not by the loader of policies: the file is written back in the form that it has.
    policy: dict[str, Any] = yaml.safe_load(config.read_text(encoding="utf-8"))[
        "policy"
    ]
    change(policy)
    path = folder / "policy.yml"
    path.write_text(yaml.safe_dump(policy, sort_keys=False), encoding="utf-8")
    return path


def _expire(policy: dict[str, Any]) -> None:
    """Let every call expire at once."""
    policy["defaults"]["expires_in"] = _SHORT_EXPIRY
    for tool in policy.get("tools", {}).values():
        # A tool's own time would win over the default.
        tool.pop("expires_in", None)


def _escalate(policy: dict[str, Any]) -> None:
    """Remind after two seconds, call the senior after four."""
    rule = policy["tiers"]["escalate"]
    # Of 100 seconds a percentage is a number of seconds.
    rule |= {"expires_in": "100s", "remind_at": "2%", "escalate_at": "4%"}


def _share(policy: dict[str, Any]) -> None:
    """Let the refunds of twenty customers share one card."""
    rule = {"by": "window", "within": "2m", "up_to": len(QUEUED)}
    policy["tools"]["process_refund"]["batch"] = rule


_CHANGES = {"expire": _expire, "escalate": _escalate, "shared": _share}

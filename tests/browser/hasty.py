"""Run the demo with a policy whose times pass during the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.browser.demo_process import ROOT, Demo

TWO_PEOPLE, SEVERAL = "suggestion-2", "suggestion-1"


def hasty_demo(folder: Path, mode: str = "socket") -> Demo:
    """Return a demo with quick reminders; an e-mail is pending for half a minute.

    A refund that takes two people reminds after 2 seconds and calls the senior after 4;
    an e-mail is announced in #general after 3.
    """
    settings = yaml.safe_load((ROOT / "keyturn.yml").read_text(encoding="utf-8"))
    policy: dict[str, Any] = settings["policy"]
    two: dict[str, Any] = policy["tiers"]["escalate"]
    two |= {"expires_in": "200s", "remind_at": "1%", "escalate_at": "2%"}
    mail: dict[str, Any] = policy["tools"]["send_email"]
    mail |= {"expires_in": "30s"}
    one: dict[str, Any] = policy["tiers"]["approve"]
    one |= {"remind_at": "5%", "escalate_at": "10%"}
    path = folder / "policy.yml"
    path.write_text(yaml.safe_dump(policy, sort_keys=False), encoding="utf-8")
    return Demo(folder, mode, {"KEYTURN_POLICY": str(path)})

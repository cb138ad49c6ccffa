"""What a run under kill -9 recorded, in memory and in its folder."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.linearizability.audited import Death, Moment
from tests.linearizability.history import Operation, read_history, write_history

_HISTORY, _REST = "history.jsonl", "recorded.json"


@dataclass
class Recorded:
    """The requests, the observations, and the killed processes.

    Attributes:
        threads: by the id of its approval.
        calls: approvals by the id that the model gave the call.
        clicks: approval, person, and time of sending.
        moments: the audit log at the end.
    """

    history: list[Operation] = field(default_factory=list[Operation])
    threads: dict[str, str] = field(default_factory=dict[str, str])
    calls: dict[str, str] = field(default_factory=dict[str, str])
    clicks: list[tuple[str, str, int]] = field(
        default_factory=list[tuple[str, str, int]]
    )
    deaths: list[Death] = field(default_factory=list[Death])
    moments: list[Moment] = field(default_factory=list[Moment])

    @property
    def killed(self) -> dict[str, int]:
        """Return how many processes of each kind were killed."""
        return dict(Counter(one.kind for one in self.deaths))

    def keep(self, folder: Path) -> None:
        """Write all of it that is checked."""
        write_history(folder / _HISTORY, self.history)
        rest = {
            "threads": self.threads, "deaths": self.deaths, "moments": self.moments,
        }  # fmt: skip
        (folder / _REST).write_text(json.dumps(rest), "ascii")


def kept(folder: Path) -> Recorded:
    """Return what a run kept in its folder."""
    rest = json.loads((folder / _REST).read_bytes())
    return Recorded(
        history=read_history(folder / _HISTORY),
        threads=rest["threads"],
        deaths=[Death(*one) for one in rest["deaths"]],
        moments=[Moment(*one) for one in rest["moments"]],
    )

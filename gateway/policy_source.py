"""Locate and read the policy."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from twokey.gateway.text_file import read_text

_NO_POLICY = (
    "Name yours with 'policy' in twokey.yml, or write one there; docs/policy.md begins "
    "with a small one."
)


class PolicySource(BaseModel):
    """Where the policy stands: a file of its own, or a key of ``twokey.yml``."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    path: Path
    under: str = ""

    def read(self) -> str:
        """Return the text of the file, as it is now.

        Raises:
            SettingsError: when it cannot be read.
        """
        return read_text(self.path, "the policy", hint=_NO_POLICY)

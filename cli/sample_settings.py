"""Find the sample agent and its settings, which come with Twokey."""

from __future__ import annotations

from pathlib import Path

from twokey.gateway.config import DEFAULT_FILE

_INSTALLED = Path(__file__).parent / "sample"


def sample_settings() -> Path:
    """Return the settings file of the sample agent.

    A wheel holds it inside the package, a clone at its top.
    """
    folder = _INSTALLED if _INSTALLED.exists() else Path(__file__).resolve().parents[1]
    return folder / DEFAULT_FILE

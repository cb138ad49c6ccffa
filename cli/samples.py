"""Files of the project that commands read, in a wheel and in a clone."""

from __future__ import annotations

from pathlib import Path

from keyturn.gateway.config import DEFAULT_FILE

_INSTALLED = Path(__file__).parent / "sample"


def sample_settings() -> Path:
    """Return the settings file of the sample agent.

    In a wheel it is inside the package; in a clone, at the repository root.
    """
    folder = _INSTALLED if _INSTALLED.exists() else Path(__file__).resolve().parents[1]
    return folder / DEFAULT_FILE


def quiet_policy() -> str:
    """Return the policy that keeps reading of coding agents quiet."""
    file = sample_settings().parent / "examples" / "coding_agents" / "policy.yml"
    return file.read_text(encoding="utf-8")

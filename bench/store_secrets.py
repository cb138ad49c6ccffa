"""The secrets by which the measured processes seal what they store."""

from __future__ import annotations

SECRETS = (b"the secrets of what is measured!",)

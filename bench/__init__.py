"""The benchmark: one module for each figure, and shared parts."""

from __future__ import annotations

import sys
import time

SECRETS = (b"the secrets of what is measured!",)
"""The secrets with which the measured processes seal their records."""

_began = time.perf_counter()


def progress(text: str) -> None:
    """Print the current step, with the seconds since the benchmark began."""
    passed_s = time.perf_counter() - _began
    print(f"  [{passed_s:5.0f} s] {text}", file=sys.stderr, flush=True)

"""Progress of a long measurement, on standard error."""

from __future__ import annotations

import sys
import time

_began = time.perf_counter()


def progress(text: str) -> None:
    """Say what is being done, with the seconds since the benchmark began."""
    print(
        f"  [{time.perf_counter() - _began:5.0f} s] {text}", file=sys.stderr, flush=True
    )

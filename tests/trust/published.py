"""Read the published test vectors; `vectors/README.md` names their sources."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent / "vectors"


def published(name: str) -> Any:
    """Return the vectors of a file."""
    return json.loads(gzip.decompress((_FOLDER / f"{name}.json.gz").read_bytes()))

"""Print the version."""

from __future__ import annotations

import platform
from importlib.metadata import version as version_of

import typer

EXAMPLES = None


def version() -> None:
    """Print the version of Twokey and of Python."""
    typer.echo(f"twokey {version_of('twokey')} (Python {platform.python_version()})")

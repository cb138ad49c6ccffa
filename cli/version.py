"""Print the version."""

from __future__ import annotations

import platform
from importlib.metadata import version as version_of

import typer


def version() -> None:
    """Print the version of Keyturn and of Python."""
    typer.echo(f"keyturn {version_of('keyturn')} (Python {platform.python_version()})")

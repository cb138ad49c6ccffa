"""Print the version."""

from __future__ import annotations

import platform
from importlib.metadata import version as version_of

import typer


def version() -> None:
    """Print the version of Twokey and of Python."""
    typer.echo(f"twokey {version_of('twokey')} (Python {platform.python_version()})")


def add_to(app: typer.Typer) -> None:
    """Add what is in here to the command ``twokey``."""
    app.command()(version)

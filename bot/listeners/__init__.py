"""Slack listeners, one file per gesture; `register` is the public name of each."""

from collections.abc import Callable
from typing import Final

from twokey.bot.listeners import (
    approve,
    approve_all,
    command,
    details,
    edit,
    freeze_tool,
    home,
    mention,
    reconcile,
    report,
    retiming,
    text_form,
    try_again,
    under_card,
    uninstalled,
    unknown,
)
from twokey.bot.listeners.router import Router

LISTENERS: Final[tuple[Callable[[Router], None], ...]] = (
    approve.register,
    approve_all.register,
    command.register,
    details.register,
    edit.register,
    freeze_tool.register,
    home.register,
    mention.register,
    reconcile.register,
    report.register,
    retiming.register,
    text_form.register,
    try_again.register,
    under_card.register,
    uninstalled.register,
    unknown.register,
)
"""In the order in which they are asked; `unknown` takes what nobody took."""

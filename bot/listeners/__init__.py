"""One gesture of a person a file; `register` is its only public name."""

from collections.abc import Callable
from typing import Final

from bot.listeners import (
    approve,
    approve_all,
    approve_submit,
    command,
    details,
    details_submit,
    edit,
    edit_submit,
    extend,
    freeze_tool,
    home,
    mention,
    reconcile,
    reconcile_submit,
    reject,
    reject_submit,
    report,
    report_submit,
    respond,
    respond_submit,
    take,
    try_again,
    under_card,
    uninstalled,
    unknown,
)
from bot.listeners.doors import Doors

LISTENERS: Final[tuple[Callable[[Doors], None], ...]] = (
    approve.register,
    approve_all.register,
    approve_submit.register,
    command.register,
    details.register,
    details_submit.register,
    edit.register,
    edit_submit.register,
    extend.register,
    freeze_tool.register,
    home.register,
    mention.register,
    reconcile.register,
    reconcile_submit.register,
    reject.register,
    reject_submit.register,
    report.register,
    report_submit.register,
    respond.register,
    respond_submit.register,
    take.register,
    try_again.register,
    under_card.register,
    uninstalled.register,
    unknown.register,
)
"""In the order in which they are asked; `unknown` takes what nobody took."""

"""Slack listeners, one file per interaction; `register` is the public name of each."""

from collections.abc import Callable
from typing import Final

from twokey.bot.listeners import (
    allow_similar,
    answer,
    approve,
    approve_all,
    ask_requester,
    choose,
    command,
    details,
    edit,
    freeze_tool,
    home,
    mention,
    past,
    reconcile,
    reject_all,
    report,
    review,
    seeded_defect,
    spot_check,
    standing,
    text_form,
    thread_reply,
    time_buttons,
    try_again,
    uninstalled,
    unknown,
)
from twokey.bot.listeners.router import Router

LISTENERS: Final[tuple[Callable[[Router], None], ...]] = (
    allow_similar.register,
    answer.register,
    approve.register,
    approve_all.register,
    ask_requester.register,
    choose.register,
    command.register,
    details.register,
    edit.register,
    freeze_tool.register,
    home.register,
    mention.register,
    past.register,
    reconcile.register,
    reject_all.register,
    report.register,
    review.register,
    seeded_defect.register,
    spot_check.register,
    standing.register,
    time_buttons.register,
    text_form.register,
    try_again.register,
    thread_reply.register,
    uninstalled.register,
    unknown.register,
)
"""In the order in which they are asked; `unknown` takes what nobody took."""

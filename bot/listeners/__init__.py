"""Slack listeners, one file per interaction; `register` is the public name of each."""

from collections.abc import Callable
from typing import Final

from keyturn.bot.listeners import (
    allow_similar,
    answer,
    approve,
    ask_requester,
    batch_decision,
    choose,
    command,
    details,
    edit,
    freeze_command,
    home_tab,
    mention,
    past,
    reconcile,
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
)
from keyturn.bot.listeners.router import Router

LISTENERS: Final[tuple[Callable[[Router], None], ...]] = (
    allow_similar.register,
    answer.register,
    approve.register,
    batch_decision.register,
    ask_requester.register,
    choose.register,
    command.register,
    details.register,
    edit.register,
    freeze_command.register,
    home_tab.register,
    mention.register,
    past.register,
    reconcile.register,
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
    Router.on_unknown,
)
"""In the order in which they are registered; the last one takes unknown ones."""

"""Render the filter and the pages of the App Home tab."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable

from twokey.bot.blocks import actions, button, context
from twokey.bot.cards.queue import ROWS, HomeFilter, Page
from twokey.bot.ids import Action
from twokey.bot.inputs import select
from twokey.bot.objects import Block, option
from twokey.bot.text_types import label, template, untrusted
from twokey.sandbox.blockkit import limits

ALL = "*"
"""The value of the option that leaves nothing out; no tool or agent has this name."""

ON, OFF = "on", "off"

FIRST = "first"
"""The value of the button that leads to the first page."""


def filter_row(page: Page, chosen: HomeFilter) -> list[Block]:
    """Return the menus to filter a queue by; nothing where there is no choice."""
    menus = [
        *_menu(Action.FILTER_TOOL, "All tools", page.tools, chosen.tool),
        *_menu(Action.FILTER_AGENT, "All agents", page.agents, chosen.agent),
        *_menu(Action.FILTER_TIER, "All tiers", page.tiers, chosen.tier),
    ]
    if page.is_any_mine or chosen.is_mine:
        menus.append(
            button(
                Action.FILTER_MINE,
                label("Show all" if chosen.is_mine else "Only what I'm on"),
                value=OFF if chosen.is_mine else ON,
            )
        )
    if not menus:
        return []
    # With the choice in its id: Slack keeps what a menu shows while its id stays.
    said = chosen.with_(after="").model_dump_json()
    of = hashlib.sha256(said.encode()).hexdigest()[:8]
    row: list[Block] = [actions(*menus, block_id=f"filter.{of}")]
    if chosen.is_set:
        fitting, waiting = page.matching_calls, page.calls
        text = template("{n} of {all} fit the filter.", n=fitting, all=waiting)
        row.append(context(text))
    return row


def pager(page: Page) -> list[Block]:
    """Return what leads to the other pages; nothing where there is one."""
    if page.before is None and page.next is None:
        return []
    text = template(
        "Cards {first} to {last} of {count}",
        first=page.start + 1,
        last=min(page.start + ROWS, page.matching),
        count=page.matching,
    )
    turns: list[Block] = []
    if page.before is not None:
        more = label("More urgent")
        # Slack takes no empty value.
        turns.append(button(Action.HOME_BACK, more, value=page.before or FIRST))
    if page.next is not None:
        turns.append(button(Action.HOME_NEXT, label("Less urgent"), value=page.next))
    return [context(text), actions(*turns, block_id=f"pages.{page.start}")]


def _menu(
    action: Action, everything: str, names: Iterable[str], chosen: str
) -> list[Block]:
    """Return one menu, if there is a choice."""
    # What is chosen stays an option when nothing of it waits any more, or the tab would
    # show a filter that is not the one in force.
    offered = sorted({*names, chosen} - {""}) if chosen else [*names]
    # A longer name is not offered: the value of an option would not hold it.
    offered = [one for one in offered if len(_value(one)) <= limits.OPTION_VALUE]
    if len(offered) < (1 if chosen else 2):
        return []
    options = [option(label(everything), ALL)]
    options += [
        option(untrusted(name), _value(name))
        for name in offered[: limits.SELECT_OPTIONS - 1]
    ]
    is_offered = chosen in offered[: limits.SELECT_OPTIONS - 1]
    initial = _value(chosen) if is_offered else ALL
    return [select(action, options, initial=initial)]


def name_in(value: str) -> str:
    """Return the name that an option stands for; "" for all, and for no value of ours.

    Names are encoded: values of Slack hold no text of strangers.
    """
    try:
        return urlsafe_b64decode(value.encode()).decode() if value != ALL else ""
    except ValueError:
        return ""


def _value(name: str) -> str:
    return urlsafe_b64encode(name.encode()).decode()

"""Check the arguments of public functions before any other step."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import cast

from keyturn.gateway.errors import SettingsError
from keyturn.gateway.validation_errors import shortened


def is_a(given: object, kinds: type | tuple[type, ...]) -> bool:
    """Return True if an argument has one of its declared types."""
    return isinstance(given, kinds)


def require(is_usable: object, name: str, given: object, needed: str) -> None:
    """Refuse an unusable argument.

    Args:
        is_usable: False to refuse it.
        name: of the argument.
        given: its value, which is shown.
        needed: a usable value, in words.

    Raises:
        SettingsError: names argument, value and next step.
    """
    if not is_usable:
        raise SettingsError(
            f"{name}={shortened(repr(given))} cannot be used: {needed}."
        )


def require_secret(is_usable: object, name: str, given: object, needed: str) -> None:
    """Refuse an unusable argument without its value; see `require`."""
    if not is_usable:
        kind = type(given).__name__
        raise SettingsError(f"{name}= of type {kind} cannot be used: {needed}.")


def check_timeout(timeout_s: object) -> None:
    """Check a number of seconds; the rest of a deadline may be negative.

    Raises:
        SettingsError: it is not a number.
    """
    is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    require(
        timeout_s is None or (is_number and not math.isnan(cast("float", timeout_s))),
        "timeout_s",
        timeout_s,
        "give seconds as a number, or None to wait as long as it takes",
    )


def check_tool_names(name: str, tools: object) -> None:
    """Check a collection of names; each letter of a plain text would count as a name.

    Raises:
        SettingsError: it is not a collection of texts.
    """
    require(is_texts(tools), name, tools, "give a list of names of tools")


def check_item_ids(item_ids: object) -> None:
    """Check the ids of a program's calls.

    Raises:
        SettingsError: they are not a collection of ids.
    """
    needed = "give a list of ids of calls, or None for all"
    is_usable = item_ids is None or is_texts(item_ids)
    require(is_usable, "item_ids", item_ids, needed)


def check_ungated(ungated: object) -> None:
    """Check the exceptions of each agent.

    Raises:
        SettingsError: they do not map agent names to lists of tool names.
    """
    needed = "give a mapping, such as {'billing': ['look_up']}"
    require(ungated is None or is_a(ungated, Mapping), "ungated", ungated, needed)
    for agent, tools in cast("Mapping[object, object]", ungated or {}).items():
        require(isinstance(agent, str), "ungated", ungated, needed)
        check_tool_names(f"ungated[{agent!r}]", tools)


def check_agent_names(name: str, agents: object) -> None:
    """Check a collection of names of agents; a plain text would be many names.

    Raises:
        SettingsError: it is not a collection of texts.
    """
    require(is_texts(agents), name, agents, "give a list of names of agents")


def is_texts(given: object) -> bool:
    """Return True for a collection of texts, False for a single text."""
    if isinstance(given, str | bytes) or not isinstance(given, Collection):
        return False
    return all(isinstance(one, str) for one in cast("Iterable[object]", given))

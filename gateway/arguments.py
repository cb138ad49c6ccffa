"""Check the arguments of public functions, before anything is done with them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import cast

from keyturn.gateway.errors import SettingsError
from keyturn.gateway.validation_errors import shortened


def is_a(given: object, kinds: type | tuple[type, ...]) -> bool:
    """Return whether a caller has kept to the types that are declared."""
    return isinstance(given, kinds)


def require(is_usable: object, name: str, given: object, needed: str) -> None:
    """Refuse an argument that cannot be used.

    Args:
        is_usable: whether it can be.
        name: of the argument.
        given: its value, which is shown.
        needed: what to write instead.

    Raises:
        SettingsError: names argument, value and next step.
    """
    if not is_usable:
        raise SettingsError(
            f"{name}={shortened(repr(given))} cannot be used: {needed}."
        )


def require_secret(is_usable: object, name: str, given: object, needed: str) -> None:
    """Refuse an argument that cannot be used, without its value; see `require`."""
    if not is_usable:
        kind = type(given).__name__
        raise SettingsError(f"{name}= of type {kind} cannot be used: {needed}.")


def check_timeout(timeout_s: object) -> None:
    """Check a number of seconds; what is left of a deadline may be negative.

    Raises:
        SettingsError: when it is none.
    """
    is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    require(
        timeout_s is None or (is_number and not math.isnan(cast("float", timeout_s))),
        "timeout_s",
        timeout_s,
        "give seconds as a number, or None to wait as long as it takes",
    )


def check_tool_names(name: str, tools: object) -> None:
    """Check a collection of names; in a text, each part of it would count as a name.

    Raises:
        SettingsError: when it is none.
    """
    require(is_texts(tools), name, tools, "give a list of names of tools")


def check_item_ids(item_ids: object) -> None:
    """Check which calls a program names.

    Raises:
        SettingsError: when they are no ids; a part of one would be another's.
    """
    needed = "give a list of ids of calls, or None for all"
    is_usable = item_ids is None or is_texts(item_ids)
    require(is_usable, "item_ids", item_ids, needed)


def check_ungated(ungated: object) -> None:
    """Check the exceptions of each agent.

    Raises:
        SettingsError: when they are not lists of names by the name of an agent.
    """
    needed = "give a mapping, such as {'billing': ['look_up']}"
    require(ungated is None or is_a(ungated, Mapping), "ungated", ungated, needed)
    for agent, tools in cast("Mapping[object, object]", ungated or {}).items():
        require(isinstance(agent, str), "ungated", ungated, needed)
        check_tool_names(f"ungated[{agent!r}]", tools)


def is_texts(given: object) -> bool:
    """Return whether this is a collection of texts, and not one text."""
    if isinstance(given, str | bytes) or not isinstance(given, Collection):
        return False
    return all(isinstance(one, str) for one in cast("Iterable[object]", given))

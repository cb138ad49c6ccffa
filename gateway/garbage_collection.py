"""Keep Python's search for unreachable objects from holding up a whole process.

What a process imports with an agent's libraries is some hundred thousand objects, which
live as long as it does. To look through them takes an eighth of a second or more, in
which nothing else runs: a click or a tool that begins then waits for it.
"""

from __future__ import annotations

import gc

NEW_OBJECTS = 5_000
"""How many objects Python makes before it looks for unreachable ones: by default 700,
which is several times for each step of an agent. To look through 20,000 takes 20 ms."""


def spare_what_is_there(new_objects: int = NEW_OBJECTS) -> None:
    """Never look again through what this process has made so far; look less often.

    For who owns the process, and has started all that lives as long as it does.
    """
    # First: what is unreachable already would stay for ever.
    gc.collect()
    gc.freeze()
    gc.set_threshold(new_objects, *gc.get_threshold()[1:])

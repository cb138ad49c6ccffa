"""Keep Python's search for unreachable objects from holding up a whole process.

What a process imports with an agent's libraries is some hundred thousand objects, which
live as long as it does. To look through them takes an eighth of a second or more, in
which nothing else runs: a click or a tool that begins then waits for it.
"""

from __future__ import annotations

import gc

_NEW_OBJECTS = 20_000
"""How many objects Python makes before it looks for unreachable ones. By default it
looks after 700, some dozen times in a second of clicks, which leave next to nothing."""


def spare_what_is_there() -> None:
    """Never look again through what this process has made so far; look less often.

    For who owns the process, and has started all that lives as long as it does.
    """
    # First: what is unreachable already would stay for ever.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])

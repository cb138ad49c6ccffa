"""Keep Python's garbage collection from blocking a whole process.

An agent's libraries create some hundred thousand objects at import, which live as long
as the process. Scanning them takes an eighth of a second or more, and blocks everything
else: a click or a starting tool waits for it.
"""

from __future__ import annotations

import gc

NEW_OBJECTS = 5_000
"""Number of new objects before a collection: by default 700, which is several
collections for each step of an agent. Scanning 20,000 objects takes 20 ms.
"""


def spare_what_is_there() -> None:
    """Exempt all present objects from garbage collection, and collect less often.

    For the owner of the process, after all long-lived objects were created.
    """
    # First: objects that are unreachable already would otherwise stay for ever.
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])

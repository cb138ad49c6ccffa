"""Read what a function takes, also where its annotations name what is not there.

From Python 3.14 on annotations are evaluated when somebody asks for them, and a name
that is imported for type checkers alone is unknown then.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

if sys.version_info >= (3, 14):
    from annotationlib import Format


def signature_of(
    function: Callable[..., Any], *, is_outermost: bool = False
) -> inspect.Signature:
    """Return the signature of a function; annotations may stand as written.

    With ``is_outermost`` it is that of a decorator's function, which Python calls, and
    not that of the function inside.

    Raises:
        TypeError: this is no function.
        ValueError: it does not tell, as some built-in ones.
    """
    if sys.version_info >= (3, 14):
        return inspect.signature(
            function,
            follow_wrapped=not is_outermost,
            annotation_format=Format.FORWARDREF,
        )
    return inspect.signature(function, follow_wrapped=not is_outermost)

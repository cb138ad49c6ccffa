"""Read a function's signature, even if its annotations name missing imports.

From Python 3.14 on, annotations are evaluated on access, and names that are imported
only for type checkers are unknown then.
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
    """Return the signature of a function; annotations may be unevaluated text.

    With ``is_outermost`` it is the signature of the decorator's function, which Python
    calls, instead of the wrapped one.

    Raises:
        TypeError: when it is not a function.
        ValueError: when it has no signature, as some built-in functions.
    """
    if sys.version_info >= (3, 14):
        return inspect.signature(
            function,
            follow_wrapped=not is_outermost,
            annotation_format=Format.FORWARDREF,
        )
    return inspect.signature(function, follow_wrapped=not is_outermost)

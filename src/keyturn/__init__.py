"""Hold an AI agent's tool calls until a person agrees.

    from keyturn import Keyturn
    from keyturn.agent import ApprovalMiddleware, guarded, require_approval

Names are loaded on first use, so that importing `keyturn.agent` starts no server. The
folders next to this file are links to those at the repository root; an installation
contains the files themselves.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a type checker reads the names; programs load only those they use
    from keyturn.gateway.embed import Keyturn
    from keyturn.gateway.errors import KeyturnError

__all__ = ["Keyturn", "KeyturnError"]

_MODULES = {
    "Keyturn": "keyturn.gateway.embed",
    "KeyturnError": "keyturn.gateway.errors",
}
_WITHOUT_STORE = "keyturn.gateway.remote.program"


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        # Not ImportError: `hasattr` and tools that inspect modules expect this error.
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        # An agent's process has no store and does not need the store's packages.
        with suppress(ModuleNotFoundError):
            if name == "Keyturn" and not (error.name or "").startswith(__name__):
                return getattr(import_module(_WITHOUT_STORE), name)
        # A note, not another error: a failing import inside those packages keeps its
        # type and traceback.
        error.add_note(f"{name} needs more packages: pip install 'keyturn[server]'")
        raise


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

"""Settings of the signing keys: where this process has its own, whom it believes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict

# As `keyturn keys list` prints them; each is read as a whole when a process starts.
_PUBLIC = re.compile(r"[^\s+]+\+[0-9a-f]{8}\+[A-Za-z0-9+/]+=*", re.ASCII)


def _public(text: str) -> str:
    if _PUBLIC.fullmatch(text.strip()) is None:
        raise ValueError(
            f"{text[:100]!r} is no public key; copy a line of 'keyturn keys list'."
        )
    return text.strip()


PublicKeyText = Annotated[str, AfterValidator(_public)]


class KeySettings(BaseModel):
    """Where the keys are, and public keys of other processes by their role.

    ``folder`` None is ``keys`` in the data folder. The keys named here count beside
    those of the folder.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    folder: Path | None = None
    bot: tuple[PublicKeyText, ...] = ()
    gateway: tuple[PublicKeyText, ...] = ()
    audit: tuple[PublicKeyText, ...] = ()

    def below(self, base: Path) -> Self:
        """Return the same with a folder whose name starts from another one."""
        if self.folder is None:
            return self
        return self.model_copy(update={"folder": base / self.folder.expanduser()})

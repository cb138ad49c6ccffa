"""Wait for a server that reads its data set into memory, and say how far it is.

Until it has done so, a server refuses nearly every command (``LOADING``). A large data
set takes minutes; a start that gave up meanwhile would be tried again and again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.store.connection import Connection
from keyturn.gateway.store.durability import server_info

logger = logging.getLogger(__name__)

LOADED_WITHIN_S = 3600.0
"""How long a server may load before a start gives up."""

_SAY_EVERY_S = 5.0
_LOOK_S = 0.5


class Loading:
    """One wait for a server.

    Args:
        where: the server, as the log names it; without a password.
        clock: seconds, never going backwards.
    """

    def __init__(
        self, where: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._where = where
        self._clock = clock
        self._began = clock()
        self._said = -_SAY_EVERY_S

    def goes_on(self, info: Mapping[str, str]) -> None:
        """Say now and then how far the server is, by what its INFO says.

        Raises:
            StoreUnavailable: when it has loaded for too long.
        """
        waited_s = self._clock() - self._began
        if waited_s > LOADED_WITHIN_S:
            raise StoreUnavailable(
                f"The store {self._where} still loads its data after "
                f"{waited_s / 60:.0f} minutes; look into its log."
            )
        if waited_s - self._said >= _SAY_EVERY_S:
            self._said = waited_s
            logger.info(
                "store.loading where=%s percent=%s seconds=%.0f left=%s",
                self._where,
                info.get("loading_loaded_perc", "?"),
                waited_s,
                info.get("loading_eta_seconds", "?"),
            )


async def until_loaded(conn: Connection, where: str) -> None:
    """Wait until a server has loaded its data set.

    Raises:
        StoreUnavailable: when it does not answer, or loads for too long.
    """
    loading = Loading(where)
    # INFO and not PING: it is answered while a server loads.
    while (info := await server_info(conn)).get("loading", "0") not in {"0", ""}:
        loading.goes_on(info)
        await asyncio.sleep(_LOOK_S)

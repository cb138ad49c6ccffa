"""`Keyturn` where the packages of a store are not installed: its remote mode alone."""

from __future__ import annotations

from keyturn.gateway.errors import SettingsError
from keyturn.gateway.remote.program import RemoteKeyturn


class Keyturn:
    """What ``keyturn.Keyturn`` is in a process that cannot open a store."""

    remote = RemoteKeyturn

    def __init__(self, *_given: object, **_named: object) -> None:
        raise SettingsError(
            "A gateway in this process needs a store: pip install 'keyturn[server]'. "
            "Keyturn.remote(url, api_key=...) needs none."
        )

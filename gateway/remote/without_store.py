"""`Twokey` where the packages of a store are not installed: its remote mode alone."""

from __future__ import annotations

from twokey.gateway.errors import SettingsError
from twokey.gateway.remote.program import RemoteTwokey


class Twokey:
    """What ``twokey.Twokey`` is in a process that cannot open a store."""

    remote = RemoteTwokey

    def __init__(self, *_given: object, **_named: object) -> None:
        raise SettingsError(
            "A gateway in this process needs a store: pip install 'twokey[server]'. "
            "Twokey.remote(url, api_key=...) needs none."
        )

"""Choose the gateway that an agent asks: given, connected, or of the environment."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache

from twokey.gateway.arguments import is_a, require, require_secret
from twokey.gateway.client.claim_receipts import key_lines
from twokey.gateway.client.http_gateway import HttpGateway
from twokey.gateway.errors import NotAllowed, SettingsError
from twokey.gateway.protocol import port
from twokey.gateway.protocol.port import Gateway
from twokey.gateway.setting_forms import is_name

URL_VARIABLE = "TWOKEY_GATEWAY"
KEY_VARIABLE = "TWOKEY_API_KEY"


def agent_name(name: str) -> str:
    """Return the name of an agent.

    Raises:
        SettingsError: when it is empty, or has blanks around it or characters that
            nobody sees: no policy and no API key could name it.
    """
    require(
        is_a(name, str) and is_name(name),
        "agent",
        name,
        "an agent needs a name, by which policy and cards know it, such as 'support', "
        "without blanks around it; leave it out for 'agent'",
    )
    return name


def given_gateway(
    gateway: Gateway | str | None,
    api_key: str | None = None,
    receipt_keys: Iterable[str] = (),
) -> Gateway | None:
    """Return the gateway that a program names; None when it names none.

    A URL takes its key from ``api_key``, else from the environment. With
    ``receipt_keys`` and without a URL it is the gateway of the environment.

    Raises:
        SettingsError: when the URL or a key cannot be used.
    """
    known = key_lines(receipt_keys)
    if not isinstance(gateway, str):
        port.check_gateway(gateway)
    if isinstance(gateway, str):
        return _at(gateway, key_or_environment(api_key), known)
    if known:
        url = "" if gateway is not None else os.environ.get(URL_VARIABLE, "")
        if not url:
            raise SettingsError(
                "receipt_keys= is for a gateway at a URL; write gateway='https://…' "
                f"as well, or set {URL_VARIABLE}."
            )
        return _at(url, key_or_environment(api_key), known)
    if api_key is not None:
        raise SettingsError(
            "api_key= is for a gateway at a URL; write gateway='https://…' as well."
        )
    return gateway


def current_gateway() -> Gateway:
    """Return the gateway of this context, else the one that the environment names.

    Raises:
        NotAllowed: when there is none; gated tools then do not run.
        SettingsError: when the environment names one that cannot be used.
    """
    found = port.connected_gateway()
    if found is not None:
        return found
    url = os.environ.get(URL_VARIABLE, "")
    if url:
        return _at(url, key_or_environment(None), ())
    raise NotAllowed(
        "No approval gateway is connected, so this call cannot run. Start the agent "
        "with `twokey run`, inside `Twokey(...)`, pass `gateway=`, or set "
        f"{URL_VARIABLE} and {KEY_VARIABLE}."
    )


def gateway_at(
    url: str | None, api_key: str | None, receipt_keys: Iterable[str] = ()
) -> HttpGateway:
    """Return the gateway at a URL; URL and API key may be the environment's.

    Raises:
        SettingsError: when the URL or the key is missing or cannot be used.
    """
    found = os.environ.get(URL_VARIABLE, "") if url is None else url
    if not found:
        raise SettingsError(
            f"No gateway is named: give its URL, https://…, or set {URL_VARIABLE}."
        )
    return HttpGateway(found, key_or_environment(api_key), receipt_keys=receipt_keys)


def key_or_environment(api_key: str | None) -> str:
    """Return an API key that was given, else the one of the environment.

    Raises:
        SettingsError: when it is no text.
    """
    require_secret(
        api_key is None or is_a(api_key, str),
        "api_key",
        api_key,
        f"give what `twokey api-keys create` printed (tk_…), or set {KEY_VARIABLE}",
    )
    return os.environ.get(KEY_VARIABLE, "") if api_key is None else api_key


@cache
def _at(url: str, api_key: str, receipt_keys: tuple[str, ...]) -> HttpGateway:
    # One for each gateway and its keys, so that all agents share its connections.
    return HttpGateway(url, api_key, receipt_keys=receipt_keys)

"""Check that what surrounds a store can do its part: Sentinels, and a whole cluster."""

from __future__ import annotations

import asyncio
from contextlib import closing
from urllib.parse import urlsplit

from redis.exceptions import RedisError

from twokey.gateway.store.multiplexed import Reply
from twokey.gateway.store.node import open_connection
from twokey.gateway.store.server_address import (
    CLUSTER,
    SENTINEL,
    ServerAddress,
    cluster_addresses,
    sentinel_address,
)

_ASK_S = 2.0


class Passing(str):
    """A problem that may end by itself: a failover may be under way."""

    __slots__ = ()


async def topology_problems(url: str) -> list[str]:
    """Return why a store of several servers could stop or lose something.

    What may end by itself is `Passing`.
    """
    scheme = urlsplit(url).scheme
    if scheme in SENTINEL:
        return await _sentinel_problems(url)
    if scheme in CLUSTER:
        return await _cluster_problems(url)
    return []


async def _sentinel_problems(url: str) -> list[str]:
    found = sentinel_address(url)
    words = ("SENTINEL", "CKQUORUM", found.name)
    said = await asyncio.gather(*(_asked(one, words) for one in found.sentinels))
    problems: list[str] = [
        Passing(
            f"The Sentinel {one.host}:{one.port} does not answer ({answer}); start it, "
            "or take it out of TWOKEY_REDIS_URL."
        )
        for one, answer in zip(found.sentinels, said, strict=True)
        if isinstance(answer, OSError)
    ]
    # NOQUORUM: too few of them see each other to replace a master.
    refused = [one for one in said if isinstance(one, RedisError)]
    if refused:
        problems.append(
            Passing(
                f"The Sentinels cannot replace the master {found.name!r} "
                f"({refused[0]}); start more of them, so that a majority sees it."
            )
        )
    if len(found.sentinels) < _FEWEST:
        problems.append(
            f"TWOKEY_REDIS_URL lists {len(found.sentinels)} Sentinels; list three or "
            "more, on machines of their own: fewer cannot agree when one is away."
        )
    return problems


async def _cluster_problems(url: str) -> list[str]:
    places = cluster_addresses(url)
    said = await asyncio.gather(*(_asked(one, ("CLUSTER", "INFO")) for one in places))
    # One that is away is only one to ask: its slots are told of by the others.
    answers = [
        (one, reply)
        for one, reply in zip(places, said, strict=True)
        if isinstance(reply, bytes)
    ]
    if not answers:
        why = "No node of the cluster in TWOKEY_REDIS_URL answers; start them."
        return [Passing(why)]
    broken = [one for one, reply in answers if b"cluster_state:ok" not in reply]
    if not broken:
        return []
    place = f"{broken[0].host}:{broken[0].port}"
    return [
        Passing(
            f"The cluster is not whole, says {place}, so some tenants have no store; "
            f"see: redis-cli --cluster check {place}"
        )
    ]


async def _asked(address: ServerAddress, words: tuple[str, ...]) -> Reply:
    """Return what one server says; its refusal, or an OSError when it says nothing."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_ASK_S):
            with closing(await open_connection(address)) as opened:
                [reply] = await opened.ask([words], loop.time() + _ASK_S)
                return reply
    except RedisError as error:
        return OSError(str(error))
    except OSError as error:
        return error


_FEWEST = 3

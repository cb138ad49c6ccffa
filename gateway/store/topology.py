"""Check that what surrounds a store can do its part: Sentinels, and a whole cluster."""

from __future__ import annotations

import asyncio
from typing import cast

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from keyturn.gateway.store.server_address import (
    ASK_S,
    Options,
    StoreAddress,
    client_options,
    store_address,
)
from keyturn.gateway.store.servers import Reply

_FEWEST = 3


class Passing(str):
    """A problem that may end by itself: a failover may be under way."""

    __slots__ = ()


async def topology_problems(url: str) -> list[str]:
    """Return why a store of several servers could stop or lose something.

    What may end by itself is `Passing`.
    """
    address = store_address(url)
    if address.master:
        return await _sentinel_problems(address)
    if address.places:
        return await _cluster_problems(address)
    return []


async def _sentinel_problems(found: StoreAddress) -> list[str]:
    said = await asyncio.gather(
        *(
            _asked(found.sentinel_options, one, "SENTINEL", "CKQUORUM", found.master)
            for one in found.places
        )
    )
    problems: list[str] = [
        Passing(
            f"The Sentinel {host}:{port} does not answer ({answer}); start it, "
            "or take it out of KEYTURN_REDIS_URL."
        )
        for (host, port), answer in zip(found.places, said, strict=True)
        if isinstance(answer, OSError)
    ]
    # NOQUORUM: too few of them see each other to replace a master.
    refused = [one for one in said if isinstance(one, ResponseError)]
    if refused:
        problems.append(
            Passing(
                f"The Sentinels cannot replace the master {found.master!r} "
                f"({refused[0]}); start more of them, so that a majority sees it."
            )
        )
    if len(found.places) < _FEWEST:
        problems.append(
            f"KEYTURN_REDIS_URL lists {len(found.places)} Sentinels; list three or "
            "more, on machines of their own: fewer cannot agree when one is away."
        )
    return problems


async def _cluster_problems(found: StoreAddress) -> list[str]:
    said = await asyncio.gather(
        *(_asked(found.options, one, "CLUSTER", "INFO") for one in found.places)
    )
    # One that is away is only one to ask: its slots are told of by the others.
    answers = [
        (f"{host}:{port}", reply)
        for (host, port), reply in zip(found.places, said, strict=True)
        if isinstance(reply, bytes)
    ]
    if not answers:
        why = "No node of the cluster in KEYTURN_REDIS_URL answers; start them."
        return [Passing(why)]
    broken = [one for one, reply in answers if b"cluster_state:ok" not in reply]
    if not broken:
        return []
    place = broken[0]
    return [
        Passing(
            f"The cluster is not whole, says {place}, so some tenants have no store; "
            f"see: redis-cli --cluster check {place}"
        )
    ]


async def _asked(options: Options, place: tuple[str, int], *words: str) -> Reply:
    """Return what one server says; its refusal, or an OSError when it says nothing."""
    host, port = place
    client = Redis(
        host=host, port=port, retry=Retry(NoBackoff(), 0), **client_options(options)
    )
    try:
        async with asyncio.timeout(ASK_S):
            return cast("Reply", await client.execute_command(*words))  # type: ignore[no-untyped-call]
    except ResponseError as error:
        return error
    except (RedisError, OSError) as error:
        return OSError(str(error))
    finally:
        await client.aclose()

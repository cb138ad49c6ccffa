"""Ways to send webhooks to the wrong place, unsigned, or not at all."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ADDRESSES = "gateway/webhooks/addresses.py"
POSTING = "gateway/webhooks/posting.py"
SENDING = "gateway/webhooks/sending.py"
QUEUE = "gateway/store/webhooks.py"
END = "gateway/store/lua/webhook_end.lua"
OF_ADDRESSES = "tests/webhooks/test_addresses.py"
OF_SENDING = "tests/webhooks/test_sending.py"
OF_QUEUE = "tests/webhooks/test_queue.py"

WEBHOOKS_TABLE = (
    Mutant(
        "a webhook goes to no address that is not public",
        ADDRESSES,
        "            if not is_allowed(address, may_be_private=may_be_private):",
        "            if False:",
        OF_ADDRESSES,
    ),
    Mutant(
        "every address of a host is checked",
        ADDRESSES,
        "        for address in found:\n            if not",
        "        for address in found[:1]:\n            if not",
        OF_ADDRESSES,
    ),
    Mutant(
        "a name is looked up and checked for each message",
        POSTING,
        "            use_dns_cache=False,\n",
        "",
        OF_ADDRESSES,
    ),
    Mutant(
        "a webhook follows no redirect",
        POSTING,
        "allow_redirects=False",
        "allow_redirects=True",
        OF_ADDRESSES,
    ),
    Mutant(
        "a webhook takes no proxy of the environment",
        POSTING,
        "trust_env=False",
        "trust_env=True",
        OF_ADDRESSES,
    ),
    Mutant(
        "a receiver of webhooks has one deadline",
        POSTING,
        "asyncio.timeout(self._timeout_s)",
        "asyncio.timeout(300)",
        OF_ADDRESSES,
    ),
    Mutant(
        "a queued webhook is signed when it was sealed for its target",
        QUEUE,
        "[self._all, id_], raw)",
        "[self._due, id_], raw)",
        OF_QUEUE,
    ),
    Mutant(
        "a webhook tells of what a record confirms",
        SENDING,
        "                if not known[message.news]:\n",
        "                if False:\n",
        OF_QUEUE,
    ),
    Mutant(
        "the end of a webhook is recorded once",
        END,
        "if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then",
        "if false then",
        OF_QUEUE,
    ),
    Mutant(
        "a webhook is taken by one process",
        "gateway/store/lua/webhook_take.lua",
        "redis.call('ZADD', KEYS[2], now + ARGV[2], id)",
        "local leased = true",
        OF_QUEUE,
    ),
    Mutant(
        "events are acknowledged when their webhooks are queued",
        SENDING,
        "                await self._sender.queue(self._shard, events)\n"
        "                await self._outbox.done(*(one.seq for one in events))\n",
        "                await self._outbox.done(*(one.seq for one in events))\n",
        OF_SENDING,
    ),
    Mutant(
        "what a dead process had read is read again",
        SENDING,
        "for take in (self._abandoned, self._new):",
        "for take in (self._new,):",
        OF_SENDING,
    ),
    Mutant(
        "a webhook has the same id each time",
        "gateway/webhooks/decisions.py",
        "event.seq, event.approval, event.item])",
        "event.seq, event.approval, event.item, __import__('os').urandom(4).hex()])",
        OF_SENDING,
    ),
    Mutant(
        "a webhook that is given up is reported",
        SENDING,
        "        if outcome is Outcome.DEAD and is_ours:",
        "        if False:",
        OF_SENDING,
    ),
    Mutant(
        "a webhook is about agents of its target alone",
        "gateway/webhooks/decisions.py",
        "or not target.is_of(run.agent):",
        "or False:",
        OF_SENDING,
    ),
    Mutant(
        "a webhook counts once for its receiver",
        "gateway/remote/webhooks.py",
        "        self._known[id_] = now_s\n",
        "",
        "tests/webhooks/test_receiving.py",
    ),
)

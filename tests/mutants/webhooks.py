"""Ways to send webhooks to the wrong place, unsigned, or not at all."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SENDING = "gateway/webhooks.py"
OF_ADDRESSES = "tests/webhooks/test_addresses.py"
OF_SENDING = "tests/webhooks/test_sending.py"

WEBHOOKS_TABLE = (
    Mutant(
        "a webhook goes to no address that is not public",
        SENDING,
        "            if not is_allowed(address, may_be_private=may_be_private):",
        "            if False:",
        OF_ADDRESSES,
    ),
    Mutant(
        "every address of a host is checked",
        SENDING,
        "        for address in found:\n            if not",
        "        for address in found[:1]:\n            if not",
        OF_ADDRESSES,
    ),
    Mutant(
        "a name is looked up and checked for each message",
        SENDING,
        "            use_dns_cache=False,\n",
        "",
        OF_ADDRESSES,
    ),
    Mutant(
        "a webhook follows no redirect",
        SENDING,
        "allow_redirects=False",
        "allow_redirects=True",
        OF_ADDRESSES,
    ),
    Mutant(
        "a webhook takes no proxy of the environment",
        SENDING,
        "trust_env=False",
        "trust_env=True",
        OF_ADDRESSES,
    ),
    Mutant(
        "a receiver of webhooks has one deadline",
        SENDING,
        "asyncio.timeout(self._timeout_s)",
        "asyncio.timeout(300)",
        OF_ADDRESSES,
    ),
    Mutant(
        "events are acknowledged when their webhook was taken",
        SENDING,
        "if one.seq not in told))",
        "))",
        OF_SENDING,
    ),
    Mutant(
        "what a dead process had read is read again",
        SENDING,
        "                while after:\n",
        "                while False:\n",
        OF_SENDING,
    ),
    Mutant(
        "a webhook has the same id each time",
        SENDING,
        "told[0].seq, news.approval])",
        "told[0].seq, __import__('os').urandom(4).hex()])",
        OF_SENDING,
    ),
    Mutant(
        "a webhook that is given up is reported",
        SENDING,
        "            await self._store.security.report(self._keys, found)\n",
        "            pass\n",
        OF_SENDING,
    ),
    Mutant(
        "a webhook is about agents of its target alone",
        SENDING,
        "and target.is_of(run.agent):",
        "and run.agent:",
        OF_SENDING,
    ),
    Mutant(
        "a webhook counts once for its receiver",
        "gateway/remote/program.py",
        "        self._known[id_] = None\n",
        "",
        "tests/webhooks/test_receiving.py",
    ),
)

"""Ways to keep what is to be erased, or to erase what is needed."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SERVICE = "gateway/service/erasing.py"
STORE = "gateway/store/erasing.py"
SCRIPT = "gateway/store/lua/erase.lua"

ERASING = "tests/service/test_erasing.py"
BOUNDS = "tests/service/test_erasing_bounds.py"
REDACTED = "tests/bot/test_redacted_messages.py"

ERASING_TABLE = (
    Mutant(
        "nobody erases an approval of another tenant",
        SERVICE,
        "if loaded is None or loaded.approval.tenant != self._tenant:",
        "if loaded is None:",
        ERASING,
    ),
    Mutant(
        "nothing is erased but what has an id",
        SERVICE,
        "        if not is_person and tenant_of_approval(what) is None:\n",
        "        if not what:\n",
        ERASING,
    ),
    Mutant(
        "a dry run erases no approval",
        SERVICE,
        "        if is_dry_run:\n",
        "        if False:\n",
        ERASING,
    ),
    Mutant(
        "a dry run says what is kept",
        SERVICE,
        'return "open" if any(one.state in _OPEN for one in found.items) else ""',
        'return ""',
        ERASING,
    ),
    Mutant(
        "what others asked for is not erased with a person",
        SERVICE,
        "approval.requester and approval.requester.user == user:",
        "approval.requester:",
        BOUNDS,
    ),
    Mutant(
        "what was erased is found again by its person",
        STORE,
        "    return {_ASKED_BY: seal.hex()}\n",
        "    return {}\n",
        BOUNDS,
    ),
    Mutant(
        "an erased approval is found by nobody else's id",
        STORE,
        "    return is_erased and keys.is_valid(\n",
        "    return is_erased and bool(seal) or keys.is_valid(\n",
        BOUNDS,
    ),
    Mutant(
        "the log of another tenant keeps its entries",
        STORE,
        "        if found.tenant != self.tenant or found.name is",
        "        if found.name is",
        BOUNDS,
    ),
    Mutant(
        "who erased is not erased",
        STORE,
        "found.tenant != self.tenant or found.name is EventName.APPROVAL_ERASED:",
        "found.tenant != self.tenant:",
        BOUNDS,
    ),
    Mutant(
        "a person is erased where they acted on what others asked for",
        STORE,
        "        return bool(self.user) and self.user in _NAME.findall(row.event)\n",
        "        return False\n",
        BOUNDS,
    ),
    Mutant(
        "an id that begins with a person's is another person's",
        STORE,
        "self.user in _NAME.findall(row.event)",
        "self.user in row.event",
        BOUNDS,
    ),
    Mutant(
        "a precedent keeps no words of what was erased",
        STORE,
        '            left = found.with_(reason="", by=people)\n',
        "            left = found.with_(by=people)\n",
        ERASING,
    ),
    Mutant(
        "a dry run erases no entry",
        STORE,
        "        if seqs and not is_dry_run:\n",
        "        if seqs:\n",
        ERASING,
    ),
    Mutant(
        "no file is changed while a gateway seals",
        STORE,
        '            async with store.threads.lease(keys, "", "audit"):\n',
        "            if True:\n",
        BOUNDS,
    ),
    Mutant(
        "an approval that never was is not said to be erased",
        SERVICE,
        "        if not is_person and not await self._is_known(what):\n",
        "        if False:\n",
        ERASING,
    ),
    Mutant(
        "who erases is told of entries that are in no file yet",
        STORE,
        "    return count, sum(wanted.has(one) for one in live)\n",
        "    return count, 0\n",
        ERASING,
    ),
    Mutant(
        "messages about what is erased are redacted at once",
        STORE,
        "        await store.posted_messages.erase(keys, approval.id)\n",
        "        pass\n",
        REDACTED,
    ),
    Mutant(
        "a card of what was erased is replaced",
        "bot/delivery/card_updater.py",
        "    if not any(one.name is EventName.APPROVAL_ERASED for one in events):\n",
        "    if events:\n",
        "tests/bot/test_erased_cards.py",
    ),
    Mutant(
        "what changed meanwhile is not erased",
        SCRIPT,
        "if (redis.call('HGET', KEYS[1], 'rev') or '') ~= ARGV[1] then",
        "if false then",
        BOUNDS,
    ),
    Mutant(
        "what is still to happen is not erased",
        SCRIPT,
        "if is_open(KEYS[1]) then return {'open'} end\n",
        "",
        ERASING,
    ),
    Mutant(
        "what an agent may still ask for is not erased",
        SCRIPT,
        "if facts[1] == 'open' or facts[2] then return {'running'} end\n",
        "",
        ERASING,
    ),
    Mutant(
        "the document of an approval is erased with it",
        SCRIPT,
        "redis.call('DEL', KEYS[1], KEYS[2], KEYS[7])",
        "redis.call('DEL', KEYS[1], KEYS[7])",
        ERASING,
    ),
    Mutant(
        "who read an approval is erased with it",
        SCRIPT,
        "redis.call('DEL', KEYS[1], KEYS[2], KEYS[7])",
        "redis.call('DEL', KEYS[1], KEYS[2])",
        BOUNDS,
    ),
    Mutant(
        "verdicts are erased with their approval",
        SCRIPT,
        "redis.call('SET', KEYS[8], ARGV[6], 'PX', ARGV[7]) end\n",
        "redis.call('PEXPIRE', KEYS[8], ARGV[7]) end\n",
        BOUNDS,
    ),
    Mutant(
        "a turn that was erased is not proposed again",
        "gateway/service/submitting.py",
        "if not self.verdicts:",
        "if False:",
        BOUNDS,
    ),
    Mutant(
        "who asked in a thread is erased with the person",
        SCRIPT,
        "if ARGV[5] == '1' then redis.call('HDEL', KEYS[3], 'facts') end\n",
        "",
        ERASING,
    ),
    Mutant(
        "what people said of rejected calls is erased",
        SCRIPT,
        "do redis.call('HDEL', KEYS[6], call) end",
        "do call = nil end",
        ERASING,
    ),
    Mutant(
        "an erasure is announced and audited",
        SCRIPT,
        "announce(KEYS[4], KEYS[5], ARGV[4], now_ms())\n",
        "",
        ERASING,
    ),
)

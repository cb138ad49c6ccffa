"""Break the script that writes an approval that was precomputed."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

LUA = "gateway/store/lua/approve.lua"
TEXTS = "gateway/store/approve_texts.py"
SCRIPT = "tests/service/test_approve_script.py"
TOLD = "tests/store/test_approve_texts.py"

APPROVE_SCRIPT_TABLE = (
    Mutant(
        "approved in texts: another version is noticed",
        LUA,
        "if found[1] ~= ARGV[2] or",
        "if",
        SCRIPT,
    ),
    Mutant(
        "approved in texts: an old reading is not written",
        LUA,
        "or math.abs(now - tonumber(ARGV[3])) > MAX_READING_MS then",
        "then",
        SCRIPT,
    ),
    Mutant(
        "approved in texts: another change under the same number is noticed",
        LUA,
        "if found[2] ~= from_hex(ARGV[8]) or now",
        "if now",
        SCRIPT,
    ),
    Mutant(
        "approved in texts: a late click is refused",
        LUA,
        " or now >= tonumber(ARGV[4]) then",
        " then",
        SCRIPT,
    ),
    Mutant(
        "approved in texts: what is quarantined is not approved",
        LUA,
        "if found[3] or (found[4]",
        "if (found[4]",
        SCRIPT,
    ),
    Mutant(
        "approved in texts: uses of windows are left to the script that moves them",
        LUA,
        "if found[3] or (found[4] or '[]') ~= '[]' or",
        "if found[3] or",
        SCRIPT,
    ),
    Mutant(
        "approved in texts: a lifetime is left to the script that takes it away",
        LUA,
        " or redis.call('PTTL', head) ~= -1 then",
        " then",
        SCRIPT,
    ),
    Mutant(
        "approved in texts: a field that is not as it was read is noticed",
        LUA,
        "if (found[6 + place] or '') ~= ARGV[at + count + place] then",
        "if false then",
        SCRIPT,
    ),
    Mutant(
        "approved in texts: a freeze since then is noticed",
        LUA,
        "  and freeze_of(frozen, {unpack(ARGV, unfrozen + 1, kept - 1)}) then",
        "  and false then",
        SCRIPT,
    ),
    Mutant(
        "approved in texts: what surrounds a click is compared",
        LUA,
        "if has_other_surroundings(head,",
        "if false and has_other_surroundings(head,",
        SCRIPT,
    ),
    Mutant(
        "approved in texts: its call waits for nobody any more",
        LUA,
        "redis.call('ZREM', waiting, listed(id) .. index)\n",
        "",
        SCRIPT,
    ),
    Mutant(
        "approved in texts: it leaves the queues of people",
        LUA,
        "for place = queues, precedents - 1 do",
        "for place = queues, precedents - 2 do",
        SCRIPT,
    ),
    Mutant(
        "approved in texts: its deadline is that of its authorization",
        LUA,
        "reindex(head, expiry, id, now)\n",
        "",
        SCRIPT,
    ),
    Mutant(
        "approved in texts: its event is in the audit log",
        LUA,
        "  write_sealed(audit, ARGV[place], ARGV[place + 1], now)\n",
        "",
        SCRIPT,
    ),
    Mutant(
        "approved in texts: it brings its job",
        LUA,
        "enqueue(jobs, ARGV[7])\n",
        "",
        SCRIPT,
    ),
    Mutant(
        "approved in texts: it ends a row of rejections",
        LUA,
        "redis.call('DEL', rejections)\n",
        "",
        SCRIPT,
    ),
    Mutant(
        "approved in texts: what is to be kept is kept",
        LUA,
        "for place = kept, #ARGV, 3 do",
        "for place = kept + 3, #ARGV, 3 do",
        SCRIPT,
    ),
    Mutant(
        "approved in texts: windows are told in JSON",
        TEXTS,
        "if any(one != _NO_USES for one in uses.values()):",
        "if False:",
        TOLD,
    ),
    Mutant(
        "approved in texts: queues that it enters are told in JSON",
        TEXTS,
        '    if queues.get("enters"):\n        raise _AnotherShape\n',
        "",
        TOLD,
    ),
    Mutant(
        "approved in texts: what the script knows nothing of is told in JSON",
        TEXTS,
        "if not needed <= document.keys() <= _TOLD or",
        "if not needed <= document.keys() or",
        TOLD,
    ),
    Mutant(
        "approved in texts: what the script does not compare is told in JSON",
        TEXTS,
        "if not assumed.keys() <= {*_ASSUMED}:",
        "if False:",
        TOLD,
    ),
    Mutant(
        "approved in texts: no text is taken for two",
        TEXTS,
        "isinstance(one, str) and _BETWEEN in one for",
        "False for",
        TOLD,
    ),
    Mutant(
        "approved in texts: fields of bytes are told in JSON",
        TEXTS,
        "if not (seal_read and seal) or any(map(is_raw, names)):",
        "if not (seal_read and seal):",
        TOLD,
    ),
    Mutant(
        "approved in texts: what is taken away is told in JSON",
        TEXTS,
        "case bool():",
        "case None:",
        TOLD,
    ),
    Mutant(
        "approved in texts: other states are told in JSON",
        TEXTS,
        "if [*states.values()] != [ItemState.AUTHORIZED]:",
        "if len(states) != 1:",
        TOLD,
    ),
)

"""List ways to lose or hide something where there is very much of it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

BOUNDED = "tests/service/test_bounded_reads.py"
SEGMENTS = "tests/store/test_audit_segments.py"
DERIVED = "tests/store/test_derived.py"
PEOPLE = "tests/service/test_person_queues.py"

SCALE_TABLE = (
    Mutant(
        "a reader takes from segments what was sealed while it read",
        "gateway/store/audit_log.py",
        "            if sealed.last >= low:\n",
        "            if False:\n",
        SEGMENTS,
    ),
    Mutant(
        "each segment fits the one behind it",
        "gateway/store/audit_segments.py",
        "            expected = header.before\n",
        "            previous = read_header(folder, shard, number - 1)\n"
        "            expected = previous.digest if previous else header.before\n",
        SEGMENTS,
    ),
    Mutant(
        "the lines of a segment are those of its header",
        "gateway/store/audit_segments.py",
        " or hashlib.sha256(content).hexdigest() != header.content",
        "",
        SEGMENTS,
    ),
    Mutant(
        "no entry is sealed that no replica has",
        "gateway/service/sealing.py",
        "        await self._store.conn.confirm(self._keys.audit)\n",
        "",
        SEGMENTS,
    ),
    Mutant(
        "a segment of another history is not taken for the next one",
        "gateway/service/sealing.py",
        "        if header != expected:\n",
        "        if False:\n",
        SEGMENTS,
    ),
    Mutant(
        "a chain does not go on in a second folder",
        "gateway/service/sealing.py",
        "        if header is None or header.digest != sealed.digest:\n",
        "        if False:\n",
        SEGMENTS,
    ),
    Mutant(
        "a segment is noted once",
        "gateway/store/lua/seal.lua",
        "if number ~= tonumber(ARGV[1]) - 1 then return {'moved'} end",
        "",
        SEGMENTS,
    ),
    Mutant(
        "no removed segment is expected again",
        "gateway/store/lua/forget_segments.lua",
        "tonumber(redis.call('HGET', KEYS[1], 'first') or '0') < tonumber(ARGV[1])",
        "true",
        SEGMENTS,
    ),
    Mutant(
        "one look at a window forgets a bounded number of uses",
        "gateway/store/lua/prelude.lua",
        "now, 'LIMIT', 0, MOST_FORGOTTEN)",
        "now)",
        BOUNDED,
    ),
    Mutant(
        "a window takes out what it subtracts, and nothing else",
        "gateway/store/lua/prelude.lua",
        "redis.call('ZREMRANGEBYRANK', window, 0, #past - 1)",
        "redis.call('ZREMRANGEBYSCORE', window, '-inf', now)",
        BOUNDED,
    ),
    Mutant(
        "no more people delegate than each decision can read",
        "gateway/store/lua/delegate.lua",
        "others >= tonumber(ARGV[5])",
        "false",
        BOUNDED,
    ),
    Mutant(
        "a turn reads the freezes of its own tools",
        "gateway/store/agent_load.py",
        "*names_of(agent, *wanted.tools)",
        "*names_of(agent)",
        BOUNDED,
    ),
    Mutant(
        "a server that loads is not taken for one that is dead",
        "gateway/store/engine.py",
        "                deadline = time.monotonic() + _START_S\n",
        "                pass\n",
        "tests/store/test_loading.py",
    ),
    Mutant(
        "a remote server that loads is waited for",
        "gateway/store/open_store.py",
        "        await until_loaded(store.conn, _shown(url))\n",
        "        pass\n",
        "tests/store/test_loading.py",
    ),
    Mutant(
        "a queue of people is named before anything waits in it",
        "gateway/store/lua/prelude.lua",
        "    if redis.call('EXISTS', row[1]) == 0 then\n",
        "    if false then\n",
        PEOPLE,
    ),
    Mutant(
        "who may decide a changed call finds it",
        "gateway/store/person_queues.py",
        'return {"leaves": leaves, "enters": enters, "groups": groups}',
        'return {"leaves": leaves, "enters": [], "groups": groups}',
        PEOPLE,
    ),
    Mutant(
        "what is decided leaves its queue",
        "gateway/store/person_queues.py",
        'return {"leaves": leaves, "enters": enters, "groups": groups}',
        'return {"leaves": [], "enters": enters, "groups": groups}',
        PEOPLE,
    ),
    Mutant(
        "a page ends where one of its queues is known no further",
        "gateway/store/person_queues.py",
        "if end is None or one <= end]",
        "]",
        PEOPLE,
    ),
    Mutant(
        "what is no id in a queue hides nothing behind it",
        "gateway/store/person_queues.py",
        'is_cut = len(cast("list[Reply]", reply or [])) >= 2 * limit',
        "is_cut = len(rows) >= limit",
        PEOPLE,
    ),
    Mutant(
        "so many at one moment hide nothing behind them",
        "gateway/store/person_queues.py",
        "                    again.append(queue)\n",
        "                    pass\n",
        PEOPLE,
    ),
    Mutant(
        "what a person may decide is listed, however much waits for others",
        "bot/listeners/command.py",
        "for one in (*mine, *here)}",
        "for one in here}",
        "tests/bot/listeners/test_queue_and_preview.py",
    ),
    Mutant(
        "a bot that lost its events looks at every open card",
        "bot/delivery/feed.py",
        "            await self.mark_missed()\n",
        "            pass\n",
        "tests/bot/test_missed_cards.py",
    ),
    Mutant(
        "an event that no index has is kept, however full the queue is",
        "bot/delivery/feed.py",
        "is_indexed = _opens_a_card(event) and self._is_full()",
        "is_indexed = self._is_full()",
        "tests/bot/test_feed.py",
    ),
    Mutant(
        "a reader that a process uses is not dropped",
        "cli/outbox.py",
        "if idle_ms is not None and idle_ms < IN_USE_MS:",
        "if False:",
        "tests/cli/test_outbox_command.py",
    ),
    Mutant(
        "a process that holds a job is not forgotten",
        "gateway/store/lua/forget_consumers.lua",
        "one ~= newest and one.pending == 0 and",
        "one ~= newest and",
        "tests/store/test_readers.py",
    ),
    Mutant(
        "what is put back differs from what was left out, and is kept",
        "gateway/store/derived.py",
        "return short if completed(record, index, short) == row else row",
        "return short",
        DERIVED,
    ),
    Mutant(
        "what a stored row names itself is compared as it stands",
        "gateway/store/derived.py",
        "compared as it stands.\n        **kept,\n",
        "ignored.\n        **{k: kept[k] for k in kept.keys() - _LEFT_OUT},\n",
        "tests/attacks/test_tampered_store.py",
    ),
    Mutant(
        "a changed detail holds as a whole",
        "gateway/store/codec.py",
        "kept = {name: one for name, one in row.items() if name not in IN_DETAIL}",
        "kept = row",
        DERIVED,
    ),
    Mutant(
        "requests end to count",
        "gateway/store/lua/prelude.lua",
        "    if now < tonumber(rows[index]) then\n      count",
        "    if true then\n      count",
        "tests/service/test_attention.py",
    ),
    Mutant(
        "what is remembered of a newer format is not used",
        "gateway/store/known_records.py",
        "        codec.check_format(approval_id, head)\n",
        "",
        "tests/resume/test_rolling_upgrade.py",
    ),
)

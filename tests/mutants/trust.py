"""List ways to believe what nobody proved, or to let one bad thing stop all others."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

FLOODS = "tests/bot/test_ingress.py"
TAMPERED = "tests/attacks/test_tampered_store.py"
TAMPERED_AGENT = "tests/attacks/test_tampered_agent.py"
LEAKS = "tests/attacks/test_leaks.py"
FORGED = "tests/agent/test_forged_edits.py"
LUA = "gateway/store/lua"
RAISED = "tests/service/test_raised_time.py"
ASKING = "tests/service/test_asking.py"

TRUST_TABLE = (
    Mutant(
        "holding connections keeps nobody else out",
        "bot/ingress.py",
        " and not self._made_room()",
        "",
        FLOODS,
    ),
    Mutant(
        "a request that came whole makes room for nobody",
        "bot/ingress.py",
        "        self._waiting.pop(connection, None)\n        try:",
        "        try:",
        FLOODS,
    ),
    Mutant(
        "what could not be kept may come again, signed alike",
        "bot/ingress.py",
        "await self._nonces.forget(digest)",
        "pass",
        FLOODS,
    ),
    Mutant(
        "two calls that differ never read the same",
        "bot/cards/listing.py",
        "_is_odd(argument.text) or argument.is_like_another",
        "_is_odd(argument.text)",
        "tests/bot/cards/test_listing.py",
    ),
    Mutant(
        "only we write marks",
        "bot/cards/listing.py",
        '    return text.replace("⟦", mark("⟦"))',
        "    return text",
        "tests/bot/cards/test_listing.py",
    ),
    Mutant(
        "an agent's words stand in no audit log",
        "gateway/resume/announcing.py",
        '"e", event.model_dump_json()',
        '"e", told.model_dump_json()',
        LEAKS,
    ),
    Mutant(
        "a foreign error is not quoted",
        "gateway/failures.py",
        "if isinstance(error, TwokeyError) else",
        "if error else",
        LEAKS,
    ),
    Mutant(
        "a tool writes nothing of ours",
        "gateway/agent/cleaning.py",
        "results.without_updates(result, turns.OUR_STATE)",
        "result",
        FORGED,
    ),
    Mutant(
        "only an edit of the record is told",
        "gateway/agent/run_edits.py",
        "forged = unknown.keys() - made",
        "forged = unknown.keys() - unknown.keys()",
        FORGED,
    ),
    Mutant(
        "an edit of another thread is not confirmed",
        "gateway/service/agents.py",
        "if found is None or not _is_of_run(found[0], ref):",
        "if found is None:",
        "tests/service/test_edits_made.py",
    ),
    Mutant(
        "an edit inside one agent is not confirmed inside another",
        "gateway/service/agents.py",
        "(is_one_agent and is_outermost)",
        "is_one_agent",
        "tests/attacks/test_runs.py",
    ),
    Mutant(
        "what a process heard of one thread it tells in no other",
        "gateway/agent/book.py",
        "return (home, edit_hash) in self._edits",
        "return edit_hash in {each for _, each in self._edits}",
        "tests/agent/test_edits_of_a_thread.py",
    ),
    Mutant(
        "what waits inside ends with the turn outside",
        "gateway/service/agents.py",
        "return one.ns == ref.ns or is_inside(one.ns, ref.ns)",
        "return one.ns == ref.ns",
        "tests/service/test_inside.py",
    ),
    Mutant(
        "what runs beside an agent does not end with its turn",
        "gateway/approvals/record.py",
        'not inner.partition("|")[0].isdecimal()',
        "bool(inner)",
        "tests/service/test_inside.py tests/resume/test_cut_off_inside.py",
    ),
    Mutant(
        "whoever asked outside is a principal of what is inside",
        "gateway/store/attention.py",
        "keys.thread_facts(tenant, home.agent, home.thread)",
        "keys.thread_facts(tenant, agent, thread)",
        "tests/service/test_inside.py",
    ),
    Mutant(
        "a decision brings back the agent outside",
        "gateway/service/reviews.py",
        "agent=approval.home.agent",
        "agent=approval.agent",
        "tests/service/test_inside.py",
    ),
    Mutant(
        "an outermost agent believes no run that was left over",
        "gateway/agent/homes.py",
        "return home if ns and not is_own else None",
        "return None if is_own else home",
        "tests/agent/test_homes.py",
    ),
    Mutant(
        "a deleted thread leaves nothing that waits",
        "gateway/resume/thread_runs.py",
        "await self._gateway.home.supersede_run(at.home)",
        "pass",
        "tests/resume/test_deleted_threads.py",
    ),
    Mutant(
        "a breakpoint that nobody can see is not run through",
        "gateway/resume/advancing.py",
        "elif state.is_cut_off and has_run:",
        "elif False:",
        "tests/resume/test_advancing.py",
    ),
    Mutant(
        "what was said of an edit survives a handoff",
        "gateway/agent/cleaning.py",
        "if message == known.get(message.tool_call_id):",
        "if False:",
        "tests/agent/test_handed_over.py",
    ),
    Mutant(
        "people outside asked for what a thread inside does",
        "gateway/service/submitting.py",
        "        await self._join(turn)\n",
        "",
        "tests/attacks/test_threads_inside.py",
    ),
    Mutant(
        "an authorization that was begun waits for what is inside",
        f"{LUA}/finish.lua",
        "if ARGV[4] == 'authorized' then\n",
        "if false then\n",
        "tests/service/test_executions.py",
    ),
    Mutant(
        "what a paused task may come back to is not dropped",
        "gateway/resume/advancing.py",
        "paused = {_task(ns) for ns in asking if ns}",
        "paused = set[str]()",
        "tests/resume/test_cut_off_inside.py",
    ),
    Mutant(
        "an edit is compared as a whole",
        "gateway/service/agents.py",
        "record is not None and edit_hash(record) == each",
        "record is not None",
        "tests/service/test_edits_made.py",
    ),
    Mutant(
        "a job that nobody can read keeps no other waiting",
        "gateway/store/jobs.py",
        "await self._put_aside(entry)",
        "pass",
        TAMPERED_AGENT,
    ),
    Mutant(
        "a record is about the call that was hashed",
        "gateway/store/codec.py",
        "        and _says(item, item.action)\n",
        "",
        TAMPERED,
    ),
    Mutant(
        "a record asks for what the agent asked for",
        "gateway/store/codec.py",
        "        and (_is_edited(item) or _is_as_requested(item))\n",
        "",
        TAMPERED,
    ),
    Mutant(
        "what nobody can read does not stop the clock",
        "gateway/service/sweep.py",
        "await put_aside(self._store.conn, keys, error.approval)",
        "raise error",
        TAMPERED,
    ),
    Mutant(
        "what nobody can read is withdrawn",
        "gateway/store/lua/put_aside.lua",
        "if state == 'pending' or state == 'authorized' then",
        "if false then",
        TAMPERED,
    ),
    Mutant(
        "an event that nobody knows stops no card",
        "gateway/store/outbox.py",
        "                self.unreadable += 1\n",
        "                raise\n",
        TAMPERED,
    ),
    Mutant(
        "a message that comes again starts nothing again",
        "gateway/store/lua/ask.lua",
        "redis.call('EXISTS', KEYS[1]) == 1",
        "false",
        ASKING,
    ),
    Mutant(
        "a stricter tier waits no longer than it may",
        "gateway/approvals/changes.py",
        "is_raised = item.is_pending and",
        "is_raised = False and",
        RAISED,
    ),
    Mutant(
        "a stricter tier is extended no further than it may",
        "gateway/approvals/timing.py",
        "min(first_ms, approval.latest_at_ms or first_ms)",
        "first_ms",
        RAISED,
    ),
    Mutant(
        "a raise moves the deadline by which the clock looks",
        f"{LUA}/decide.lua",
        "'expires') ~= ARGV[18] then",
        "'expires') == 'never' then",
        RAISED,
    ),
    Mutant(
        "tenants on one shard share no thread",
        "gateway/store/keys.py",
        "{self._base}:tm:{_hashed(tenant, agent, thread)}",
        "{self._base}:tm:{_hashed(agent, thread)}",
        "tests/service/test_tenants.py",
    ),
    Mutant(
        "everybody who asked at once is a principal",
        "gateway/store/lua/ask.lua",
        "(redis.call('HGET', KEYS[2], 'facts') or '') ~= ARGV[1]",
        "false",
        ASKING,
    ),
)

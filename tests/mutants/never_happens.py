"""Break what never happens, by ARCHITECTURE.md, where no other table breaks it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

GRANTS = "agent/grants.py"
TURNS = "agent/turns.py"
ANSWERS = "gateway/service/claiming.py"
LUA = "gateway/store/lua"
EVIDENCE = "gateway/approvals/evidence.py"
SHOWN = "tests/approvals/test_edits_and_evidence.py"
TEXTS = "tests/bot/test_text.py"
MEMBERSHIP = "gateway/approvals/quorum.py"
RECOVERING = "gateway/approvals/ending.py"
ENDS = "gateway/approvals/resume_value.py"

# 1. A tool that needs a person runs without an authorization of exactly its hash.
AUTHORIZED: tuple[Mutant, ...] = (
    Mutant(
        "a grant is for the arguments that were cleared",
        GRANTS,
        "return wire.args_hash(strict_json.accept_object(args)) == given.args_hash",
        "return bool(wire.args_hash(strict_json.accept_object(args)))",
        "tests/agent/test_grants.py",
    ),
    Mutant(
        "a grant is for the tool that was cleared",
        GRANTS,
        "is_own = use.grant.tool == self.name",
        "is_own = True",
        "tests/agent/test_grants.py",
    ),
    Mutant(
        "a grant lets a tool run once",
        GRANTS,
        "            if use.is_taken:\n",
        "            if False:\n",
        "tests/agent/test_grants.py",
    ),
    Mutant(
        "a grant ends with its call",
        GRANTS,
        "        use.is_open = False\n",
        "",
        "tests/agent/test_grants.py",
    ),
    Mutant(
        "a grant lets the first start through and no other",
        GRANTS,
        "return use.started == run_id",
        "return True",
        "tests/agent/test_grants.py",
    ),
    Mutant(
        "a tool that no gate cleared does not start",
        "agent/grants.py",
        "    raise_error = True\n",
        "    raise_error = False\n",
        "tests/agent/test_tool_starts.py",
    ),
    Mutant(
        "a graph with a tool that no gate clears is refused",
        "gateway/resume/graphs.py",
        "if tool.is_ungated and tool.name not in ungated",
        "if False",
        "tests/resume/test_graph_audit.py",
    ),
    Mutant(
        "a verdict is about the arguments that it was given for",
        TURNS,
        "        and verdict.args_hash == wire.args_hash(args)\n",
        "",
        "tests/agent/test_forgery.py",
    ),
    Mutant(
        "a verdict counts for its own message",
        TURNS,
        'if note.get("message_id") != message.id:',
        "if False:",
        "tests/agent/test_forgery.py",
    ),
    Mutant(
        "kept arguments are made of what the model wrote",
        TURNS,
        "return plain(row.args) if row.original_hash == wire.args_hash(written)"
        " else None",
        "return plain(row.args)",
        "tests/agent/test_forgery.py",
    ),
    Mutant(
        "an answer answers one question",
        "agent/interrupts.py",
        "answer = _latest(_interrupt(question, expected, schema), expected)\n",
        "answer = _interrupt(question, expected, schema)\n",
        "tests/agent/test_answered_before.py",
    ),
    Mutant(
        "an answer is to the hash that was asked about",
        "agent/interrupts.py",
        "!= self.item_id or found.action_hash != self.action_hash:",
        "!= self.item_id:",
        "tests/agent/test_bad_answers.py",
    ),
    Mutant(
        "an answer is of a kind that the policy allows",
        "agent/interrupts.py",
        "        if found.type not in self.kinds:\n",
        "        if False:\n",
        "tests/agent/test_bad_answers.py",
    ),
    Mutant(
        "an answer that fitted another question is checked again",
        "agent/interrupts.py",
        "dict(answer) if isinstance(answer, BaseModel) else answer",
        "answer",
        "tests/agent/test_bad_answers.py",
    ),
    Mutant(
        "of two calls with one id none runs",
        TURNS,
        '.count(call["id"]) != 1:',
        '.count(call["id"]) < 1:',
        "tests/agent/test_forgery.py",
    ),
    Mutant(
        "a call whose state cannot be read is not proposed",
        TURNS,
        "if call_id in states and state is None:",
        "if False:",
        "tests/agent/test_recheck.py",
    ),
)

# 2. Two decisions win, or one authorization executes twice.
ONCE: tuple[Mutant, ...] = (
    Mutant(
        "what ran is not authorized again",
        "gateway/approvals/lifecycle.py",
        "    (_S.FAILED, Transition.EXECUTE): _S.EXECUTED,\n",
        "    (_S.FAILED, Transition.EXECUTE): _S.EXECUTED,\n"
        "    (_S.EXECUTED, Transition.RETRY): _S.AUTHORIZED,\n",
        "tests/approvals/test_lifecycle.py",
    ),
    Mutant(
        "a script compares the fence of its lease",
        f"{LUA}/fence.lua",
        "if now ~= ARGV[#ARGV - back] then",
        "if false then",
        "tests/resume/test_fences.py",
    ),
    Mutant(
        "a script compares the token of its lease",
        f"{LUA}/fence.lua",
        "if now ~= ARGV[#ARGV - back]",
        "if string.gsub(now, ' .*', '') ~= string.gsub(ARGV[#ARGV - back], ' .*', '')",
        "tests/api/test_threads.py",
    ),
    Mutant(
        "a heartbeat keeps no other owner's claim",
        f"{LUA}/heartbeat.lua",
        "\n  or redis.call('HGET', KEYS[1], i .. ':f') ~= ARGV[3] then",
        " then",
        "tests/service/test_executions.py",
    ),
    Mutant(
        "a job that somebody else is done with is not put back",
        f"{LUA}/put_back.lua",
        "== 0 then return {'gone'} end",
        "== 0 then end",
        "tests/store/test_jobs.py",
    ),
    Mutant(
        "facts of a thread are written over what was read",
        f"{LUA}/remember.lua",
        "~= ARGV[1] then return {'moved'} end",
        "~= ARGV[1] then end",
        "tests/store/test_open_of_run.py",
    ),
    Mutant(
        "what has ended is not confirmed as in force",
        f"{LUA}/confirm.lua",
        "~= 'authorized' then return {'ended'} end",
        "~= 'authorized' then end",
        "tests/store/test_standing_guards.py",
    ),
    Mutant(
        "of two bots the one that asked Slack later knows better",
        f"{LUA}/confirm.lua",
        "< tonumber(ARGV[1]) then",
        "~= tonumber(ARGV[1]) then",
        "tests/store/test_standing_guards.py",
    ),
    Mutant(
        "a folder of data has one server",
        "gateway/store/folder_lock.py",
        "fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX",
        "fcntl.LOCK_SH",
        "tests/store/test_engine.py",
    ),
)

# 3. Something runs that was not shown, or something is shown and something else runs.
# 4. Text of an agent, a customer or a reviewer is read by Slack as markup.
AS_WRITTEN: tuple[Mutant, ...] = (
    Mutant(
        "no model chooses which argument is read first",
        EVIDENCE,
        "key=lambda name: (first.get(name, len(first)), name)",
        "key=lambda name: first.get(name, len(first))",
        SHOWN,
    ),
    Mutant(
        "a change of a hidden value is shown as a change",
        EVIDENCE,
        "or _json(before[name]) != _json(after[name])",
        "or old[name].text != new[name].text",
        SHOWN,
    ),
    Mutant(
        "what was written about other arguments is no reason for these",
        ENDS,
        "if vote.reason and vote.action_hash == item.action_hash",
        "if vote.reason",
        "tests/approvals/test_resume_value.py",
    ),
    Mutant(
        "no reason goes on as a sentence of ours",
        ENDS,
        'f"{json.dumps(vote.reason, ensure_ascii=False)}."',
        'f"{vote.reason}."',
        "tests/approvals/test_resume_value.py",
    ),
    Mutant(
        "no text becomes a mention, a channel or a link",
        "bot/text.py",
        '{"&": "&amp;", "<": "&lt;", ">": "&gt;"}',
        '{"&": "&amp;", ">": "&gt;"}',
        TEXTS,
    ),
    Mutant(
        "what no font draws is shown as a mark",
        "gateway/approvals/invisible_characters.py",
        "return any(first <= point <= last for first, last in DEFAULT_IGNORABLE)",
        "return point in {first for first, _ in DEFAULT_IGNORABLE}",
        TEXTS,
    ),
    Mutant(
        "no field begins another line of the log",
        "gateway/logs.py",
        "one if one.isprintable() else ascii(one)[1:-1] for one in text",
        "one for one in text",
        "tests/test_logs.py",
    ),
    Mutant(
        "no quoted text looks like a message of ours",
        "agent/tool_messages.py",
        "content=edits.defuse(text),",
        "content=text,",
        "tests/agent/test_tool_messages.py",
    ),
)

# 5. Somebody approves what they asked for; somebody outside the role approves; silence
# or an error approves.
BY_PEOPLE: tuple[Mutant, ...] = (
    Mutant(
        "an account that Slack did not describe decides nothing yet",
        MEMBERSHIP,
        "return actor.user in role.users or bool(role.usergroups)",
        "return False",
        "tests/approvals/test_membership.py",
    ),
    Mutant(
        "what was handed to an unknown person counts for nothing",
        MEMBERSHIP,
        "() if reviewer.account is AccountKind.UNKNOWN else actors",
        "actors",
        "tests/approvals/test_membership.py",
    ),
    Mutant(
        "a payload with two actions decides nothing",
        "bot/payload.py",
        "    if len(actions) != 1:\n",
        "    if not actions:\n",
        "tests/bot/test_payload.py",
    ),
    Mutant(
        "who asked reads it by whatever team a program named them",
        "bot/listeners/queues.py",
        "if asked and asked.is_same(Person(team=ctx.team, user=user)):",
        "if asked and (asked.team, asked.user) == (ctx.team, user):",
        "tests/bot/listeners/test_read_access.py",
    ),
    Mutant(
        "a copied thread gets no answer of the original",
        ANSWERS,
        "if run_ref.thread != run.thread:",
        "if False:",
        "tests/resume/test_answers.py",
    ),
    Mutant(
        "a question about another hash gets no answer",
        ANSWERS,
        "if asked.action_hash != digest.action_hash(item.requested):",
        "if False:",
        "tests/resume/test_answers.py",
    ),
    Mutant(
        "no answer goes to a server that is not Slack's",
        "bot/web.py",
        'host.endswith(f".{own}")',
        "host.endswith(own)",
        "tests/bot/test_response_urls.py",
    ),
    Mutant(
        "no redirect takes a card to another server",
        "bot/web.py",
        "allow_redirects=False",
        "allow_redirects=True",
        "tests/bot/test_web.py",
    ),
)

# 6. An agent does not learn what a person changed, or is told of a change that nobody
# made. 7. A tier is lowered.
TOLD: tuple[Mutant, ...] = (
    Mutant(
        "an agent is told that a call had begun",
        "agent/tool_messages.py",
        "    if answer.has_started:\n",
        "    if False:\n",
        "tests/agent/test_tool_messages.py",
    ),
    Mutant(
        "a record inside another result is no edit of this call",
        "agent/messages.py",
        "if is_own else None",
        "if True else None",
        "tests/agent/test_results_for_programs.py",
    ),
    Mutant(
        "tiers are joined by their order",
        "gateway/protocol/records.py",
        "max((first, *others), key=lambda tier: tier.rank)",
        "max((first, *others))",
        "tests/approvals/test_never_lower.py",
    ),
    Mutant(
        "a hint that is lost lowers nothing",
        TURNS,
        "return CallHint(hold=True)",
        "return CallHint()",
        "tests/agent/test_interrupt_on_when.py",
    ),
)

# 8. A thread waits forever. 10. A process dies, and an approval is lost or a call runs
# twice.
GOES_ON: tuple[Mutant, ...] = (
    Mutant(
        "a thread does not wait for a record that is lost",
        ANSWERS,
        "return Found(_unknown(asked, _LOST), is_lost=True)",
        "return None",
        "tests/resume/test_answers.py",
    ),
    Mutant(
        "a thread does not wait for a record that is corrupt",
        ANSWERS,
        "return Found(_unknown(asked, _CORRUPT))",
        "return None",
        "tests/resume/test_advancer.py",
    ),
    Mutant(
        "a schema that is none keeps no answer back",
        "gateway/resume/runner.py",
        "    except _NO_SCHEMA:\n        return True",
        "    except _NO_SCHEMA:\n        return False",
        "tests/resume/test_answers.py",
    ),
    Mutant(
        "a run that ends keeps the facts of its thread no longer",
        f"{LUA}/announce.lua",
        "if ARGV[1] == 'ended' then redis.call('HDEL', KEYS[1], 'run') end\n",
        "",
        "tests/resume/test_one_end_event.py",
    ),
    Mutant(
        "a run that is given up keeps the facts of its thread no longer",
        f"{LUA}/end_run.lua",
        "redis.call('HDEL', KEYS[1], 'run')\n",
        "",
        "tests/store/test_open_of_run.py",
    ),
    Mutant(
        "what waits ends with its thread",
        RECOVERING,
        "_ENDS = {ItemState.PENDING: Transition.WITHDRAW, ",
        "_ENDS = {",
        "tests/approvals/test_recovering.py",
    ),
    Mutant(
        "nobody's vote counts who did not see that a record was restored",
        RECOVERING,
        "item.with_(revoked=why, votes=())",
        "item.with_(revoked=why)",
        "tests/approvals/test_recovering.py",
    ),
    Mutant(
        "a click on a card without the warning of a restore counts for nothing",
        RECOVERING,
        "return by_gateway(approval, waiting, version=approval.version + 1)",
        "return by_gateway(approval, waiting)",
        "tests/approvals/test_recovering.py",
    ),
    Mutant(
        "a thread that was repaired twice keeps the votes of between",
        RECOVERING,
        "if not item.is_pending or item.is_restored:",
        "if not item.is_pending:",
        "tests/approvals/test_recovering.py",
    ),
)

# 9. A secret or an argument reaches a log, an event or a card it was redacted from.
HIDDEN: tuple[Mutant, ...] = (
    Mutant(
        "a place inside a list is hidden",
        EVIDENCE,
        '_hide(element, rest) if head in {str(index), "*"} else element',
        "_hide(element, rest) if head == str(index) else element",
        SHOWN,
    ),
    Mutant(
        "what a model wrote in place of a hidden value is hidden",
        EVIDENCE,
        'is_shown = not hidden & {name, "*"}',
        "is_shown = True",
        SHOWN,
    ),
    Mutant(
        "no words of a foreign error are logged",
        "gateway/logs.py",
        "if not self._shows_errors or not isinstance(failure, Failure):",
        "if not isinstance(failure, Failure):",
        "tests/test_error_texts.py",
    ),
    Mutant(
        "a secret that others can read is not used",
        "gateway/secret_file.py",
        "& 0o077:",
        "& 0o007:",
        "tests/test_secret_file.py",
    ),
    Mutant(
        "a secret that is wrong is not shown",
        "gateway/secret_file.py",
        "KEYTURN_SECRET has {len(text)} characters",
        "KEYTURN_SECRET {text} has {len(text)} characters",
        "tests/test_secret_file.py",
    ),
)

NEVER_HAPPENS_TABLE: tuple[Mutant, ...] = (
    *AUTHORIZED,
    *ONCE,
    *AS_WRITTEN,
    *BY_PEOPLE,
    *TOLD,
    *GOES_ON,
    *HIDDEN,
)

"""Break what is known of earlier calls with the same effect, and what it stops."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

REPEATING = "gateway/approvals/repeating.py"
PRECEDENTS = "gateway/store/lua/precedents.lua"
KNOWN = "gateway/service/call_evaluation.py"
SERVICE = "tests/service/test_precedents.py"
RACES = "tests/races/test_precedent_races.py"

PRECEDENTS_TABLE = (
    Mutant(
        "precedents: what ran since the card was opened stops a click",
        REPEATING,
        "return next((one for one in found if one.since_ms > seen_ms), None)",
        "return None",
        SERVICE,
    ),
    Mutant(
        "precedents: the next click counts",
        REPEATING,
        "shown = item.with_(repeats_seen_ms=context.now_ms, votes=())",
        "shown = item.with_(votes=())",
        SERVICE,
    ),
    Mutant(
        "precedents: votes of before do not count",
        REPEATING,
        "shown = item.with_(repeats_seen_ms=context.now_ms, votes=())",
        "shown = item.with_(repeats_seen_ms=context.now_ms)",
        SERVICE,
    ),
    Mutant(
        "precedents: no button of before works",
        REPEATING,
        "version = context.approval.version + 1",
        "version = context.approval.version",
        SERVICE,
    ),
    Mutant(
        "precedents: an edit into an earlier call is shown first",
        REPEATING,
        "    if is_edited and context.item.effect != item.effect:\n"
        "        seen_ms = 0\n",
        "",
        SERVICE,
    ),
    Mutant(
        "precedents: calls of one card do not stop each other",
        REPEATING,
        "return tuple(one for one in found if one.approval != approval.id)",
        "return found",
        SERVICE,
    ),
    Mutant(
        "precedents: a decision compares what it was evaluated by",
        "gateway/store/lua/next_version.lua",
        "if have_precedents_moved(change.seen) then return true end",
        "",
        RACES,
    ),
    Mutant(
        "precedents: who depends on none evaluates once",
        "gateway/service/call_evaluation.py",
        "known if depends else None",
        "known",
        RACES,
    ),
    Mutant(
        "precedents: a decision by a rule compares what it was evaluated by",
        "gateway/service/call_evaluation.py",
        "depends = past.same_by or reads_precedents(policy, approval.agent, item.tool)",
        "depends = past.same_by",
        RACES,
    ),
    Mutant(
        "precedents: a turn compares what it was evaluated by",
        "gateway/store/lua/open.lua",
        "if have_precedents_moved(cjson.decode(ARGV[11])) then return {'repeated'} end",
        "",
        RACES,
    ),
    Mutant(
        "precedents: earlier calls of a turn count",
        KNOWN,
        "done = max(done, min(MOST_KEPT, done + ran))",
        "return counted",
        SERVICE,
    ),
    Mutant(
        "precedents: an approved call keeps its place",
        KNOWN,
        "others = [one for one in others if (one.since_ms, one.call) < place]",
        "pass",
        SERVICE,
    ),
    Mutant(
        "precedents: a hidden amount is in no total on a card",
        KNOWN,
        'return bool(path) and all(a == b or "*" in {a, b} for a, b in pairs)',
        "return False",
        "tests/service/test_known_totals.py",
    ),
    Mutant(
        "precedents: an amount that another tool hides is in no total on a card",
        KNOWN,
        "if window.covers(str(place[-1]))",
        "if False",
        "tests/service/test_known_totals.py",
    ),
    Mutant(
        "precedents: an effect keeps a bounded number",
        PRECEDENTS,
        "for i = MOST_KEPT + 1, #calls do redis.call('HDEL', key, calls[i][2]) end",
        "",
        SERVICE,
    ),
    Mutant(
        "precedents: they end",
        PRECEDENTS,
        "if is_new or redis.call('PTTL', key) < keep then",
        "if false then",
        SERVICE,
    ),
    Mutant(
        "precedents: what did not run is none",
        "gateway/store/precedents.py",
        'rows.append((old[0], was.id, False, "", KEEP_MS))',
        "pass",
        SERVICE,
    ),
    Mutant(
        "precedents: reviewers of another agent do not read the words",
        "bot/cards/noticed.py",
        "    elif precedent.reason:",
        "    if precedent.reason:",
        "tests/bot/cards/test_precedents.py",
    ),
    Mutant(
        "a crowd that a rule counts is decided one after the other",
        "gateway/store/changing.py",
        "await turn.wait_for_effects(found)",
        "pass",
        "tests/races/test_precedent_races.py",
    ),
)

"""Break what is compared when something is written that nobody read for it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

DECIDING = "gateway/service/as_shown.py"
COMPARING = "gateway/store/lua/next_version.lua"
AS_SHOWN = (
    "tests/service/test_as_shown.py tests/service/test_as_shown_time_and_place.py"
)
DECIDED_BY = "gateway/service/decided_by.py"
STARTING = "tests/service/test_decided_by.py"
CLICKED = "bot/listeners/approve_as_shown.py"
CLICKS = "tests/bot/listeners/test_approve_as_shown.py"

AHEAD = "gateway/service/reading_ahead.py"
FIRST = "bot/clicks_first.py"
REHEARSING = "gateway/service/rehearsing.py"
REHEARSED = "tests/service/test_rehearsing.py"
TEMPLATES = "gateway/store/templates.py"
LEARNED = "tests/store/test_templates.py"

AS_SHOWN_TABLE = (
    Mutant(
        "as shown: another total of a window is noticed",
        COMPARING,
        "    if string.format('%.0f', total) ~= row[4] then return true end",
        "    if total > tonumber(row[4]) then return true end",
        AS_SHOWN,
    ),
    Mutant(
        "as shown: another change under the same number is noticed",
        "gateway/store/next_version.py",
        "    if seen.remembered is not None:\n",
        "    if False:\n",
        AS_SHOWN,
    ),
    Mutant(
        "as shown: totals are compared at all",
        DECIDING,
        "(index, use.window, use.use): used.totals[use.name] for use in used.uses",
        "(index, use.window, use.use): 0 for use in ()",
        AS_SHOWN,
    ),
    Mutant(
        "as shown: a click on another copy is noticed",
        COMPARING,
        "redis.call('HGET', base .. 'card:' .. id, 'at') ~= assumed.place",
        "redis.call('HGET', base .. 'card:' .. id, 'at') == 0",
        AS_SHOWN,
    ),
    Mutant(
        "as shown: who stands in for somebody is noticed",
        COMPARING,
        "return assumed.alone ~= nil and stands_in(",
        "return assumed.alone == 0 and stands_in(",
        AS_SHOWN,
    ),
    Mutant(
        "as shown: a request that came before is noticed",
        COMPARING,
        "redis.call('EXISTS', assumed.unseen) == 1",
        "false",
        CLICKS,
    ),
    Mutant(
        "as shown: the step that decides remembers its request",
        DECIDING,
        "kept=(*([seen] if seen else []), ",
        "kept=(*[], ",
        CLICKS,
    ),
    Mutant(
        "as shown: a request of which nothing is known is remembered",
        "bot/listeners/router.py",
        "            await self._ctx.remember(delivery.digest)\n",
        "",
        CLICKS,
    ),
    Mutant(
        "as shown: a reading is as old as it is",
        DECIDING,
        "self._clock() - loaded.age_s",
        "self._clock()",
        AS_SHOWN,
    ),
    Mutant(
        "as shown: a delegation that has ended is none",
        COMPARING,
        "if to == user and now < tonumber(till)",
        "if to == user",
        AS_SHOWN,
    ),
    Mutant(
        "as shown: a delegation is to one person alone",
        COMPARING,
        "if to == user and now < tonumber(till)",
        "if now < tonumber(till)",
        AS_SHOWN,
    ),
    Mutant(
        "as shown: a freeze since then is noticed",
        DECIDING,
        "        unfrozen=names_of(approval.agent, approval.items[index].tool),\n",
        "",
        AS_SHOWN,
    ),
    Mutant(
        "as shown: precedents since then are noticed",
        DECIDING,
        "        inputs={index: evaluated.used},\n",
        "",
        AS_SHOWN,
    ),
    Mutant(
        "as shown: another policy is asked for itself",
        DECIDING,
        "return shown if shown and shown.policy is self._policy() else None",
        "return shown",
        AS_SHOWN,
    ),
    Mutant(
        "as shown: what depends on the moment is not kept",
        DECIDED_BY,
        "return is_compared and not reads_moment(",
        "return is_compared or not reads_moment(",
        AS_SHOWN,
    ),
    Mutant(
        "as shown: a total that nobody compares is not kept",
        DECIDED_BY,
        "return is_compared and not reads_moment(",
        "return not reads_moment(",
        AS_SHOWN,
    ),
    Mutant(
        "as shown: rules that ask for the time depend on the moment",
        "gateway/policy/effects.py",
        '_MOMENT = frozenset({"now", "recent"})',
        '_MOMENT = frozenset({"recent"})',
        AS_SHOWN,
    ),
    Mutant(
        "as shown: rules that ask what just happened depend on the moment",
        "gateway/policy/effects.py",
        '_MOMENT = frozenset({"now", "recent"})',
        '_MOMENT = frozenset({"now"})',
        AS_SHOWN,
    ),
    Mutant(
        "as shown: a newer reading of the caller counts",
        DECIDING,
        " or (seen and seen.approval.rev != approval.rev)",
        "",
        AS_SHOWN,
    ),
    Mutant(
        "as shown: only an approval is decided without a reading",
        DECIDING,
        "if shown is None or not isinstance(decision, Approve):",
        "if shown is None:",
        AS_SHOWN,
    ),
    Mutant(
        "as shown: time passes for what is kept",
        DECIDING,
        "shown.loaded.now_ms + passed_ms",
        "shown.loaded.now_ms",
        AS_SHOWN,
    ),
    Mutant(
        "as shown: what is kept is bounded",
        DECIDING,
        "while self.bytes > MOST_BYTES:",
        "while False:",
        "tests/service/test_as_shown_memory.py",
    ),
    Mutant(
        "as shown: each tenant keeps its own",
        DECIDING,
        " or approval.tenant != self._tenant:",
        ":",
        AS_SHOWN,
    ),
    Mutant(
        "as shown: a button has to be ours",
        CLICKED,
        "if verify(sealed, approval, key=key, team=ctx.team, purpose=purpose):",
        "if True:",
        CLICKS,
    ),
    Mutant(
        "as shown: the place of a click is compared",
        CLICKED,
        "        action.channel,\n        action.message_ts,\n",
        '        "",\n        "",\n',
        CLICKS,
    ),
    Mutant(
        "as shown: whose queues somebody was handed is compared",
        DECIDING,
        'stands_in_for_nobody=place.user if place else "",',
        'stands_in_for_nobody="",',
        CLICKS,
    ),
    Mutant(
        "as shown: what takes several people is decided by fresh answers",
        "bot/listener_context.py",
        "if _takes_several(item):",
        "if False:",
        CLICKS,
    ),
    Mutant(
        "calls of two holders of a lease are not written in one step",
        "gateway/store/group_commit.py",
        " or one.fence != fence:",
        ":",
        "tests/races/test_turns.py",
    ),
    Mutant(
        "a call does not start unfenced beside the end of another",
        "gateway/store/group_commit.py",
        "return _is_plain(other) and other.is_fenced == first.is_fenced",
        "return _is_plain(other)",
        "tests/store/test_group_commit.py",
    ),
    Mutant(
        "calls that start together start before the first of them lapses",
        "gateway/store/group_commit.py",
        "before_ms=min(ends, default=0)",
        "before_ms=max(ends, default=0)",
        "tests/store/test_group_commit.py",
    ),
    Mutant(
        "what was damaged since it was read is parsed again",
        "gateway/store/known_records.py",
        "if known and known.stored == stored:",
        "if known and known.stored.head == stored.head:",
        "tests/store/test_known_records.py",
    ),
    Mutant(
        "what would run is compared with what is remembered",
        "gateway/store/lua/next_version.lua",
        "if redis.sha1hex(values[field] or '') ~= sha1 then return true end",
        "",
        "tests/service/test_executions.py tests/service/test_newer_records.py",
    ),
    Mutant(
        "reading ahead: what another process decided is not kept",
        AHEAD,
        "            self._kept.moved(approval_id, at_ms)",
        "            pass",
        "tests/service/test_reading_ahead.py",
    ),
    Mutant(
        "reading ahead: what was read since it changed is kept",
        "gateway/service/as_shown.py",
        " and shown.loaded.now_ms <= at_ms",
        "",
        "tests/service/test_reading_ahead.py",
    ),
    Mutant(
        "reading ahead: another policy is noticed",
        AHEAD,
        "if policy is not self._read_by:",
        "if self._read_by is None:",
        "tests/service/test_reading_ahead.py",
    ),
    Mutant(
        "reading ahead: the place is noted before the reading",
        AHEAD,
        "self._place = await self._outbox.newest()",
        'self._place = "$"',
        "tests/service/test_reading_ahead.py",
    ),
    Mutant(
        "clicks first: cards are not held up for ever",
        FIRST,
        "min(self._late_at, quiet_at) - now",
        "quiet_at - now",
        "tests/bot/test_clicks_first.py",
    ),
    Mutant(
        "clicks first: a look at all that waits leaves time for clicks",
        "gateway/service/reviews.py",
        "        await quiet()\n",
        "",
        "tests/service/test_dead_ends.py",
    ),
    Mutant(
        "what another policy said lets no call start",
        DECIDED_BY,
        "kept is None or kept.policy is not policy",
        "kept is None",
        STARTING,
    ),
    Mutant(
        "by what a call was decided that does not start is not kept for ever",
        DECIDED_BY,
        " or at_s - oldest.at_s >= KEPT_S",
        "",
        STARTING,
    ),
    Mutant(
        "records that a process has no more to do with are forgotten",
        "gateway/store/known_records.py",
        " and oldest.used_s >= since_s",
        "",
        "tests/store/test_known_records.py",
    ),
    Mutant(
        "what other calls have a part in is asked again when a call starts",
        DECIDED_BY,
        " or _is_shared(one)",
        "",
        STARTING,
    ),
    Mutant(
        "what depends on the moment is asked again when a call starts",
        DECIDED_BY,
        "if by.is_lasting or lasts(policy, item, one):",
        "if True:",
        STARTING,
    ),
    Mutant(
        "nobody is refused by what a call was decided by",
        DECIDED_BY,
        "    if loaded.remembered is None:\n",
        "    if False:\n",
        STARTING,
    ),
    Mutant(
        "rehearsed: who may not approve is decided the long way",
        REHEARSING,
        "            or not self._may_approve(reviewer)\n",
        "",
        REHEARSED,
    ),
    Mutant(
        "rehearsed: who asked for a call does not approve it",
        REHEARSING,
        "quorum.ineligible_reason(reviewer, requirement, asked, barred) is None",
        "True",
        REHEARSED,
    ),
    Mutant(
        "rehearsed: another click is decided the long way",
        REHEARSING,
        "            or click != call.click(click.request_digest)\n",
        "",
        REHEARSED,
    ),
    Mutant(
        "rehearsed: only what may be decided then",
        REHEARSING,
        "not self.since_ms <= now_ms < self.until_ms",
        "False",
        REHEARSED,
    ),
    Mutant(
        "rehearsed: an approval that would not be the last is none",
        REHEARSING,
        "found.resumes and found.waits_on is None",
        "True",
        REHEARSED,
    ),
    Mutant(
        "rehearsed: a record that is not as it was sealed is read",
        "gateway/store/known_records.py",
        " or loaded.stored.seal != self.seal",
        "",
        "tests/store/test_known_records.py",
    ),
    Mutant(
        "rehearsed: a name that JSON writes otherwise is not filled in",
        TEMPLATES,
        "    return all(texts) and not any(",
        "    return True or not any(",
        LEARNED,
    ),
    Mutant(
        "rehearsed: a number that no moment explains is not learned",
        TEMPLATES,
        "        if place is None:\n            raise NotLearned\n",
        "        place = place or 0\n",
        LEARNED,
    ),
)

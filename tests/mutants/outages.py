"""Break how a failed run is retried, ended and reported."""

from __future__ import annotations

from tests.mutants.clocks import CLOCKS_TABLE
from tests.mutants.mutant import Mutant

PLAN = "gateway/resume/retries.py"
RETRIES = "gateway/resume/retries.py"
DIAGNOSIS = "tests/resume/test_diagnosis.py"
OUTAGES = "tests/resume/test_run_outages.py"
MESSAGES = "tests/bot/test_run_messages.py"
UNANSWERED = "tests/agent/test_unanswered_turns.py"

OUTAGES_TABLE = (
    Mutant(
        "what cannot pass is parked at once",
        PLAN,
        "is_parked = is_last or diagnosis.is_final or now_ms >= until_ms",
        "is_parked = is_last or now_ms >= until_ms",
        OUTAGES,
    ),
    Mutant(
        "an approved call is retried until its approval ends",
        PLAN,
        "until_ms = max(until_ms, approved_until_ms)",
        "until_ms = max(until_ms, 0)",
        OUTAGES,
    ),
    Mutant(
        "a try again begins the time for retries anew",
        "gateway/service/freezing.py",
        "            retried_since_ms=now_ms,\n",
        "            retried_since_ms=run.retried_since_ms,\n",
        OUTAGES,
    ),
    Mutant(
        "a message that a thread was given is not queued again",
        RETRIES,
        "and not await _was_given(at, runner, job)",
        "and True",
        OUTAGES,
    ),
    Mutant(
        "what people found of a call in doubt decides whether it is a precedent",
        "gateway/approvals/events.py",
        "    Finding.SKIP: ItemState.FAILED,\n}",
        "    Finding.SKIP: ItemState.EXECUTED,\n}",
        "tests/approvals/test_precedent_fold.py",
    ),
    Mutant(
        "a thread that waits has one job",
        "gateway/resume/worker.py",
        '.with_(kind=JobKind.RESUME, input="", id="", seal="")',
        '.with_(kind=JobKind.RESUME, input="")',
        OUTAGES,
    ),
    Mutant(
        "no text of an error is told",
        "gateway/resume/diagnosis.py",
        "reason = _SENTENCES[kind].format(name=name_of(error))",
        "reason = _SENTENCES[kind].format(name=str(error))",
        DIAGNOSIS,
    ),
    Mutant(
        "a bug while an outage is handled is no outage",
        "gateway/resume/diagnosis.py",
        "    if own is None and error.__context__ is not None and not",
        "    if error.__context__ is not None and not",
        DIAGNOSIS,
    ),
    Mutant(
        "an outage has one message",
        "bot/delivery/event_messages.py",
        "    place = await card_publisher.find_place(outage)\n",
        "    place = None\n",
        MESSAGES,
    ),
    Mutant(
        "only who asked or may decide tries a run again",
        "gateway/service/freezing.py",
        "        return self._freezes.forbidden(scope, reviewer)\n",
        "        return None\n",
        MESSAGES,
    ),
    Mutant(
        "a failed run that is corrupt stops no other",
        "gateway/store/stalled.py",
        "            except CorruptRecord as error:\n",
        "            except KeyError as error:\n",
        "tests/resume/test_corrupt_runs.py",
    ),
    Mutant(
        "a failed run counts as the run under whose name it stands",
        "gateway/store/stalled.py",
        "    if not run == found.id == whose:\n",
        "    if not run == found.id:\n",
        "tests/resume/test_corrupt_runs.py",
    ),
    Mutant(
        "an event cuts off none that nobody has read",
        "gateway/store/lua/prelude.lua",
        "redis.call('XADD', stream, '*', 'e', text",
        "redis.call('XADD', stream, 'MAXLEN', '~', 100000, '*', 'e', text",
        "tests/store/test_readers.py",
    ),
    Mutant(
        "a wait costs no command until something happens",
        "gateway/resume/thread_runs.py",
        "LOOK_S = 60.0",
        "LOOK_S = 1.0",
        "tests/resume/test_web_applications.py",
    ),
    Mutant(
        "a deleted card that needs people is noticed where a URL replaces it",
        "bot/delivery/card_updater.py",
        "    if needs_people(record) and await _is_gone(publisher, place):\n",
        "    if False:\n",
        "tests/bot/test_response_urls.py",
    ),
    Mutant(
        "a deleted card with replies that needs people is noticed",
        "bot/delivery/card_updater.py",
        "    if needs_people(record):\n        # Once",
        "    if False:\n        # Once",
        "tests/bot/test_response_urls.py",
    ),
    Mutant(
        "a card whose approval ended in a closed channel is drawn by a click",
        "bot/listeners/targets.py",
        "    await redraw_ended(ctx, target.keys, target.approval)\n",
        "    _ = redraw_ended\n",
        "tests/bot/test_undelivered.py",
    ),
    Mutant(
        "what moves while a queue is read comes once",
        "gateway/service/queue.py",
        "if one in given or found is None",
        "if found is None",
        "tests/service/test_person_queues.py",
    ),
    Mutant(
        "the next page of Home begins behind the last row",
        "bot/cards/queue.py",
        "start = sum(_sort_key(one) <= place for one in matching) if place else 0",
        "start = ROWS if place else 0",
        "tests/bot/cards/test_home.py",
    ),
    Mutant(
        "a model is not told of an outage that its thread outlives",
        "agent/calls.py",
        "is_retried = run_context.current_run() is not None and not is_nested",
        "is_retried = False",
        "tests/resume/test_store_away_at_submission.py",
    ),
    Mutant(
        "what a lost request opened is ended when the gateway answers",
        "agent/calls.py",
        "            if gateway is not None and not is_repeated:\n",
        "            if False:\n",
        UNANSWERED,
    ),
    Mutant(
        "a turn that is asked about once more is not ended",
        "agent/calls.py",
        "            if gateway is not None and not is_repeated:\n",
        "            if gateway is not None:\n",
        UNANSWERED,
    ),
    Mutant(
        "a turn that another one has ended is left",
        "agent/calls.py",
        "        self._ending.pop(_place(ref), None)\n\n    def end",
        "        pass\n\n    def end",
        UNANSWERED,
    ),
    *CLOCKS_TABLE,
)

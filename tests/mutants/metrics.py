"""Break what metrics count; see `tests.mutants.table`."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

FOLD = "gateway/metrics/fold.py"
FOLDING = "tests/metrics/test_fold.py"
STATISTICS = "tests/service/test_statistics.py"
MESSAGES = "bot/cards/metrics_messages.py"
CHARTS = "tests/bot/cards/test_metrics_messages.py"
REPORTS = "tests/bot/test_metrics_reports.py"
SEEDED_LISTS = "tests/bot/test_seeded_defects_in_lists.py"

METRICS_TABLE = (
    Mutant(
        "metrics: a claim that is given back is no approval",
        FOLD,
        '    if event.actor in {"", BY_GATEWAY}:\n',
        "    if event.actor == BY_GATEWAY:\n",
        FOLDING,
    ),
    Mutant(
        "metrics: a call that was let run and did not counts once",
        "gateway/metrics/counts.py",
        "left_out = self.calls[Outcome.RETURNED] + self.unused_auto",
        "left_out = self.calls[Outcome.RETURNED]",
        FOLDING,
    ),
    Mutant(
        "metrics: a run counts in the period in which it ends",
        FOLD,
        "                if self.selected.is_in_time(event):\n",
        "                if True:\n",
        FOLDING,
    ),
    Mutant(
        "metrics: a claim that is given back is no decision of the past",
        "gateway/service/queue.py",
        'event.actor in {"", BY_GATEWAY}',
        "event.actor == BY_GATEWAY",
        STATISTICS,
    ),
    Mutant(
        "reviewers: an escalated call is not approved by a click out of habit",
        "gateway/approvals/deciding.py",
        "    again = asked_again(context, item)\n",
        "    again = None\n",
        "tests/service/test_asked_again.py",
    ),
    Mutant(
        "reviewers: a double click is no second look",
        "gateway/approvals/deciding.py",
        "is_same_click = context.now_ms - first_ms < SECOND_CLICK_MS",
        "is_same_click = False",
        "tests/service/test_asked_again.py",
    ),
    Mutant(
        "spot checks: nobody checks what they approved or asked for",
        "gateway/approvals/quality_checks.py",
        "    if quorum.is_among(reviewer.person, took_part(approval, item)):\n",
        "    if not reviewer.user:\n",
        "tests/service/test_spot_checks.py",
    ),
    Mutant(
        "spot checks: one answer counts",
        "gateway/approvals/quality_checks.py",
        "    if check.by is not None:\n",
        "    if not check.of:\n",
        "tests/service/test_spot_checks.py",
    ),
    Mutant(
        "spot checks: who is not named any more does not answer",
        "gateway/approvals/quality_checks.py",
        "for roles in (check.of, of_now))",
        "for roles in (check.of,))",
        "tests/service/test_spot_checks.py",
    ),
    Mutant(
        "spot checks: people are asked about so many calls a day",
        "gateway/store/seeded.py",
        "return number(count) <= most",
        "return True",
        "tests/service/test_spot_checks.py",
    ),
    Mutant(
        "spot checks: what people reconciled is not checked",
        "gateway/approvals/quality_checks.py",
        " and not item.reconciled_fence\n",
        "\n",
        "tests/service/test_spot_checks.py",
    ),
    Mutant(
        "seeded defects: it waits on Home and in lists like any other call",
        "bot/listeners/queues.py",
        "    if seeded is None:\n",
        "    if True:\n",
        SEEDED_LISTS,
    ),
    Mutant(
        "seeded defects: a form over it counts for who opened it",
        "bot/listeners/quality_checks.py",
        "if bound != wanted or view.team != ctx.team:",
        "if False:",
        SEEDED_LISTS,
    ),
    Mutant(
        "seeded defects: one that was answered is listed no more",
        "gateway/service/quality_checks.py",
        "if seeded.card is None or not seeded.ts or seeded.answer:",
        "if seeded.card is None or not seeded.ts:",
        SEEDED_LISTS,
    ),
    Mutant(
        "seeded defects: of several decided together it counts as one",
        "bot/listeners/review.py",
        "if isinstance(outcome, Unknown):",
        "if False:",
        SEEDED_LISTS,
    ),
    Mutant(
        "seeded defects: one answer counts",
        "gateway/store/lua/seeded.lua",
        "ARGV[1], ARGV[2]) == 0 then",
        "ARGV[1], ARGV[2]) == 9 then",
        "tests/bot/test_seeded_defects.py",
    ),
    Mutant(
        "seeded defects: only who could decide counts",
        "gateway/service/quality_checks.py",
        "return quorum.ineligible_reason(reviewer, item.requirement, ())",
        "return None",
        "tests/bot/test_seeded_defects.py",
    ),
    Mutant(
        "metrics: memory does not grow with the names of tools",
        FOLD,
        "is_known = tool in self.tools or len(self.tools) < MAX_ROWS",
        "is_known = True",
        FOLDING,
    ),
    Mutant(
        "metrics: a call that went back to people waits from then on",
        "gateway/approvals/decision_context.py",
        "since_ms = context.item.changed_at_ms or context.approval.created_at_ms",
        "since_ms = context.approval.created_at_ms",
        STATISTICS,
    ),
    Mutant(
        "metrics: only the tenant's own events count",
        "gateway/service/audit_reading.py",
        "if event.tenant == tenant:\n                yield event\n\n\nasync def newest",
        "if event.tenant:\n                yield event\n\n\nasync def newest",
        STATISTICS,
    ),
    Mutant(
        "metrics: no name that an agent makes up is a label",
        "gateway/service/audit_reading.py",
        "return tool if is_listed else OTHER",
        "return tool",
        "tests/bot/test_prometheus.py",
    ),
    Mutant(
        "metrics: two looks at once count nothing twice",
        "gateway/service/audit_reading.py",
        "        async with self._reading:\n",
        "        if True:\n",
        STATISTICS,
    ),
    Mutant(
        "metrics: nobody is told that all is well before anything was wrong",
        "bot/delivery/metrics_reports.py",
        "        if was_over == bool(count):\n",
        "        if was_over and count:\n",
        "tests/bot/test_metrics_reports.py",
    ),
    Mutant(
        "metrics: an alert that its channel refuses goes to the fallback",
        "bot/delivery/event_messages.py",
        "POSTED_IN_CHANNEL = FREEZE_EVENTS | METRICS_EVENTS | SECURITY_EVENTS",
        "POSTED_IN_CHANNEL = FREEZE_EVENTS",
        "tests/bot/test_metrics_reports.py",
    ),
    Mutant(
        "metrics: numbers of another version hold nothing up",
        MESSAGES,
        "except (KeyError, ValueError):",
        "except KeyError:",
        REPORTS,
    ),
    Mutant(
        "metrics: a workspace without charts gets the numbers",
        "bot/delivery/queue_sender.py",
        "if error.error in ABOUT_THE_BLOCKS and _made_plain(entry):",
        "if False:",
        REPORTS,
    ),
    Mutant(
        "metrics: a digest is tried once without its chart",
        "bot/delivery/queue_sender.py",
        "if entry.is_plain or entry.summary_channel or event.card:",
        "if entry.summary_channel or event.card:",
        REPORTS,
    ),
    Mutant(
        "metrics: each call is once in the chart",
        MESSAGES,
        "max(0, counts.evaluated - sum(known))",
        "counts.evaluated",
        CHARTS,
    ),
    Mutant(
        "metrics: a day without calls has its place in the chart",
        MESSAGES,
        "for back in reversed(range(count)):",
        "for back in reversed(range(count - 1)):",
        CHARTS,
    ),
    Mutant(
        "sandbox: a series of a chart has one point in each category",
        "sandbox/blockkit/charts.py",
        "        if any(name not in labels for name in categories):\n",
        "        if False:\n",
        "tests/sandbox/blockkit/test_charts.py",
    ),
    Mutant(
        "sandbox: a message takes two charts",
        "sandbox/blockkit/payload_rules.py",
        '("data_visualization", "chart", limits.CHARTS_IN_MESSAGE),',
        "",
        "tests/sandbox/blockkit/test_blockkit_surfaces.py",
    ),
    Mutant(
        "metrics: a suggestion covers no call that people did not approve",
        "gateway/policy/suggesting.py",
        "value is not None and value < lowest]",
        "value is not None and value <= lowest]",
        "tests/policy/test_suggesting.py",
    ),
    Mutant(
        "metrics: what nobody knows speaks against a suggestion",
        "gateway/policy/suggesting.py",
        "    if tool.is_unknown or len(",
        "    if len(",
        "tests/policy/test_suggesting.py",
    ),
    Mutant(
        "metrics: a quantile stays within its bounds",
        "gateway/metrics/duration_histogram.py",
        "_STEP = 1.05",
        "_STEP = 1.5",
        "tests/metrics/test_duration_histogram.py",
    ),
)

"""Break the start of calls as it was precomputed together with their approval."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

STARTING = "gateway/service/starting_as_precomputed.py"
STARTS = "gateway/service/precomputed_starts.py"
STARTED = "tests/service/test_precomputed_starts.py"
MISFITS = "tests/service/test_precomputed_starts_that_do_not_fit.py"

PRECOMPUTED_STARTS_TABLE = (
    Mutant(
        "precomputed starts: of the call that is claimed",
        STARTING,
        "            or not is_same_call(request, item)\n",
        "",
        MISFITS,
    ),
    Mutant(
        "precomputed starts: of the tenant that claims",
        STARTING,
        "            approval.tenant != self._tenant\n            or not is_same_call",
        "            not is_same_call",
        MISFITS,
    ),
    Mutant(
        "precomputed starts: by what the policy of now said last",
        STARTING,
        "            is not found.evaluated\n",
        "            is None\n",
        MISFITS,
    ),
    Mutant(
        "precomputed starts: a claim stands as long as claims stand now",
        STARTING,
        "            or found.lease_ms != self._store.lease_ms\n",
        "",
        MISFITS,
    ),
    Mutant(
        "precomputed starts: every decision is verified before",
        STARTING,
        "        except NotVerified:\n            return False\n",
        "        except NotVerified:\n            return True\n",
        MISFITS,
    ),
    Mutant(
        "precomputed starts: nothing that is frozen",
        STARTING,
        "Beside(Assumed(), unfrozen=names)",
        "Beside(Assumed())",
        MISFITS,
    ),
    Mutant(
        "precomputed starts: what the code would not start does not run",
        STARTING,
        "        return None if write is None else",
        "        return None if False else",
        MISFITS,
    ),
    Mutant(
        "precomputed starts: only in the time for which they were precomputed",
        STARTS,
        "(is_in_time and owner)",
        "owner",
        MISFITS,
    ),
    Mutant(
        "precomputed starts: an authorization that has lapsed is not used",
        STARTS,
        " or has_lapsed(item, now_ms):",
        ":",
        MISFITS,
    ),
    Mutant(
        "precomputed starts: an owner that JSON writes otherwise is not filled in",
        "gateway/store/templates.py",
        '"".join([*texts, moment.owner])',
        '"".join(texts)',
        MISFITS,
    ),
    Mutant(
        "precomputed starts: of calls that are alone in their approval",
        STARTS,
        "        len(approval.items) == 1\n        and item.state",
        "        item.state",
        STARTED,
    ),
    Mutant(
        "precomputed starts: not where another vote may count by the policy of now",
        STARTS,
        "        and item.requirement == evaluated.policy_now.requirement\n",
        "",
        STARTED,
    ),
    Mutant(
        "precomputed starts: each is used once",
        STARTS,
        "self._by_item.pop(item_id, None)",
        "self._by_item.get(item_id)",
        STARTED,
    ),
    Mutant(
        "precomputed starts: of the very record that was written",
        "gateway/store/known_records.py",
        " or known.stored.seal != seal",
        "",
        MISFITS,
    ),
    Mutant(
        "precomputed starts: a former holder of the lease starts nothing",
        "gateway/store/precomputed.py",
        "reply = await FENCED_CHANGE(",
        "reply = await CHANGE(",
        MISFITS,
    ),
)

"""List ways to run a call on decisions that nobody signed."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

DECISIONS = "gateway/approvals/signed_decisions.py"
FORGED = "tests/service/test_forged_decisions.py"
KEYRING = "tests/trust/test_keyring.py"
GIVEN_BACK = "tests/receipts/test_given_back.py"
WORDS = "tests/service/test_forged_words.py"
CLAIMED = "tests/service/test_claim_receipts.py"

RECEIPTS_TABLE = (
    Mutant(
        "a claim is granted on signed decisions alone",
        "gateway/service/proving.py",
        "        if keyring is None:\n            return\n",
        "        if keyring is None or item:\n            return\n",
        FORGED,
    ),
    Mutant(
        "what the policy let run alone is what it can let run alone",
        "gateway/service/proving.py",
        "        if not (tier.is_auto_approved or is_free):\n",
        "        if False:\n",
        FORGED,
    ),
    Mutant(
        "a standing approval lets run what people gave it for",
        "gateway/approvals/standing.py",
        "    if not is_alike or bounds.amount_of(item.args) is None:\n",
        "    if not is_alike:\n",
        FORGED,
    ),
    Mutant(
        "a call that names a standing approval is one of its uses",
        "gateway/approvals/standing.py",
        "    if used_for.count(item.id) != 1 or not is_within:\n",
        "    if not is_within:\n",
        FORGED,
    ),
    Mutant(
        "a call that runs is proven as one that is to start",
        "gateway/service/claiming.py",
        "            return Unproven(loaded.approval, item, error)\n",
        "            if item.state is ItemState.AUTHORIZED:\n"
        "                return Unproven(loaded.approval, item, error)\n",
        FORGED,
    ),
    Mutant(
        "a signature is of what it stands beside",
        DECISIONS,
        "    if not any(_has_signed(key, message, raw) for key in known):\n",
        "    if not raw:\n",
        FORGED,
    ),
    Mutant(
        "as many signed as have to agree",
        DECISIONS,
        "    if not quorum.tally(item.requirement, counted, item.action_hash).is_met:",
        "    if not counted:",
        FORGED,
    ),
    Mutant(
        "who asked for a call has not approved it",
        DECISIONS,
        "        if quorum.is_among(vote.by, barred):\n",
        "        if False:\n",
        FORGED,
    ),
    Mutant(
        "an edit is signed by who made it",
        DECISIONS,
        "    if word is not None:\n        check(word, item.edit_signed, keys)\n",
        "    del word\n",
        FORGED,
    ),
    Mutant(
        "a rerun is signed by those who let it run again",
        DECISIONS,
        "    _check_rerun(approval, item, keys)\n\n\ndef _approves",
        "\n\ndef _approves",
        FORGED,
    ),
    Mutant(
        "a record that was forged is put aside",
        "gateway/service/proving.py",
        "        await quarantine(store.conn, keys, approval.id)\n",
        "        pass\n",
        FORGED,
    ),
    Mutant(
        "a key that is not known yet puts nothing aside",
        "gateway/service/proving.py",
        "    if found.is_unknown_key and not await _is_settled(store, found):\n",
        "    if not found:\n",
        CLAIMED,
    ),
    Mutant(
        "a key that a bot has just made counts at once",
        "gateway/service/proving.py",
        '        if error.reason != "key_unknown":\n',
        "        if error.reason:\n",
        CLAIMED,
    ),
    Mutant(
        "the folder of keys is read again for a key that is not known",
        "gateway/service/proving.py",
        "keyring.verifying_now(Role.BOT)",
        "keyring.verifying(Role.BOT)",
        CLAIMED,
    ),
    Mutant(
        "keys that are asked for at this moment are read at this moment",
        "gateway/trust/key_folder.py",
        "self._read(role, self._clock(), self._found.get(role))",
        "self._found.get(role) or self._read(role, self._clock(), None)",
        KEYRING,
    ),
    Mutant(
        "a damaged folder of keys ends none that count",
        "gateway/trust/key_folder.py",
        "self._clock(), self._found.get(role))",
        "self._clock(), None)",
        KEYRING,
    ),
    Mutant(
        "a claim that is given back has no second use",
        "gateway/service/proving.py",
        "    start = item.fence if item.idempotent else item.reconciled_fence\n",
        "    start = item.fence\n",
        GIVEN_BACK,
    ),
    Mutant(
        "a call has another use when people let it run again",
        "gateway/service/proving.py",
        "    start = item.fence if item.idempotent else item.reconciled_fence\n",
        "    start = item.fence if item.idempotent else 0\n",
        GIVEN_BACK,
    ),
    Mutant(
        "no receipt ends later than a ledger remembers its id",
        "gateway/service/proving.py",
        "_since_ms(approval, item) // 1000 + USABLE_S",
        "iat + USABLE_S",
        GIVEN_BACK,
    ),
    Mutant(
        "a ledger is told to remember a use until no receipt of its id is left",
        "gateway/protocol/receipts.py",
        "receipt.exp + USABLE_S + SKEW_S",
        "receipt.exp + SKEW_S",
        GIVEN_BACK,
    ),
    Mutant(
        "nobody but people give a call another use",
        "gateway/approvals/signed_decisions.py",
        "        if item.reconciled_fence:\n",
        "        if False:\n",
        GIVEN_BACK,
    ),
    Mutant(
        "no receipt of a claim ends later than its first",
        "gateway/service/proving.py",
        "        iat = item.changed_at_ms // 1000\n",
        "        iat = max(item.changed_at_ms, item.claimed_until_ms) // 1000\n",
        CLAIMED,
    ),
    Mutant(
        "a claim that is asked for again is asked of freezes and policy",
        "gateway/service/claiming.py",
        "            if await self._may_still_run(loaded, item, standing):\n",
        "            if loaded:\n",
        CLAIMED,
    ),
    Mutant(
        "an agent with the gateway's key takes a claim by its receipt alone",
        "gateway/client/http_gateway.py",
        "            != (request.item_id, reply.action_hash),\n",
        "            != (request.item_id, digest),\n",
        "tests/agent/test_receipts.py",
    ),
    Mutant(
        "an answer to a claim ends with its receipt",
        "gateway/client/http_gateway.py",
        "            check_time(receipt, now_s)\n",
        "            pass\n",
        "tests/agent/test_receipts.py",
    ),
    Mutant(
        "a rejection and an answer are signed by who gave them",
        DECISIONS,
        "    signature = check(word, decision.signed, keys)\n",
        "    signature = decision.signed\n    assert signature\n",
        WORDS,
    ),
    Mutant(
        "a rejection is told as one, and an answer as one",
        DECISIONS,
        "    if not signature.verb is decision.verb is verb:\n",
        "    if False:\n",
        WORDS,
    ),
    Mutant(
        "what people found out is signed by them",
        DECISIONS,
        "    if item.finding is None:\n        return\n",
        "    if item:\n        return\n",
        WORDS,
    ),
    Mutant(
        "a run is resumed with words that people said",
        "gateway/service/claiming.py",
        "    if answer is not None and not await are_proven(store, approval, item):\n",
        "    if False:\n",
        WORDS,
    ),
    Mutant(
        "a turn is repaired with words that people said",
        "gateway/service/agents.py",
        "            if await are_proven(self._store, one, item)\n",
        "            if await is_edit_proven(self._store, one, item)\n",
        WORDS,
    ),
    Mutant(
        "a claim is answered with words that people said",
        "gateway/service/claiming.py",
        "            return unproven or unclaimable(said)\n",
        "            return unclaimable(said)\n",
        WORDS,
    ),
    Mutant(
        "why somebody approved is told as they wrote it",
        "gateway/service/proving.py",
        "        if not one.reason or _is_signed(",
        "        if True or _is_signed(",
        WORDS,
    ),
    Mutant(
        "notes of a finding are told as people wrote them",
        "gateway/approvals/signed_decisions.py",
        "        text=vote.reason if finding is None else note,\n",
        "        text=vote.reason,\n",
        WORDS,
    ),
    Mutant(
        "a revoked API key stays revoked for who has the audit log",
        "gateway/store/api_keys.py",
        "        if key is None or await self._was_revoked(key, stored):\n",
        "        if key is None:\n",
        "tests/api/test_revoked_keys.py",
    ),
)

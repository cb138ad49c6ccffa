"""List ways to let the audit log be changed, forked or cut without notice."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

WRITING = "tests/service/test_audit_writing.py"
VERIFYING = "tests/store/test_audit_verifying.py"
BUNDLES = "tests/service/test_audit_bundles.py"
LEAF = "tests/approvals/test_audit_leaf.py"
SEALS = "tests/store/test_audit_seals.py"
INDEX = "tests/store/test_audit_index.py"

AUDIT_TABLE = (
    Mutant(
        "what is hidden in a leaf has a salt of its own",
        "gateway/approvals/audit_leaf.py",
        "    body = json.dumps([salt, name, value]).encode()",
        "    body = json.dumps([name, value]).encode()",
        LEAF,
    ),
    Mutant(
        "a leaf holds nobody's words",
        "gateway/approvals/audit_leaf.py",
        '_OUTSIDE = {"at_ms", "seq", "data", *_ERASABLE}',
        '_OUTSIDE = {"at_ms", "seq", "data", "actor"}',
        LEAF,
    ),
    Mutant(
        "another value than the hidden one is refused",
        "gateway/approvals/audit_leaf.py",
        "        if hidden.get(name) != _hash(name, one):",
        "        if name not in hidden:",
        LEAF,
    ),
    Mutant(
        "the seal of an entry is of its rev",
        "gateway/store/audit_seals.py",
        "(keys.tenant, str(rev), nonce), body):",
        '(keys.tenant, "7", nonce), body):',
        SEALS,
    ),
    Mutant(
        "an entry has the rev of the approval that it is about",
        "gateway/store/audit_seals.py",
        "rev if one.approval in of else 0",
        "0",
        SEALS,
    ),
    Mutant(
        "entries leave the store behind a checkpoint alone",
        "gateway/service/audit_writing.py",
        "before=tree.signed_last)",
        "before=tree.last)",
        WRITING,
    ),
    Mutant(
        "what no checkpoint covers is written again by the next writer",
        "gateway/service/audit_writing.py",
        "    files.cut(newest.size)\n",
        "",
        WRITING,
    ),
    Mutant(
        "a paused writer and its successor never write side by side",
        "gateway/store/audit_tree.py",
        "fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)",
        WRITING,
    ),
    Mutant(
        "a writer that another one followed reads the files again",
        "gateway/service/audit_writing.py",
        "                    if not was_last:\n",
        "                    if False:\n",
        WRITING,
    ),
    Mutant(
        "a tree in another folder is not begun a second time",
        "gateway/service/audit_writing.py",
        "!= noted.origin and noted.origin:\n",
        "!= noted.origin and False:\n",
        WRITING,
    ),
    Mutant(
        "a note of another tree is told where ours is signed",
        "gateway/service/audit_writing.py",
        "is_late = has_tree or await",
        "is_late = await",
        WRITING,
    ),
    Mutant(
        "a note that changed under the writer is noticed",
        "gateway/service/audit_writing.py",
        " or noted != self._notes.last:",
        ":",
        WRITING,
    ),
    Mutant(
        "a note of the tree that is gone is told",
        "gateway/service/audit_writing.py",
        "            if not noted.origin:\n",
        "            if False:\n",
        WRITING,
    ),
    Mutant(
        "what no replica has is not signed",
        "gateway/service/audit_writing.py",
        "        await self._store.conn.confirm(self._keys.audit)\n",
        "",
        WRITING,
    ),
    Mutant(
        "an entry that was changed after its checkpoint is not sealed",
        "gateway/service/audit_writing.py",
        "audit_segments.compared(self._files, start, rows, what=what)",
        "rows",
        WRITING,
    ),
    Mutant(
        "a forged entry is reported",
        "gateway/service/audit_writing.py",
        "            if one.state is SealState.SEALED:\n                continue",
        "            if one.state is not None:\n                continue",
        WRITING,
    ),
    Mutant(
        "each root is compared with its checkpoint",
        "gateway/store/audit_verifying.py",
        "                    if head.root() != left[0].root:",
        "                    if False:",
        VERIFYING,
    ),
    Mutant(
        "each entry is compared with its leaf",
        "gateway/store/audit_segments.py",
        "is_same = leaf == record.leaf and row.state",
        "is_same = row.state",
        VERIFYING,
    ),
    Mutant(
        "a log that was rolled back is noticed by what the store knows",
        "gateway/store/audit_verifying.py",
        "        elif size and roots.get(size) != root:",
        "        elif False:",
        VERIFYING,
    ),
    Mutant(
        "an entry of a bundle is in the signed tree",
        "gateway/trust/audit_bundle.py",
        "        if not is_included(hashed, index, head.size, proof, head.root):",
        "        if False:",
        BUNDLES,
    ),
    Mutant(
        "no entry is left out of a bundle",
        "gateway/trust/audit_bundle.py",
        "        if log.is_whole and index != log.last + 1:",
        "        if False:",
        BUNDLES,
    ),
    Mutant(
        "what others of a tenant wrote stays hidden in a bundle",
        "gateway/service/audit_reading.py",
        "dict(leaf.openings) if is_ours else {}",
        "dict(leaf.openings)",
        BUNDLES,
    ),
    Mutant(
        "what somebody else wrote does not move the index",
        "gateway/store/audit_index.py",
        "if state != SealState.SEALED or not any(",
        "if not any(",
        INDEX,
    ),
    Mutant(
        "an index that is lost is written again",
        "gateway/service/audit_writing.py",
        "        await self._index_again(found.signed_last)\n",
        "",
        INDEX,
    ),
    Mutant(
        "the audit log tells who tried to decide and was refused",
        "gateway/service/deciding.py",
        "            if isinstance(refusal, Forbidden) and click",
        "            if False and click",
        "tests/service/test_audited_kinds.py",
    ),
    Mutant(
        "a refusal is told once, however often somebody clicks",
        "gateway/service/deciding.py",
        "        if told in self._told:\n",
        "        if False:\n",
        "tests/service/test_audited_kinds.py",
    ),
)

"""Ways to leave words readable in the store, or to read them elsewhere."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

KEYS = "gateway/trust/encryption.py"
RECORDS = "gateway/store/encryption.py"
TEXTS = "gateway/store/encryption.py"

PRIMITIVES = "tests/trust/test_encryption.py"
OF_RECORDS = "tests/store/test_record_encryption.py"
CANARY = "tests/security/test_canary.py"

ENCRYPTION_TABLE = (
    Mutant(
        "an encrypted text is read at its place alone",
        KEYS,
        'return b"keyturn/v1/text\\x00" + joined',
        'return b"keyturn/v1/text\\x00"',
        PRIMITIVES,
    ),
    Mutant(
        "no two places of encrypted texts are equal",
        KEYS,
        'b"".join(b"%d:%b" % (len(part), part) for part in encoded)',
        'b"".join(encoded)',
        PRIMITIVES,
    ),
    Mutant(
        "each text is encrypted with a nonce of its own",
        KEYS,
        "    nonce = os.urandom(_NONCE_BYTES)\n",
        '    nonce = b"n" * _NONCE_BYTES\n',
        PRIMITIVES,
    ),
    Mutant(
        "a data key is of one approval",
        KEYS,
        "parts = (self.tenant, self.approval,",
        'parts = (self.tenant, "" if self.field == "data key" else self.approval,',
        PRIMITIVES,
    ),
    Mutant(
        "each approval has a data key of its own",
        KEYS,
        "        key = os.urandom(KEY_BYTES)\n",
        "        key = self._keys[self.current]\n",
        OF_RECORDS,
    ),
    Mutant(
        "keys of texts wrap no data keys",
        KEYS,
        "keys = [derived_key(one, Purpose.TEXTS) for one in secrets]",
        "keys = [derived_key(one, Purpose.DATA_KEYS) for one in secrets]",
        PRIMITIVES,
    ),
    Mutant(
        "no two places of texts that belong to no record are equal",
        KEYS,
        '"".join(f"{len(one)}:{one}" for one in place)',
        '"".join(place)',
        PRIMITIVES,
    ),
    Mutant(
        "an event is read for the tenant that it was encrypted for",
        KEYS,
        'return Place("", "", "".join(f"{len(one)}:{one}" for one in place))',
        'return Place("", "", "")',
        CANARY,
    ),
    Mutant(
        "the document of an approval is encrypted",
        RECORDS,
        "return MARK + encrypt(key, document, _place(approval_id)), wrapped",
        "return document, wrapped",
        OF_RECORDS,
    ),
    Mutant(
        "a data key is wrapped by the newest secret",
        RECORDS,
        "        if wrapped_by(wrapped) != self._keys.current:\n",
        "        if False:\n",
        OF_RECORDS,
    ),
    Mutant(
        "an encrypted text that was moved is a forgery",
        RECORDS,
        "            raise ForgedRecord(approval_id, _MISPLACED) from error\n",
        "            raise ValueError(_MISPLACED) from error\n",
        OF_RECORDS,
    ),
    Mutant(
        "an encrypted record that is set aside is told to its thread",
        "gateway/store/quarantine.py",
        "tenant, ref = codec.whose(plain) or (tenant, ref)",
        "codec.whose(plain)",
        OF_RECORDS,
    ),
    Mutant(
        "facts and verdicts are encrypted",
        TEXTS,
        "    if not (conn.encrypts and body):\n",
        "    if body:\n",
        CANARY,
    ),
    Mutant(
        "events, precedents and rejections are encrypted",
        TEXTS,
        "encrypt_text(conn, place, body) if conn.encrypts and body else body",
        "body",
        CANARY,
    ),
    Mutant(
        "what is kept of a rejected call is encrypted",
        "gateway/store/encryption.py",
        "    text = encrypted_text(conn, place, body)\n",
        "    text = body\n",
        CANARY,
    ),
    Mutant(
        "what is kept of a rejected call is sealed",
        "gateway/store/audit_seals.py",
        "    return body if is_sealed else None\n",
        "    return body\n",
        "tests/security/test_forged_rejections.py",
    ),
    Mutant(
        "words of a precedent are sealed",
        "gateway/store/precedents.py",
        "            if not is_sealed:\n",
        "            if False:\n",
        "tests/security/test_forged_rejections.py",
    ),
    Mutant(
        "an entry of the audit log is encrypted",
        "gateway/store/audit_seals.py",
        '        f"{encrypted_event(conn, keys, body)}\\n{entry_seal(',
        '        f"{body}\\n{entry_seal(',
        CANARY,
    ),
    Mutant(
        "precedents are encrypted",
        "gateway/store/next_version.py",
        "encrypted_rows(conn, rows_of_change(keys, before, after))",
        "rows_of_change(keys, before, after)",
        CANARY,
    ),
    Mutant(
        "the verdicts on a turn are encrypted",
        "gateway/service/submitting.py",
        "    body = encrypted(sealing.conn, (Sealed.VERDICTS, turn_key), body)\n",
        "",
        CANARY,
    ),
    Mutant(
        "what a thread is started with is encrypted",
        "gateway/store/jobs.py",
        "    job = job.with_(input=_encrypted(sealing, job))\n",
        "",
        CANARY,
    ),
    Mutant(
        "what a person writes is never taken for an encrypted text",
        "gateway/store/jobs.py",
        "    if not sealing.conn.encrypts and not job.input.startswith(_MARK):\n",
        "    if not sealing.conn.encrypts:\n",
        "tests/store/test_jobs.py",
    ),
    Mutant(
        "the answer to a write over HTTP is encrypted",
        "gateway/store/sealing.py",
        "        body = encrypted(self.conn, (kind, *place), body)\n",
        "",
        "tests/store/test_kept_answers.py",
    ),
    Mutant(
        "what somebody else announces is not said",
        "gateway/store/audit_seals.py",
        "    return body if is_ours else None\n",
        "    return body\n",
        "tests/bot/test_forged_events.py",
    ),
)

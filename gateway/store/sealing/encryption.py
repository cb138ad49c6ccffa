"""Compress and encrypt stored texts (AES-256-GCM).

Each approval's document has a separate data key. The fields of the head that scripts
compare are not encrypted: states, times, revisions, hashes of keys. The document is
compressed first, because encrypted data cannot be compressed.

The data key is a field of the record, wrapped with a key derived from the secret, so
deleting this field erases the whole document. Encrypted data is bound to its approval.
The record's seal covers the stored form and is checked before decryption
(`keyturn.gateway.store.records.codec`), so a document moved to another approval is
rejected. Decryption rejects it as well, in case a seal was forged.

Texts outside of records (events, facts, jobs, verdicts) are bound to their place and
encrypted with a key derived from the secret. Readers accept plain texts, too: a store
may contain both.

JSON starts with a brace or a bracket and a zlib stream with 0x78, which distinguishes
the two.
"""

from __future__ import annotations

import base64
import binascii
import os
import zlib
from collections.abc import Mapping, Sequence
from typing import Final

from keyturn.gateway.errors import ForgedRecord, NotVerified
from keyturn.gateway.store.connection.connection import Connection
from keyturn.gateway.trust.encryption import (
    KEY_BYTES,
    EncryptionKeys,
    decrypt,
    encrypt,
    encrypted_by,
    encryption_keys,
)
from keyturn.gateway.trust.seals import Purpose

DATA_KEY: Final = "dk"
"""Field of the head: the wrapped data key of an encrypted record."""

MARK: Final = b"\x1e"
"""First byte of an encrypted text; JSON and packed texts start differently."""

_MISPLACED = "what is encrypted in it belongs elsewhere"

_TEXT_MARK: Final = MARK.decode()
MOST_BYTES = 64 * 2**20
"""Size limit of a decompressed text: a forged stream could exhaust the memory."""

_PLAIN, _PACKED = b"{[", b"x"

_USUAL = b"".join(
    (
        b'"decided_at_ms":"executed","failed","answered","expired","withdrawn",',
        b'"result":{"ok":true,"payload":"{\\"content\\":\\"",',
        b'"decision":{"verb":"by":{"at_ms":"text":"gesture":"display_digest":"sha256:',
        b'"request_digest":"sha256:",',
        b'"votes":[{"on_behalf_of":[{"edit":{"original_hash":"sha256:"edited_hash":"s',
        b'ha256:","edited_args":{"original_args":{{"policy":"sha256:",',
        b'"verdicts":[{"kind":"hold","tool":"tool_call_id":"call_","tier":"approve",',
        b'"args_hash":"sha256:","item_id":"ap_default_.0","action_hash":"sha256:",',
        b'"allow":["approve","edit","reject","respond"],',
        b'"args_schema":{"type":"object","properties":{"id":{"type":"string",',
        b'"description":"array","items":{"type":"string"}},"type":"integer"},',
        b'"type":"number"},"type":"boolean"}},"required":["]}}]}{"tenant":"default",',
        b'"agent":"thread":"message_id":"channel":"C0","ttl_ms":3600000,',
        b'"requester":{"team":"T0","user":"U0","name":""},"principals":[{"team":"T0",',
        b'"user":"U0","name":""}],"policy_digest":"sha256:","recent_requests":1,',
        b'"origin":{"channel":"C","thread_ts":"1"},"items":[{"tier":"approve",',
        b'"reasons":["The policy lists this tool as approve."],',
        b'"requirement":{"approvals":1,"of":[{"name":"reviewers","users":["U0"]}]},',
        b'"allow":["approve","edit","reject","respond"],"authorization_ms":86400000,',
        b'"requested":"{\\"args\\":{\\"},\\"ctx\\":{\\"agent\\":\\"\\",',
        b'\\"message_id\\":\\"\\",\\"ns\\":\\"\\",\\"tenant\\":\\"default\\",',
        b'\\"thread\\":\\"\\",\\"tool_call_id\\":\\"call_\\"},\\"salt\\":\\"\\",',
        b'\\"tool\\":\\"\\",\\"v\\":1}","spelled":{"effect":"sha256:"}]}',
    )
)
"""Text that most records share, as the dictionary for their compression.

A record with one call is too short to contain a word twice. This text makes it a third
shorter. It is part of the store's format: with another text, older records would be
unreadable.
"""


def encrypted_document(
    conn: Connection, approval_id: str, document: bytes, wrapped: bytes = b""
) -> tuple[bytes, bytes]:
    """Return a document in stored form, and its wrapped data key.

    The key is empty without encryption. A key wrapped with an older secret is wrapped
    again.

    Args:
        conn: the store.
        approval_id: id of the approval.
        document: from `codec.document`.
        wrapped: the record's wrapped data key; empty if there is none.
    """
    if not (wrapped or conn.encrypts):
        return document, b""
    keys, place = _data_keys(conn), _key_place(approval_id)
    key = keys.decrypt(wrapped, place) if wrapped else os.urandom(KEY_BYTES)
    if encrypted_by(wrapped) != keys.current:
        wrapped = keys.encrypt(key, place)
    return MARK + encrypt(key, document, _place(approval_id)), wrapped


def decrypted_document(
    conn: Connection, approval_id: str, head: Mapping[str, bytes], document: bytes
) -> bytes:
    """Return the plain document.

    Raises:
        ForgedRecord: when it was not encrypted for this approval.
    """
    if not document.startswith(MARK):
        return document
    try:
        wrapped = head.get(DATA_KEY, b"")
        key = _data_keys(conn).decrypt(wrapped, _key_place(approval_id))
        return decrypt(key, document[len(MARK) :], _place(approval_id))
    except NotVerified as error:
        raise ForgedRecord(approval_id, _MISPLACED) from error


def _data_keys(conn: Connection) -> EncryptionKeys:
    return encryption_keys(conn.secrets, Purpose.DATA_KEYS)


def _place(approval_id: str) -> tuple[str, str]:
    return approval_id, "document"


def _key_place(approval_id: str) -> tuple[str, str]:
    return approval_id, "data key"


def _text_keys(conn: Connection) -> EncryptionKeys:
    return encryption_keys(conn.secrets, Purpose.TEXTS)


def encrypted(conn: Connection, place: Sequence[str], body: bytes) -> bytes:
    """Return a text in stored form; unchanged if the store does not encrypt."""
    if not (conn.encrypts and body):
        return body
    return MARK + _text_keys(conn).encrypt(body, place)


def decrypted(conn: Connection, place: Sequence[str], stored: bytes) -> bytes:
    """Return a plain text; unencrypted texts are returned unchanged.

    Raises:
        ValueError: it was encrypted for another place, or with an unknown key.
    """
    if not stored.startswith(MARK):
        return stored
    try:
        return _text_keys(conn).decrypt(stored[len(MARK) :], place)
    except NotVerified as error:
        raise ValueError("not encrypted for this place") from error


def encrypted_text(conn: Connection, place: Sequence[str], body: str) -> str:
    """Like `encrypted`, for JSON that scripts take as a string."""
    return encrypt_text(conn, place, body) if conn.encrypts and body else body


def encrypt_text(conn: Connection, place: Sequence[str], body: str) -> str:
    """Encrypt JSON and return it as a string."""
    raw = _text_keys(conn).encrypt(packed(body), place)
    return _TEXT_MARK + base64.b64encode(raw).decode()


def decrypted_text(conn: Connection, place: Sequence[str], stored: bytes) -> bytes:
    """Reverse `encrypted_text`; unencrypted texts are returned unchanged.

    Raises:
        ValueError: as `decrypted` does.
    """
    if not stored.startswith(MARK):
        return stored
    try:
        raw = base64.b64decode(stored[len(MARK) :], validate=True)
        return unpacked(_text_keys(conn).decrypt(raw, place))
    except (NotVerified, binascii.Error) as error:
        raise ValueError("not encrypted for this place") from error


def packed(text: str) -> bytes:
    """Return JSON in stored form: compressed if that is shorter."""
    plain = text.encode("utf-8")
    # Without zlib's header and checksum, which a seal makes redundant.
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS, zdict=_USUAL)
    body = _PACKED + deflate.compress(plain) + deflate.flush()
    return body if len(body) < len(plain) else plain


def unpacked(stored: bytes) -> bytes:
    """Return the original JSON of a stored text.

    Raises:
        ValueError: when it is damaged, or longer than `MOST_BYTES`.
    """
    if not stored or stored[0] in _PLAIN:
        return stored
    if not stored.startswith(_PACKED):
        raise ValueError("damaged")
    inflate = zlib.decompressobj(wbits=-zlib.MAX_WBITS, zdict=_USUAL)
    try:
        plain = inflate.decompress(stored[len(_PACKED) :], MOST_BYTES)
    except zlib.error as error:
        raise ValueError("damaged") from error
    if not inflate.eof or inflate.unused_data:
        raise ValueError("damaged")
    return plain

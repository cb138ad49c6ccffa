"""Compress the JSON of a record with zlib and a preset dictionary.

A packed text begins with the number of its dictionary, then raw DEFLATE follows, and
behind it the bytes of the hashes that stood in the text in hexadecimal digits, which
no compression makes as short. JSON begins with a brace or a bracket, so a text that is
not packed is told apart from one that is. The dictionary holds what our records have in
common: names of fields and sentences of ours. One that has been written with is never
changed, only followed by another number, with which
`twokey.gateway.store.codec.FORMAT` rises.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping

from twokey.gateway.errors import NewerRecord

MOST_BYTES = 64 * 2**20
"""How long a text may become: a packed one from elsewhere could fill the memory."""

_RAW = -15
_RAW_SMALL = -13
_PLAIN = b"{["

# What is most common stands at the end: DEFLATE finds near matches in fewer bits.
_SECOND = (
    b'"original_args":{"nested_in":{"agent":"waiting":{"remind_at_ms":'
    b'"escalate_at_ms":"roles":[{"name":"channels":["task":"answered":[{"text":'
    b'"triage":{"score":"requests_before":{"description":"agent_description":"'
    b'"link":"https://","preview":"redact":["totals":["formats":['
    b'"requires_reason":["asks_on_failure":true,"idempotent":true,'
    b'"is_question":true,"is_standing":true,"can_cover":true,"cover":'
    b'"usergroups":["S0"],"notify":"dm""at_least":{"also":[{"editor_may_vote":false'
    b'"spot_check":{"of":["tier":"escalate","tier":"notify",'
    b'{"policy":"sha256:","verdicts":[{"kind":"deny","tool":"{"kind":"run","tool":"'
    b'","tier":"notify","reason":"'
    b'{"requester":{"team":"T0","user":"U0","name":""},"origin":{"channel":"C0'
    b'","thread_ts":"17"}}'
    b'{"policy":"sha256:","verdicts":[{"kind":"hold","tool":"","tool_call_id":"call_'
    b'","tier":"approve","args_hash":"sha256:","item_id":"0.0","action_hash":"sha256:'
    b'","allow":["approve","edit","reject","respond"]}],"schemas":["sha256:"]}'
    b'{"id":"ap_s0_","tenant":"default","agent":"","thread":"'
    b'","ns":"","message_id":"lc_run--","channel":"C0","ttl_ms":3600000,'
    b'"requester":{"team":"T0","user":"U0","name":"'
    b'"},"principals":[{"team":"T0","user":"U0","name":"'
    b'"}],"origin":{"channel":"C0","thread_ts":"17"},"policy_digest":"sha256:'
    b'","says":"","recent_requests":1,"items":[{"tier":"approve",'
    b'"reasons":["The policy lists this tool as approve."],'
    b'"requirement":{"approvals":1,"of":[{"name":"reviewers","users":["U0"]}]},'
    b'"allow":["approve","edit","reject","respond"],"authorization_ms":86400000,'
    b'"tool":"","effect":"sha256:","args_schema":0,"call":"call_'
    b'","asked":{"args":{"amount":,"customer_id":"",'
    b'"items":["],"notify":true,"order_id":"","reason":"The "},"salt":"","v":1}}]}'
)

# What a record has since others share the rest with it. The names behind "args" are
# those that arguments of many tools have.
_THIRD = (
    b'"nested_in":{"agent":"waiting":{"remind_at_ms":"escalate_at_ms":"roles":['
    b'{"name":"channels":["task":"answered":[{"text":"original_args":{"triage":{"score":'
    b'"requests_before":{"description":"agent_description":"","link":"https://'
    b'"spot_check":{"preview":"cover":{"state":{"value":"title":"id":"ap_s0_'
    b'"reasons":["The policy lists this tool as escalate."],"tier":"notify"'
    b'"url":"https://","path":"/","command":"","query":"SELECT ","name":"","phone":"+'
    b'"address":"","date":"2026-","currency":"EUR","quantity":1,"status":"","sku":"'
    b'"account":"","invoice_id":"","subject":"","body":"","to":"","email":"@example.com>'
    b'"note":"","description":"","confirm":false,null,"notify":true,"items":["'
    b'","order_id":"","customer_id":"","customer":"","reason":"The "'
    b'{"tenant":"default","agent":"","thread":"","ns":"","message_id":"lc_run--'
    b'","ttl_ms":3600000,"requester":{"team":"T0","user":"U0","name":"'
    b'"},"principals":[{"team":"T0","user":"U0","name":"'
    b'"}],"origin":{"channel":"C0","thread_ts":"17"},"says":"","recent_requests":1,'
    b'"items":[{"reasons":["The policy lists this tool as approve."],"effect":"\x02",'
    b'"shared":0,"call":"call_","asked":{"args":{"amount":,"},"salt":"\x01","v":1}}]}'
)

DICTIONARIES: Mapping[int, bytes] = {2: _SECOND, 3: _THIRD}
"""By the format that a packed text begins with; none is taken out."""
_NEWEST = max(DICTIONARIES)

# JSON holds no control characters: these stand for as many bytes behind the text.
_HEX = re.compile(rb"(?<![0-9a-f])(?:[0-9a-f]{64}|[0-9a-f]{32})(?![0-9a-f])")
_MARKS = {32: b"\x01", 64: b"\x02"}
_MARK = re.compile(rb"[\x01\x02]")
_BYTES = {b"\x01": 16, b"\x02": 32}
_WITHOUT_HASHES = 2


def packed(text: str) -> bytes:
    """Return a JSON text as it is stored: compressed where that is shorter."""
    whole = text.encode("utf-8")
    dictionary, hashes = DICTIONARIES[_NEWEST], list[bytes]()

    def mark(found: re.Match[bytes]) -> bytes:
        hashes.append(bytes.fromhex(found[0].decode()))
        return _MARKS[len(found[0])]

    plain = _HEX.sub(mark, whole)
    if len(dictionary) + len(plain) <= 1 << -_RAW_SMALL:
        # A larger window would find no more than one that holds dictionary and text,
        # and to get its memory is most of the work.
        deflate = zlib.compressobj(wbits=_RAW_SMALL, memLevel=6, zdict=dictionary)
    else:
        deflate = zlib.compressobj(wbits=_RAW, zdict=dictionary)
    body = deflate.compress(plain) + deflate.flush() + b"".join(hashes)
    return bytes([_NEWEST]) + body if len(body) + 1 < len(whole) else whole


def unpacked(stored: bytes) -> bytes:
    """Return the JSON that was stored.

    Raises:
        NewerRecord: when a newer version packed it, with a dictionary of its own. In a
            record whose format is known it is damaged instead.
        ValueError: when it is damaged.
    """
    if not stored or stored[0] in _PLAIN:
        return stored
    dictionary = DICTIONARIES.get(stored[0])
    if dictionary is None:
        # Junk that begins with a printable character is damaged, and nobody's version.
        if stored[0] >= ord(" "):
            raise ValueError("neither JSON nor packed")
        raise NewerRecord("packed", format=stored[0], known=_NEWEST)
    inflate = zlib.decompressobj(wbits=_RAW, zdict=dictionary)
    try:
        plain = inflate.decompress(stored[1:], MOST_BYTES)
    except zlib.error as error:
        raise ValueError("damaged") from error
    if not inflate.eof:
        raise ValueError("damaged")
    hashes = inflate.unused_data
    if stored[0] > _WITHOUT_HASHES:
        plain, hashes = _with_hashes(plain, hashes)
    if hashes:
        raise ValueError("damaged")
    return plain


def _with_hashes(plain: bytes, hashes: bytes) -> tuple[bytes, bytes]:
    """Return a text with its hashes, and what is left of them."""
    parts, at, used = list[bytes](), 0, 0
    for found in _MARK.finditer(plain):
        raw = hashes[used:][: _BYTES[found[0]]]
        if len(raw) < _BYTES[found[0]]:
            raise ValueError("damaged")
        parts += [plain[at : found.start()], raw.hex().encode()]
        at, used = found.end(), used + len(raw)
    return b"".join([*parts, plain[at:]]), hashes[used:]

"""Order messages, good and bad, that the tests of the codec and of the contract share."""

from __future__ import annotations

import json
from typing import Any

GOOD: dict[str, Any] = {
    "order_id": "A-1",
    "workflow": "order",
    "reply_queue": "responses-web-shop",
    "order": {"customer_id": "ALFKI"},
}


def body(**members: Any) -> bytes:
    """Return a good order message with these members put in their places."""
    return json.dumps(GOOD | members).encode()


def without(*names: str) -> bytes:
    """Return a good order message that lacks these members."""
    return json.dumps({k: v for k, v in GOOD.items() if k not in names}).encode()


def nested(depth: int) -> bytes:
    """Return an order message whose brackets nest ``depth`` levels deep."""
    inside = depth - 2
    return body(order={"deep": 0}).replace(b"0}", b"[" * inside + b"]" * inside + b"}")


BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not-json"),
    "only spaces": (b"  \n ", "not-json"),
    "not JSON": (b"order A-1 please", "not-json"),
    "cut short": (body()[:-1], "not-json"),
    "two values": (body() + body(), "not-json"),
    "single quotes": (body().replace(b'"', b"'"), "not-json"),
    "trailing comma": (body()[:-1] + b",}", "not-json"),
    "raw control character": (body(order={"a": "X"}).replace(b"X", b"\x01"), "not-json"),
    "byte order mark": (b"\xef\xbb\xbf" + body(), "not-json"),
    "Latin-1": (body(order={"city": "X"}).replace(b"X", b"M\xfcnster"), "not-utf-8"),
    "UTF-16": (body().decode().encode("utf-16"), "not-utf-8"),
    "surrogates in UTF-8": (body(order={"a": "X"}).replace(b"X", b"\xed\xa0\x80"), "not-utf-8"),
    "half a character": (body(order={"a": "\ud83d"}), "not-unicode"),
    "half a character in a name": (body(order={"\udc00": 1}), "not-unicode"),
    "half a character in the id": (body(order_id="A\ud83d"), "not-unicode"),
    "an array": (b"[" + body() + b"]", "invalid"),
    "a text": (b'"A-1"', "invalid"),
    "a number": (b"1", "invalid"),
    "null": (b"null", "invalid"),
    "empty object": (b"{}", "invalid"),
    "no id": (without("order_id"), "invalid"),
    "no workflow": (without("workflow"), "invalid"),
    "no reply queue": (without("reply_queue"), "invalid"),
    "no order": (without("order"), "invalid"),
    "id a number": (body(order_id=1), "invalid"),
    "id null": (body(order_id=None), "invalid"),
    "workflow null": (body(workflow=None), "invalid"),
    "workflow empty": (body(workflow=""), "invalid"),
    "workflow too long": (body(workflow="w" * 41), "invalid"),
    "reply queue empty": (body(reply_queue=""), "invalid"),
    "reply queue an object": (body(reply_queue={}), "invalid"),
    "reply queue too long": (body(reply_queue="r" * 261), "invalid"),
    "order null": (body(order=None), "invalid"),
    "order a text": (body(order="{}"), "invalid"),
    "order an array": (body(order=[]), "invalid"),
    "correlation id a number": (body(correlation_id=7), "invalid"),
    "correlation id empty": (body(correlation_id=""), "invalid"),
    "correlation id too long": (body(correlation_id="c" * 129), "invalid"),
    "correlation id with a line end": (body(correlation_id="c\n"), "invalid"),
    "submission id too long": (body(submission_id="s" * 129), "invalid"),
    "submission id with a control": (body(submission_id="\x9f"), "invalid"),
    "version zero": (body(workflow_version=0), "invalid"),
    "version a text": (body(workflow_version="1"), "invalid"),
    "version a fraction": (body(workflow_version=1.5), "invalid"),
    "version true": (body(workflow_version=True), "invalid"),
    "version too large": (body(workflow_version=1_000_001), "invalid"),
    "unknown member": (body(priority=1), "invalid"),
    "other case": (body(Workflow="order"), "invalid"),
    "id empty": (body(order_id=""), "invalid-order-id"),
    "id too long": (body(order_id="x" * 101), "invalid-order-id"),
    "id begins with a space": (body(order_id=" A"), "invalid-order-id"),
    "id has two spaces": (body(order_id="A  1"), "invalid-order-id"),
    "id ends with a space": (body(order_id="A\u00a0"), "invalid-order-id"),
    "NaN": (body(order={"freight": float("nan")}), "not-finite"),
    "Infinity": (body(order={"freight": float("inf")}), "not-finite"),
    "minus Infinity": (body(order={"freight": float("-inf")}), "not-finite"),
    "1e999": (body(order={"freight": 0}).replace(b"0}", b"1e999}"), "not-finite"),
    "5000 digits": (body(order={"n": 0}).replace(b"0}", b"9" * 5000 + b"}"), "not-finite"),
    "one member twice": (body()[:-1] + b',"workflow":"order"}', "duplicate-key"),
    "twice, escaped": (body()[:-1] + b',"workfl\\u006fw":"order"}', "duplicate-key"),
    "twice, deep": (body(order={"a": [{"b": 0}]}).replace(b"0}", b'0,"b":0}'), "duplicate-key"),
    "33 levels": (nested(33), "too-deep"),
    "100,000 levels": (b"[" * 100_000, "too-deep"),
    "300 KB": (body(order={"note": "x" * 300 * 1024}), "too-large"),
}
"""Every message here must be refused, with this reason."""

FORBIDDEN_IN_IDS = [
    *"/\\#?|!$%&'()*;<>[]^`{}\"",
    *map(chr, range(0x20)),
    *map(chr, range(0x7F, 0xA0)),
]

FINE: dict[str, bytes] = {
    "plain": body(),
    "every member": body(correlation_id="c", submission_id="s", workflow_version=1),
    "all optional members null": body(
        correlation_id=None, submission_id=None, workflow_version=None
    ),
    "longest": body(
        order_id="x" * 100, workflow="w" * 40, correlation_id="c" * 128, submission_id="s" * 128
    ),
    "unusual id": body(order_id="Bestellung 7,größer: 注文_A.b@c+d=e~f-"),
    "32 levels": nested(32),
    "4000 digits": body(order={"n": 0}).replace(b"0}", b"9" * 4000 + b"}"),
    "tiny number": body(order={"n": 1e-320}),
    "both halves of a character": body(order={"a": "🙂"}),
    "spaces around": b" \n" + body() + b"\n",
    "empty order": body(order={}),
    "brackets in a text": body(order={"a": "[{" * 100 + '\\"[[['}),
    "names in the order's own part are free": body(order={"MessageId": 1, "order_id": 2}),
}
"""Every message here must be taken."""

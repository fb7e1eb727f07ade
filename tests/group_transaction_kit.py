"""Transactions of the table service: operations, and answers as the service sends them."""

from __future__ import annotations

import json
from typing import Any

from azure.core import MatchConditions
from azure.data.tables import UpdateMode

from sas.adapters.tables.operations import Operation, deletion
from sas.adapters.tables.rows import stored

MIXED = "multipart/mixed; boundary=batchresponse_1"
ETAG = "W/\"datetime'2026-03-01T12%3A00%3A00.1234567Z'\""
OPERATIONS = [
    Operation("update", {"RowKey": "order|a'b%41 +é", "Seq": 2, "Gone": None}, ETAG),
    Operation("create", {"RowKey": "x", "Text": "ü\n🛒", "Yes": True}),
    Operation("upsert", {"RowKey": "y", "Bytes": b"\x00\xff"}),
    deletion("z"),
]


def for_sdk(operation: Operation, partition: str) -> tuple[Any, ...]:
    """The tuple that ``submit_transaction`` takes."""
    options: dict[str, Any] = {}
    if operation.verb in {"update", "upsert"}:
        options["mode"] = UpdateMode.REPLACE
    if operation.etag is not None:
        options |= {"etag": operation.etag, "match_condition": MatchConditions.IfNotModified}
    return (operation.verb, stored(partition, operation.row), options)


def answer(*parts: str) -> bytes:
    """An answer as the service sends it: each part is a status line with headers, and a body."""
    answers = "".join(
        "--changesetresponse_2\r\nContent-Type: application/http\r\n"
        f"Content-Transfer-Encoding: binary\r\n\r\n{part}\r\n"
        for part in parts
    )
    return (
        "--batchresponse_1\r\nContent-Type: multipart/mixed; boundary=changesetresponse_2\r\n\r\n"
        f"{answers}--changesetresponse_2--\r\n--batchresponse_1--\r\n"
    ).encode()


def done(number: int) -> str:
    return f'HTTP/1.1 204 No Content\r\nDataServiceVersion: 3.0;\r\nETag: W/"{number}"\r\n\r\n'


CREATED = 'HTTP/1.1 201 Created\r\netag: W/"9"\r\nContent-Type: application/json\r\n\r\n{"a":1}'
DELETED = "HTTP/1.1 204 No Content\r\nDataServiceVersion: 1.0;\r\n\r\n"


def refusal(status: int, code: str, text: str) -> str:
    error = {"odata.error": {"code": code, "message": {"lang": "en-US", "value": text}}}
    return f"HTTP/1.1 {status} Refused\r\nContent-ID: 1\r\n\r\n{json.dumps(error)}"

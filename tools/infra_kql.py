"""Queries checked against ``infra/telemetry-fields.json``: what they ask for must be emitted."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STRING = re.compile(r"'([^']*)'|\"([^\"]*)\"")
PROPERTY = re.compile(r"Properties\[(?:'([^']*)'|\"([^\"]*)\")\]")
COMPARED = re.compile(
    r"tostring\(Properties\['([^']*)'\]\)\s*(?:==|!=|in)\s*(\((?:\s*'[^']*'\s*,?)+\)|'[^']*')"
)
SPANS = re.compile(r"\bName in \(([^)]*)\)")
DEFINED = re.compile(r"\b([A-Za-z_]\w*)\s*=(?![=~])")
WORD = re.compile(r"(?<![\w.])([A-Za-z_]\w*)")
WORDS = frozenset(
    [
        *("and", "or", "not", "in", "by", "asc", "desc", "true", "false", "let", "where", "top"),
        *("summarize", "extend", "project", "order", "bin", "sum", "max", "min", "count"),
        *("tostring", "toscalar", "strcat", "iff", "contains", "startswith"),
    ]
)
"""The words of Kusto that the queries may use; a new one is added here on purpose."""


@dataclass(frozen=True, slots=True)
class Fields:
    """What is emitted, and what the platform's tables have."""

    metrics: Mapping[str, Any]
    log_attributes: frozenset[str]
    spans: frozenset[str]
    tables: Mapping[str, list[str]]


def read_fields(path: Path) -> Fields:
    """Return the contract."""
    content = json.loads(path.read_text())
    return Fields(
        content["metrics"],
        frozenset(content["logAttributes"]),
        frozenset(content["spans"]),
        content["platformTables"],
    )


def check_query(text: str, fields: Fields) -> list[str]:
    """Return everything a query asks for that is not there."""
    text = "\n".join(line.partition("//")[0] for line in text.splitlines())
    tables = [name for name in fields.tables if re.search(rf"\b{name}\b", text)]
    if not tables:
        return ["it reads none of the tables"]
    metrics = _metrics(text)
    return [
        *(f"no metric {name}" for name in metrics if name not in fields.metrics),
        *_attributes(text, tables, metrics, fields),
        *_values(text, metrics, fields),
        *_spans(text, tables, fields),
        *_columns(text, tables, fields),
    ]


def results(text: str) -> set[str]:
    """Return the columns that a query defines."""
    return set(DEFINED.findall(STRING.sub("''", text)))


def _metrics(text: str) -> list[str]:
    """Names beginning with sas. that are not attributes."""
    rest = PROPERTY.sub("", text)
    named = [found[1] or found[2] or "" for found in STRING.finditer(rest)]
    return sorted({name for name in named if name.startswith("sas.")})


def _attributes(text: str, tables: list[str], metrics: list[str], fields: Fields) -> list[str]:
    asked = {found[1] or found[2] for found in PROPERTY.finditer(text)}
    if "AppMetrics" in tables:
        known = {a for name in metrics for a in fields.metrics.get(name, {}).get("attributes", [])}
        if not metrics:
            return ["it reads AppMetrics and names no metric"]
    else:
        known = set(fields.log_attributes)
    return [f"no attribute {name}" for name in sorted(asked - known)]


def _values(text: str, metrics: list[str], fields: Fields) -> list[str]:
    problems = []
    for found in COMPARED.finditer(text):
        lists = [fields.metrics.get(name, {}).get("values", {}).get(found[1]) for name in metrics]
        known = {value for values in lists if values for value in values}
        if known:
            asked = {value[1] for value in STRING.finditer(found[2])}
            problems += [f"{found[1]} is never {value!r}" for value in sorted(asked - known)]
    return problems


def _spans(text: str, tables: list[str], fields: Fields) -> list[str]:
    if "AppRequests" not in tables:
        return []
    named = {name for listed in SPANS.findall(text) for name, _ in STRING.findall(listed)}
    return [f"no span {name}" for name in sorted(named - fields.spans)]


def _columns(text: str, tables: list[str], fields: Fields) -> list[str]:
    bare = STRING.sub("''", text)
    known = WORDS | set(tables) | results(text)
    known |= {column for name in tables for column in fields.tables[name]}
    return [f"no column {name}" for name in sorted(set(WORD.findall(bare)) - known)]

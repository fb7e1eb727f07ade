"""The AsyncAPI document of an application, for teams that work in other languages.

It is the published one (docs/contract), with the schemas that it names, and with the types of the
application's sagas: of the order of each workflow, and of the results in notifications.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from sas.distribution import files
from sas.domain.workflow import Workflow
from sas.ports import Business, PayloadCodec
from sas.saga.shapes import shapes_of

Schema = dict[str, Any]
_FORMAT = "application/schema+json;version=draft-2020-12"
_PLACE = "#/components/schemas/{name}/schema"
_SUFFIX = ".schema.json"
_SENDER_FILES = {"order": "order-message.schema.json", "notification": "notification.schema.json"}
"""The published schemas that the types of an application refine, by message."""


def document(business: Business, codec: PayloadCodec | None = None) -> Schema:
    """Return the document. With a payload codec, the results in notifications have no types."""
    shapes = [(workflow, shapes_of(business, workflow)) for workflow in business.workflows]
    typed = [(workflow, types) for workflow, types in shapes if types is not None]
    all_types = [shape for _, types in typed for shape in (types.order, *types.results.values())]
    schemas, components = msgspec.json.schema_components(all_types, ref_template=_PLACE)
    parts: dict[str, list[Schema]] = {
        message: [{"$ref": file}] for message, file in _SENDER_FILES.items()
    }
    schema = iter(schemas)
    for workflow, types in typed:
        is_newest = business.workflows.find(workflow.name) is workflow
        parts["order"].append(_order_part(workflow, next(schema), is_newest=is_newest))
        results = {step: next(schema) for step in types.results}
        if business.codec is None and codec is None:
            parts["notification"].append(_notification_part(workflow, results))
    published = _published("asyncapi.json")
    for name, message in published["components"]["messages"].items():
        del message["examples"]  # they are of the sample's workflows
        if name in parts:
            message["payload"]["schema"] = {"allOf": parts[name]}
    inlined: dict[str, Schema] = {}
    api: Schema = _inlined(published, inlined)
    components = _inlined(components, inlined)
    api["components"]["schemas"] = {
        name: {"schemaFormat": _FORMAT, "schema": part}
        for name, part in sorted({**components, **inlined}.items())
    }
    return api


def _order_part(workflow: Workflow, order: Schema, *, is_newest: bool) -> Schema:
    """Return the schema of an order message of one version of a workflow."""
    version = {"enum": [workflow.version, None]} if is_newest else {"const": workflow.version}
    return {
        "if": {
            "required": ["workflow", *(() if is_newest else ["workflow_version"])],
            "properties": {"workflow": {"const": workflow.name}, "workflow_version": version},
        },
        "then": {"properties": {"order": order}},
    }


def _notification_part(workflow: Workflow, results: dict[str, Schema]) -> Schema:
    """Return the schema of a notification about an order of one version of a workflow.

    The result of a step that an operator skipped can be null.
    """
    optional = {step: {"anyOf": [result, {"type": "null"}]} for step, result in results.items()}
    data: Schema = {"properties": {"results": {"properties": optional}}}
    if workflow.notify_steps:
        data["allOf"] = [
            {
                "if": {"required": ["step"], "properties": {"step": {"const": step}}},
                "then": {"properties": {"result": result}},
            }
            for step, result in optional.items()
        ]
    versioned = {"workflow": {"const": workflow.name}, "version": {"const": workflow.version}}
    condition = {"required": ["workflow", "version"], "properties": versioned}
    return {
        "if": {"properties": {"data": condition}},
        "then": {"properties": {"data": data}},
    }


def _inlined(value: Any, schemas: dict[str, Schema], base: str = "") -> Any:
    """Return JSON whose references to files lead into ``schemas``, which gets those files.

    A decimal is also read from a number, which msgspec's schema does not say. ``base`` is where
    ``value`` is; a reference within a file begins there.
    """
    if isinstance(value, list):
        return [_inlined(item, schemas, base) for item in value]
    if not isinstance(value, dict):
        return value
    members = {name: _inlined(item, schemas, base) for name, item in value.items()}
    if members.get("format") == "decimal":
        members["type"] = ["string", "number"]
    reference = value.get("$ref")
    if isinstance(reference, str):
        file, _, pointer = reference.partition("#")
        members["$ref"] = f"{_file(file, schemas) if file else base or '#'}{pointer}"
    return members


def _file(file: str, schemas: dict[str, Schema]) -> str:
    """Return where the schema of a file is, after it was added to ``schemas``."""
    name = f"sas.{file.removesuffix(_SUFFIX)}"  # no class of an application has such a name
    place = _PLACE.format(name=name)
    if name not in schemas:
        schemas[name] = {}
        schema = _published(file)
        del schema["$schema"], schema["examples"]
        schemas[name] = _inlined(schema, schemas, place)
    return place


def _published(file: str) -> Any:
    return json.loads((files() / "docs" / "contract" / file).read_text(encoding="utf-8"))

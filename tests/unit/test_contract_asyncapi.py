"""The contract's files by themselves: well formed, whole, and about the queues there are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from sas.codec.external import CLOUDEVENTS_TYPE, event_type
from sas.domain.messages import Notice
from sas.domain.queues import Queues
from tests.each import each
from tests.unit.contract_files import FOLDER, SCHEMAS, errors, load, references, validator

API = load("asyncapi.json")
README = (FOLDER / "README.md").read_text("utf-8")


@each(SCHEMAS)
def test_every_schema_is_one_and_its_examples_keep_to_it(path: Path) -> None:
    schema = load(path.name)
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["examples"]
    for example in schema["examples"]:
        assert errors(validator(path.name), example) == []


def resolved(reference: str, name: str) -> Any:
    file, _, pointer = reference.partition("#")
    node: Any = load(file or name)
    for part in pointer.split("/")[1:]:
        node = node[part]
    return node


@each(["asyncapi.json", *(path.name for path in SCHEMAS)])
def test_every_reference_leads_somewhere(name: str) -> None:
    links = list(references(load(name)))
    standalone_names = {"alert.schema.json", "rejected-message.schema.json", "callback.schema.json"}
    assert links or name in standalone_names
    for reference in links:
        assert isinstance(resolved(reference, name), dict), reference


def test_the_queues_are_those_of_the_system() -> None:
    queues = Queues()
    addresses = {name: channel["address"] for name, channel in API["channels"].items()}
    assert addresses == {
        "orders": queues.orders,
        "urgentOrders": queues.urgent.orders,
        "ownOrders": queues.orders_of("{application}"),
        "responses": queues.response_prefix + "{application}",
        "alerts": queues.alerts,
        "rejected": queues.rejected,
    }
    for address in addresses.values():
        assert f"`{address}`" in README
    example = API["channels"]["responses"]["parameters"]["application"]["examples"][0]
    assert queues.check_reply_queue(queues.response_prefix + example)


def test_every_message_has_a_schema_and_examples_that_keep_to_it() -> None:
    for name, message in API["components"]["messages"].items():
        checker = validator(message["payload"]["schema"])
        assert message["payload"]["schemaFormat"].startswith("application/schema+json"), name
        assert message["examples"], name
        for example in message["examples"]:
            assert errors(checker, example["payload"]) == [], name


def test_every_channel_has_an_operation_and_every_operation_a_message_of_its_channel() -> None:
    channels = set()
    for operation in API["operations"].values():
        channel = operation["channel"]["$ref"]
        channels.add(channel)
        assert all(m["$ref"].startswith(f"{channel}/messages/") for m in operation["messages"])
    assert channels == {f"#/channels/{name}" for name in API["channels"]}
    actions = {name: operation["action"] for name, operation in API["operations"].items()}
    taking = [name for name, action in actions.items() if action == "receive"]
    assert taking == ["takeOrder", "takeUrgentOrder", "takeOwnOrder"]


def test_an_order_is_answered_on_the_queue_that_it_names() -> None:
    reply = API["operations"]["takeOrder"]["reply"]
    assert reply["address"]["location"] == "$message.payload#/reply_queue"
    assert "reply_queue" in load("order-message.schema.json")["required"]


def test_the_contract_names_the_content_type_of_notifications() -> None:
    assert API["asyncapi"] == "3.0.0"
    assert API["components"]["messages"]["notification"]["contentType"] == CLOUDEVENTS_TYPE


def test_the_readme_names_every_notification_and_links_every_file() -> None:
    for notice in Notice:
        assert f"`{event_type(notice)}`" in README
    linked = set(re.findall(r"\]\(([^)]+)\)", README))
    assert linked == {path.name for path in FOLDER.iterdir()} - {"README.md"}


def test_the_order_in_the_readme_keeps_to_the_contract() -> None:
    """The example's body, read as the data that it is."""
    [script] = re.findall(r"```js\n(.*?)```", README, re.DOTALL)
    text = script[script.index("body: {") + len("body: ") : script.index("\n  },\n});") + 4]
    text = re.sub(r": (orderId|submissionId)\b", r': "x"', text)
    text = text.replace(": replyQueue", ': "responses-web-shop"')
    text = re.sub(r"([{\s])(\w+):", r'\1"\2":', text)
    text = re.sub(r",(\s*[}\]])", r"\1", text)
    value = json.loads(text)
    schema = API["components"]["messages"]["order"]["payload"]["schema"]
    assert errors(validator(schema), value) == []
    assert value["order"]["lines"][0]["quantity"] == 2

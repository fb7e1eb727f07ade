"""host.json and the emulator's Config.json are valid against their published schemas.

The schemas lie beside the project, in ``../shared/data/schemas``; without them this skips.
"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = ROOT.parent / "shared" / "data" / "schemas"
pytestmark = pytest.mark.skipif(
    not SCHEMAS.is_dir(), reason="the published schemas are not beside the project"
)
CASES = {
    "host.json": "host.json.schema",
    "infra/emulator/Config.json": "emulator-Config.json.schema",
}


def schema(name: str) -> Any:
    """Return a schema whose patterns Python can read.

    JavaScript reads the hyphen of [\\w-\\.] as itself, Python refuses it as half of a range.
    """

    def fixed(part: Any) -> Any:
        if isinstance(part, dict):
            return {
                key: re.sub(r"(\\[wdsWDS])-", r"\1\\-", value)
                if key == "pattern" and isinstance(value, str)
                else fixed(value)
                for key, value in part.items()
            }
        return [fixed(item) for item in part] if isinstance(part, list) else part

    return fixed(json.loads((SCHEMAS / name).read_text(encoding="utf-8-sig")))


def errors(path: str, content: Any) -> list[str]:
    schema_of_file = schema(CASES[path])
    validator = jsonschema.validators.validator_for(schema_of_file)(schema_of_file)
    return [f"{list(error.path)}: {error.message}" for error in validator.iter_errors(content)]


def read(path: str) -> Any:
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", CASES)
def test_a_file_is_valid_against_its_published_schema(path: str) -> None:
    assert errors(path, read(path)) == []


def test_the_schema_of_host_json_notices_a_wrong_value() -> None:
    settings = copy.deepcopy(read("host.json"))
    settings["version"] = 2
    assert errors("host.json", settings)


def test_the_schema_of_the_emulator_notices_a_wrong_value() -> None:
    config = copy.deepcopy(read("infra/emulator/Config.json"))
    config["UserConfig"]["Namespaces"][0]["Queues"][0]["Properties"]["MaxDeliveryCount"] = "five"
    assert errors("infra/emulator/Config.json", config)

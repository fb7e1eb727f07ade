"""host.json and the emulator's Config.json are valid against their published schemas.

The schemas lie beside the project, in ``../shared/data/schemas``; without them this skips.
"""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest

from tests.infra.kit import ROOT

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


def test_a_file_is_valid_against_its_published_schema() -> None:
    for path, name in CASES.items():
        published = schema(name)
        validator = jsonschema.validators.validator_for(published)(published)
        content = json.loads((ROOT / path).read_text(encoding="utf-8"))
        assert [error.message for error in validator.iter_errors(content)] == [], path

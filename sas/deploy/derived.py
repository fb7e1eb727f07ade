"""The files of a deployment that follow from the application: ``sas infra`` writes and checks them.

They are the list of queues, the emulator's ``Config.json``, the parameters of Bicep, and the
settings of this machine. Only the members that follow from the application are written. All others
are a person's: kinds of queues, options of an application such as ``urgent``, settings ``SAS_...``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sas.deploy.queues import LIST, Needs, emulator_config, read_list, with_agents

EMULATOR = "infra/emulator/Config.json"
PARAMETERS = "infra/main.parameters.json"
LOCAL = "local.settings.json"
Contents = Mapping[str, dict[str, Any]]
"""The content of files, by path."""
SHOWN_MAX = 4
"""How many differences of a file are named."""


def derived(project: Path, needs: Needs) -> dict[str, dict[str, Any]]:
    """Return the content of each file that follows from the application, by its path.

    Without ``infra/`` it is only the settings of this machine, if the project has them.

    Raises:
        ValueError: a file cannot be read, or there are too many queues.
    """
    contents = {}
    if (project / "infra").is_dir():
        listed = with_agents(read_list(project), needs.agents)
        contents[LIST] = listed
        contents[EMULATOR] = emulator_config(listed, needs.applications, needs.bound)
        contents[PARAMETERS] = _parameters(read(project / PARAMETERS), needs)
    if (project / LOCAL).is_file():
        contents[LOCAL] = _local(read(project / LOCAL), needs)
    return contents


def emulated(project: Path, needs: Needs) -> dict[str, Any]:
    """Return the emulator's ``Config.json``, also for a project without ``infra/``."""
    listed = with_agents(read_list(project), needs.agents)
    return emulator_config(listed, needs.applications, needs.bound)


def differences(project: Path, contents: Contents) -> dict[str, str]:
    """Return for each file that is not as it follows from the application, what differs."""
    sentences = {}
    for name, content in contents.items():
        path = project / name
        present = set(_leaves(read(path))) if path.is_file() else set()
        expected = set(_leaves(content))
        parts = [("lacks", expected - present), ("should not have", present - expected)]
        texts = [f"{verb} {_shown(leaves)}" for verb, leaves in parts if leaves]
        if texts:
            sentences[name] = f"{name} {', and '.join(texts)}"
    return sentences


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file of JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _parameters(parameters: dict[str, Any], needs: Needs) -> dict[str, Any]:
    """Give each application its principal, and each setting the variable of its name."""
    values = parameters["parameters"]
    present = {application["name"]: application for application in values["applications"]["value"]}
    applications = []
    for name in needs.applications:
        principal = f"${{SAS_PRINCIPAL_{name.upper().replace('-', '_')}=}}"
        entry = {"name": name, "principalId": principal, **present.get(name, {})}
        entry.pop("bound", None)
        applications.append(entry | ({"bound": True} if name in needs.bound else {}))
    former = values["businessSettings"]["value"]
    settings = {name: former.get(name, f"${{{name}}}") for name in needs.settings}
    settings |= {name: text for name, text in former.items() if name.startswith("SAS_")}
    changes = {"applications": {"value": applications}, "businessSettings": {"value": settings}}
    return {**parameters, "parameters": {**values, **changes}}


def _local(content: dict[str, Any], needs: Needs) -> dict[str, Any]:
    """Add the settings that are missing, without a value."""
    values = content["Values"]
    missing = {name: "" for name in needs.settings if name not in values}
    return {
        **content,
        "Values": {**values, **missing, "SAS_APPLICATIONS": ",".join(needs.bound)},
    }


def read(path: Path) -> dict[str, Any]:
    """Return the object in a file of JSON.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


def _leaves(value: Any, path: str = "") -> Iterator[str]:
    """Yield each value of a document with its place. The order of a list does not count."""
    if isinstance(value, dict):
        for name, member in value.items():
            yield from _leaves(member, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for member in value:
            name = member.get("name", member.get("Name", "")) if isinstance(member, dict) else ""
            yield from _leaves(member, f"{path}[{name}]")
    else:
        yield f"{path} {json.dumps(value)}"


def _shown(leaves: set[str]) -> str:
    texts = sorted(leaves)
    rest = len(texts) - SHOWN_MAX
    return ", ".join(texts[:SHOWN_MAX]) + (f" and {rest} more" if rest > 0 else "")

"""The entry points of files: orders of ``sas submit``, prices, settings, host.json, queues.

Each file is read as its command reads it. It is used, or refused with the error of its reader, in
a sentence. What ``sas submit`` sends, submission accepts.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from devstack.functions.hostjson import load_host_json
from devstack.functions.settings import Settings
from devstack.inputs import DevstackError
from devstack.servicebus.config import ConfigError
from devstack.servicebus.config import read_config as read_broker_config
from sas.cli import act
from sas.cli.main import build_parser
from sas.cli.reading import Defaults, InputError, read_items
from sas.cli.sim_given import given_of
from sas.client import InvalidOrderError, OrdersClient
from sas.codec.orders import parse_order
from sas.codec.strict import parse
from sas.config import SettingError, read_config
from sas.operate.errors import CommandError, UsageError
from sas.profiles import ProfileError, settings
from sas.testing.platform import REPLIES_TO, ProjectError, host_rules, queue_rules
from tools.fuzz.mutation import ODD, body_of, broken
from tools.fuzz.scene import AGENTS, ROOT

Parts = dict[str, Any]
BUS = "Endpoint=sb://localhost;SharedAccessKeyName=k;SharedAccessKey=a2V5"
ORDERS: tuple[Any, ...] = (
    {"order_id": "N-1", "lines": [{"product_id": 1, "quantity": 2}], "freight": 1.5},
    {"order_id": "N-2", "workflow": "order", "order": {"lines": []}, "correlation_id": "c"},
    {
        "order_id": "N-3", "workflow": "order", "order": {}, "submission_id": "s",
        "workflow_version": 1,
    },
)  # fmt: skip
SETTINGS: Mapping[str, str] = {
    "ServiceBus": BUS,
    "SAS_TABLES": "UseDevelopmentStorage=true",
    "SAS_TABLES__endpoint": "https://account.table.core.windows.net",
    "ServiceBus__fullyQualifiedNamespace": "name.servicebus.windows.net",
    "ServiceBus__clientId": "00000000-0000-0000-0000-000000000000",
    "SAS_TABLE": "orders",
    "SAS_SHARDS": "16",
    "SAS_TABLE_TRANSACTIONS": "sdk",
    "SAS_QUEUE_ORDERS": "orders",
    "SAS_QUEUE_AGENT_PREFIX": "agent-",
    "SAS_QUEUE_RESPONSE_PREFIX": "responses-",
    "SAS_APPLICATIONS": "web-shop,crm",
    "SAS_SOURCE": "/orders",
    "SAS_INSTANCE": "host-1",
    "SAS_TELEMETRY": "console",
    "SAS_TELEMETRY_SHARE": "0.5",
    "SAS_ORDER_BYTES_MAX": "258048",
    "SAS_MESSAGE_BYTES_MAX": "262144",
    "SAS_FUNCTION_SECONDS": "540",
    "SAS_DEPLOY_WAIT_SECONDS": "60",
    "SAS_AGENT_FIRST_DELAY_SECONDS": "0.2",
    "SAS_AGENT_DELAY_MAX_SECONDS": "10",
    "SAS_BREAKER_FAILURES": "10",
    "SAS_BREAKER_OPEN_SECONDS": "15",
    "SAS_AGENT_LIMITS": "payment:4,shipping:2",
    "SAS_RETENTION_DAYS": "30",
    "SAS_CALLBACK_KEY": "dGhpcyBpc24ndCBhIHJhbmRvbSBrZXkK91xQ7z",
    "SAS_CALLBACK_URL": "https://example.com/api/callbacks",
    "SAS_PAYLOAD_KEYS": "pT4hO8C6m1uXw0k2vZ9sJd7rQf3yLb5nEgAiKcMeRtU=",
}


@cache
def place() -> Path:
    """Return a directory of this process for the files of inputs."""
    return Path(tempfile.mkdtemp(prefix="sas-fuzz-"))


def orders_parts(rng: random.Random) -> Parts:
    """Return a file for ``sas submit``: an object, an array, or JSON Lines."""
    orders = [rng.choice(ORDERS) for _ in range(rng.choice([1, 1, 2, 3]))]
    form = rng.random()
    if form < 0.3:
        return {"file": body_of(orders, rng)}
    if form < 0.5:
        text = json.dumps(orders[0] if len(orders) == 1 else orders, indent=1).encode()
        return {"file": broken(text, rng)}
    return {"file": b"\n".join(body_of(one, rng) for one in orders)}


def check_orders(parts: Parts) -> None:
    """Read a file of orders, and make the messages that would be sent."""
    client = _client()
    with contextlib.suppress(InputError, InvalidOrderError):
        for index, item in enumerate(read_items(io.BytesIO(parts["file"]), Defaults(REPLIES_TO))):
            message, receipt = client._message(index, item.order)  # noqa: SLF001  nothing is sent
            sent = parse_order(b"".join(message.body), receipt.submission_id)
            assert sent.order_id == item.order.order_id  # noqa: S101


@cache
def _client() -> OrdersClient:
    return OrdersClient(BUS, reply_queue=REPLIES_TO)


def json_parts(path: str) -> Callable[[random.Random], Parts]:
    """Return what makes files of a valid JSON file of the project."""
    valid = json.loads((ROOT / path).read_text(encoding="utf-8"))
    return lambda rng: {"file": body_of(valid, rng)}


def check_prices(parts: Parts) -> None:
    """Have ``sas cost`` read prices and print the bill."""
    path = place() / "prices.json"
    path.write_bytes(parts["file"])
    arguments = _parser().parse_args(["cost", "--orders", "1000", "--prices", str(path)])
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(CommandError):
        arguments.verb.run(arguments)
        arguments.json = True
        arguments.verb.run(arguments)


@cache
def _parser() -> Any:
    return build_parser()


def settings_parts(rng: random.Random) -> Parts:
    """Return settings, some of them changed."""
    names = rng.sample(list(SETTINGS), rng.choice([2, 5, len(SETTINGS)]))
    found = {name: SETTINGS[name] for name in {"ServiceBus", "SAS_TABLES", *names}}
    for _ in range(rng.choice([0, 1, 1, 2])):
        name = rng.choice(list(found))
        found[name] = _text(found[name], rng)
    return {"settings": found}


def _text(text: str, rng: random.Random) -> str:
    odd = [one for one in ODD if isinstance(one, str)]
    changed = broken(text.encode("utf-8", "surrogatepass"), rng).decode("utf-8", "surrogateescape")
    return rng.choice([changed, changed, rng.choice(odd), text + rng.choice(odd), "1e308", "inf"])


def check_settings(parts: Parts) -> None:
    """Read settings as the app does at its start."""
    with contextlib.suppress(SettingError):
        read_config(parts["settings"])


def check_host_json(parts: Parts) -> None:
    """Read host.json as the host of ``devstack`` and as ``sas sim`` do."""
    (place() / "host.json").write_bytes(parts["file"])
    with contextlib.suppress(DevstackError):
        load_host_json(place(), Settings({}))
    with contextlib.suppress(ProjectError):
        host_rules(place())


def check_local_settings(parts: Parts) -> None:
    """Read local.settings.json as the host does."""
    (place() / "local.settings.json").write_bytes(parts["file"])
    with contextlib.suppress(DevstackError):
        found = Settings.load(place(), environ={})
        with contextlib.suppress(SettingError):
            read_config(found.values)


def check_queues(parts: Parts) -> None:
    """Read infra/queues.json as ``sas sim`` does."""
    (place() / "infra").mkdir(exist_ok=True)
    (place() / "infra" / "queues.json").write_bytes(parts["file"])
    with contextlib.suppress(ProjectError):
        queue_rules(place(), AGENTS)


def check_broker(parts: Parts) -> None:
    """Read the emulator's Config.json as the broker does."""
    path = place() / "Config.json"
    path.write_bytes(parts["file"])
    with contextlib.suppress(ConfigError):
        read_broker_config(path)


PROFILES = b"""[prod]
namespace = "NAME.servicebus.windows.net"
tables = "https://ACCOUNT.table.core.windows.net"
[prod.settings]
SAS_SHARDS = "16"
"""
STACK = b"""# devstack up (pid 1)
export ServiceBus='Endpoint=sb://localhost'
export SAS_TABLES='UseDevelopmentStorage=true'
"""


def profile_parts(rng: random.Random) -> Parts:
    """Return a file of profiles, or the one that ``devstack up`` writes."""
    name = rng.choice([".sas.toml", ".devstack/env"])
    found = PROFILES if name == ".sas.toml" else STACK
    odd = str(rng.choice(ODD)).encode("utf-8", "replace")
    for _ in range(rng.choice([0, 1, 2])):
        found = broken(found, rng) if rng.random() < 0.7 else found.replace(b'"', odd, 1)
    return {"name": name, "file": found}


def check_profiles(parts: Parts) -> None:
    """Find the system as the command does."""
    path = place() / "project" / parts.get("name", ".sas.toml")
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(parts["file"])
    for name in ("prod", None):
        with contextlib.suppress(ProfileError, SettingError):
            read_config(settings(name, {"XDG_CONFIG_HOME": str(place())}, path.parent).settings)


@cache
def _simulated() -> Path:
    """Return a project of this process that ``sas sim --agents own`` can read."""
    found = place() / "simulated"
    orders = json.loads((ROOT / "sim.json").read_bytes())["orders"]
    (found / orders).parent.mkdir(parents=True)
    three = (ROOT / orders).read_bytes().splitlines(keepends=True)[:3]
    (found / orders).write_bytes(b"".join(three))
    (found / "local.settings.json").write_bytes((ROOT / "local.settings.json").read_bytes())
    return found


def check_simulated(parts: Parts) -> None:
    """Read the orders and the answers for ``sas sim --agents own``."""
    (_simulated() / "sim.json").write_bytes(parts["file"])
    with contextlib.suppress(UsageError):
        given_of("orders", _simulated())


def input_parts(rng: random.Random) -> Parts:
    """Return a file for ``sas resubmit --input``."""
    return {"file": body_of(rng.choice(ORDERS), rng)}


def check_input(parts: Parts) -> None:
    """Read the input that an operator gives a step: a scheduler's codec takes it too."""
    path = place() / "input.json"
    path.write_bytes(parts["file"])
    with contextlib.suppress(CommandError):
        parse(act._input(f"@{path}").encode())  # noqa: SLF001  the rest needs a store


def file_doors() -> Iterator[tuple[str, Callable[[random.Random], Parts], Callable[[Parts], None]]]:
    """Yield each door of files and settings: its name, what makes inputs, and what reads them."""
    yield "sas submit FILE", orders_parts, check_orders
    yield "sas cost --prices", json_parts("samples/prices.json"), check_prices
    yield "settings", settings_parts, check_settings
    yield "local.settings.json", json_parts("local.settings.json"), check_local_settings
    yield "profiles", profile_parts, check_profiles
    yield "host.json", json_parts("host.json"), check_host_json
    yield "infra/queues.json", json_parts("infra/queues.json"), check_queues
    yield "sim.json", json_parts("sim.json"), check_simulated
    yield "sas resubmit --input", input_parts, check_input
    yield "Config.json", json_parts("infra/emulator/Config.json"), check_broker

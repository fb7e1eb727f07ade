"""The steps of a rehearsal, and what has to come of each."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import aiohttp

from devstack.azurite import Azurite
from devstack.children import Child, free_port
from devstack.servicebus import Broker
from devstack.servicebus.config import parse_config
from lab.rehearsal.bicep import app_settings
from lab.rehearsal.identity import CLIENT_ID, Identity, identity
from lab.rehearsal.instance import PACKAGES, Worker
from lab.rehearsal.tls import Certificate, amqps
from samples.demo import scenario
from samples.demo.scenario import Application
from samples.demo.tally import Tally
from samples.demo.verdict import Verdict, judge
from samples.services.contract import SERVICES
from samples.services.faults import Faults
from samples.services.remote import RemoteServices
from sas.adapters.endpoints import Endpoint
from sas.adapters.queues import OperatorServiceBus
from sas.adapters.tables.store import TableStore
from sas.client import NewOrder, OrdersClient
from sas.deploy.package import FUNCTIONS
from sas.domain.queues import DEAD_LETTER_SUBQUEUE, Queues
from sas.domain.workflow import SMOKE
from sas.operate.letters import read
from sas.operate.messages import list_of
from tests.ingestion import Ingestion, ingesting

PROJECT = Path(__file__).parents[2]
INSTANCES = 3
"""In Azure each function that messages or a timer trigger has instances of its own. Here they are
dealt out: an order crosses processes all the same, and two cores do."""
PATIENCE_S = 180.0
CAUSES_MAX = 10
"""How many causes of alerts and dead letters are printed."""
SERVICE_FAULTS = Faults(latency=0.8, delivery=3.0)
"""So slow that orders are in flight when everything is killed, on a busy machine too."""
CHANGE = """

@app.route("version", auth_level="anonymous")
async def version(req) -> str:
    return "2"
"""
"""What the second version has more than the first."""
NOT_REHEARSED = """\
Not rehearsed: azd, az and the upload; roles (here a token opens everything); the Functions host,
which scales, drains, and reaches the queues and its storage by the identity (here by a key);
references to Key Vault; a network without the public way."""


class RehearsalError(Exception):
    """Something did not come out as it has to."""


@dataclass(frozen=True)
class Place:
    """Where the files are, and how the services are reached."""

    out: Path
    files: Certificate
    namespace_host: str


@dataclass(kw_only=True)
class Cloud:
    """What Azure is here: Service Bus, storage, an identity, telemetry; and remote services."""

    place: Place
    broker: Broker
    azurite: Azurite
    remote: RemoteServices
    identity: Identity
    ingestion: Ingestion
    http_port: int
    instances: list[Child] = field(default_factory=list)

    def settings(self) -> dict[str, str]:
        """Return the app settings as Bicep computes them for an environment of azd."""
        azd = {f"ORDERS_{name.upper()}_URL": url for name, url in self.remote.urls.items()}
        return app_settings(
            PROJECT / "infra",
            {"AZURE_ENV_NAME": "rehearsal", "AZURE_LOCATION": "westeurope", **azd},
            {
                "name": "func-rehearsal",
                "identityClientId": CLIENT_ID,
                "hostAccountName": "sthostrehearsal",
                "hostBlobEndpoint": "https://sthostrehearsal.blob.core.windows.net/",
                "stateTableEndpoint": self.azurite.endpoint,
                "namespaceHostName": self.place.namespace_host,
                "telemetryConnectionString": (
                    "InstrumentationKey=00000000-0000-0000-0000-000000000001;"
                    f"IngestionEndpoint={self.ingestion.endpoint}"
                ),
                "boundApplications": "",
            },
        )

    def environment(self) -> dict[str, str]:
        """Return the environment of a worker: what Azure adds, and what this machine needs."""
        here = {
            "SSL_CERT_FILE": str(self.place.files.certificate),
            # It would look for Azure's own endpoints, and this machine reaches none of them.
            "APPLICATIONINSIGHTS_STATSBEAT_DISABLED_ALL": "true",
        }
        return {**self.settings(), **self.identity.environment(), **here}

    async def start(self, app: Path, indexed: Mapping[str, Any], version: int) -> None:
        """Start the instances of a version, and deal the functions out to them."""
        web = [name for name, bindings in indexed.items() if _is_http(bindings)]
        others = [name for name in indexed if name not in web]
        settings = self.environment()
        for number in range(INSTANCES):
            name = f"version-{version}-{number + 1}"
            instance_id = {"WEBSITE_INSTANCE_ID": name}
            plan = {
                "app": str(app),
                "settings": settings | instance_id,
                "host": settings | {"ServiceBus": self.broker.connection_string},
                "http_port": self.http_port,
                "functions": others[number::INSTANCES] + ([] if number else web),
            }
            path = self.place.out / f"{name}.json"
            path.write_text(json.dumps(plan, indent=1), encoding="utf-8")
            command = [sys.executable, "-m", "lab.rehearsal.instance", str(path)]
            self.instances.append(Child(name, command, logs=self.place.out, cwd=PROJECT))
        starting = self.instances[-INSTANCES:]
        await asyncio.gather(*(child.start_async(timeout_s=PATIENCE_S) for child in starting))

    def stop(self) -> None:
        """Kill every process of every instance, all at once."""
        for child in self.instances:
            child.kill()
        self.instances.clear()

    def left_over(self) -> list[str]:
        """Return the queues that hold anything, dead letters included."""
        counts = {queue.name: self.broker.counts(queue.name) for queue in self.broker.namespace}
        return [f"{name}: {count}" for name, count in counts.items() if count.total]


@dataclass
class Steps:
    """Prints each step with its time, when it is done."""

    begun: float = field(default_factory=time.monotonic)

    @contextmanager
    def step(self, title: str) -> Iterator[Callable[[str], None]]:
        """Time a step. The function that it gives takes what came of it."""
        start, results = time.monotonic(), [""]
        try:
            yield results.append
        except Exception as error:
            print(f"  FAILED  {title}: {error}", flush=True)
            raise
        print(f"{time.monotonic() - start:6.1f} s  {title}: {results[-1]}", flush=True)


async def rehearse(place: Place, orders: int) -> int:
    """Carry out all steps; return 0, or 1 at the first that fails."""
    steps = Steps()
    try:
        first = await _first_zip(steps, place)
        second = asyncio.create_task(_second_zip(place, first))
        try:
            async with _cloud(steps, place) as cloud:
                await _deploy(steps, cloud, first)
                await _process(steps, cloud, second, orders)
        finally:
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)
    except Exception:  # noqa: BLE001  # whatever it is, its step has said it
        print(f"The rehearsal failed. The logs are in {place.out}.")
        return 1
    print(f"{time.monotonic() - steps.begun:6.1f} s  in all\n{NOT_REHEARSED}")
    return 0


async def _first_zip(steps: Steps, place: Place) -> Path:
    with steps.step("the zip") as done:
        zip_path = place.out / "app-1.zip"
        done(await _package(PROJECT, zip_path))
        return _unpacked(zip_path, place)


async def _deploy(steps: Steps, cloud: Cloud, app: Path) -> None:
    with steps.step("every function indexed") as done:
        indexed = await _index(cloud, app)
        expected = (app / FUNCTIONS).read_text(encoding="utf-8").split()
        _require(sorted(indexed) == sorted(expected), f"{sorted(indexed)}, not {sorted(expected)}")
        done(f"{len(indexed)} functions, as the zip says")
    with steps.step(f"{INSTANCES} instances") as done:
        await cloud.start(app, indexed, 1)
        ready = cloud.instances[0].ready_line() or {}
        _require(ready["capabilities"].get("WorkerOpenTelemetryEnabled") == "true", str(ready))
        done(f"they listen, under azure-functions-runtime {ready['core']}")


async def _process(steps: Steps, cloud: Cloud, second: asyncio.Task[Path], orders: int) -> None:
    smoke, shop, wholesale = _applications(orders + 1)
    tally = Tally(orders=orders + 2)
    async with _following(cloud, tally):
        with steps.step("the test after a deployment, and an order") as done:
            await _submit(cloud, smoke.reply_queue, smoke.orders)
            await _submit(cloud, shop.reply_queue, shop.orders[:1])
            await _until(cloud, lambda: len(tally.ended) == 2, "the orders do not end")
            done(", ".join(f"{order_id} is {end}" for order_id, end in tally.ended.items()))
        with steps.step("telemetry") as done:
            await _until(cloud, lambda: _exported(cloud.ingestion), "not all kinds are exported")
            done(", ".join(f"{count} {kind}" for kind, count in cloud.ingestion.items.items()))
        with steps.step("the identity") as done:
            _require(not cloud.ingestion.schemes.keys() - {"Bearer"}, str(cloud.ingestion.schemes))
            done(", ".join(f"{n} tokens for {to}" for to, n in cloud.identity.tokens.items()))
        shop.orders.pop(0)
        await _recreate(steps, cloud, second, tally=tally, applications=[shop, wholesale])
        with steps.step("every order ends") as done:
            await _until(cloud, lambda: tally.done, f"some of {orders} orders do not end")
            done(", ".join(sorted(set(tally.ended.values()))))
        with steps.step("nothing lost, nothing twice, nothing left") as done:
            done((await _settled(cloud, tally)).last_line())


async def _recreate(
    steps: Steps,
    cloud: Cloud,
    second: asyncio.Task[Path],
    *,
    tally: Tally,
    applications: list[Application],
) -> None:
    """Send all other orders, kill everything while they are in flight, start the next version."""
    before = len(tally.ended)
    orders = tally.orders - before
    with steps.step("the zip of the next version") as done:
        app = await second
        indexed = await _index(cloud, app)
        _require("version" in indexed, f"the new function is missing: {sorted(indexed)}")
        done(f"{len(indexed)} functions")
    with steps.step("Recreate: all processes killed in mid-flight") as done:
        for application in applications:
            await _submit(cloud, application.reply_queue, application.orders)
        await _until(cloud, lambda: _calls(cloud) > orders, "the services are not called")
        cloud.stop()
        ended = len(tally.ended) - before
        _require(ended < orders, "no order was in flight any more")
        done(f"{orders} orders, {ended} of them ended, {_calls(cloud)} calls of services made")
    with steps.step("the next version") as done:
        await cloud.start(app, indexed, 2)
        version = await _version(cloud)
        _require(version == "2", version)
        done(f"it listens, and says that it is version {version}")


def _applications(count: int) -> list[Application]:
    """Return whoever deployed, and the two applications of the sample, with their orders."""
    order = NewOrder(order_id=SMOKE.name, order={}, workflow=SMOKE.name)
    smoke = Application(
        name=SMOKE.name, reply_queue=Queues().response_of(SMOKE.name), workflow=SMOKE.name
    )
    smoke.orders.append(order)
    return [smoke, *scenario.applications(count)]


@asynccontextmanager
async def _cloud(steps: Steps, place: Place) -> AsyncIterator[Cloud]:
    async with AsyncExitStack() as stack:
        with steps.step("Service Bus, storage, identity, telemetry, remote services") as done:
            cloud = await _started(place, stack)
            done(f"sb://{place.namespace_host}, {cloud.azurite.endpoint}")
        yield cloud


async def _started(place: Place, stack: AsyncExitStack) -> Cloud:
    config = (PROJECT / "infra" / "emulator" / "Config.json").read_text(encoding="utf-8")
    tls = place.files.server()
    broker = await stack.enter_async_context(Broker(parse_config(config)))
    await stack.enter_async_context(amqps(place.namespace_host, tls, broker.port))
    azurite = Azurite(logs=place.out, tls=(place.files.certificate, place.files.key))
    cloud = Cloud(
        place=place,
        broker=broker,
        azurite=await stack.enter_async_context(azurite),
        remote=await stack.enter_async_context(RemoteServices(SERVICE_FAULTS)),
        identity=await stack.enter_async_context(identity()),
        ingestion=await stack.enter_async_context(ingesting(tls)),
        http_port=free_port(),
    )
    stack.callback(cloud.stop)
    return cloud


async def _package(project: Path, zip_path: Path) -> str:
    """Build the zip of a project, as CI does; return what the command said."""
    environment = {k: v for k, v in os.environ.items() if k != "SSL_CERT_FILE"}  # pip needs none
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sas.cli", "azd", "package", str(zip_path)),
        cwd=project,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output = (await process.communicate())[0].decode().strip()
    finally:
        if process.returncode is None:  # another step has failed
            process.kill()
            await process.wait()
    _require(process.returncode == 0, output)
    return output.splitlines()[-1].partition(" has ")[2]


def _unpacked(zip_path: Path, place: Place) -> Path:
    """Unpack a zip into an empty folder; let it trust the certificate of this rehearsal."""
    folder = zip_path.with_suffix("")
    with ZipFile(zip_path) as archive:
        archive.extractall(folder)
    with (folder / PACKAGES / "certifi" / "cacert.pem").open("ab") as authorities:
        authorities.write(place.files.certificate.read_bytes())
    return folder


async def _second_zip(place: Place, first: Path) -> Path:
    """Build a second zip from changed sources, and unpack it."""
    source = place.out / "source-2"
    shutil.copytree(first, source, ignore=shutil.ignore_patterns(".python_packages", "__pycache__"))
    for name in (".funcignore", "local.settings.json"):
        shutil.copy(PROJECT / name, source)
    with (source / "function_app.py").open("a", encoding="utf-8") as file:
        file.write(CHANGE)
    zip_path = place.out / "app-2.zip"
    await _package(source, zip_path)
    return await asyncio.to_thread(_unpacked, zip_path, place)


async def _index(cloud: Cloud, app: Path) -> dict[str, Any]:
    """Return the functions that the worker core indexes, with their bindings."""
    with (cloud.place.out / f"{app.name}-index.log").open("wb") as log:
        worker = await Worker.start(app, cloud.environment(), log.fileno())
    worker.process.kill()
    await worker.process.wait()
    _require(bool(worker.index.get("indexed")), worker.index.get("error", "the worker ended"))
    functions: dict[str, Any] = worker.index["indexed"]
    return functions


@asynccontextmanager
async def _following(cloud: Cloud, tally: Tally) -> AsyncIterator[None]:
    """Take the notifications of all applications, as they do."""

    async def follow(queue: str) -> None:
        async with OrdersClient(cloud.broker.connection_string, reply_queue=queue) as client:
            async for notification in client.follow(None):
                tally.take(notification)

    queues = [application.reply_queue for application in _applications(0)]
    tasks = [asyncio.create_task(follow(queue)) for queue in queues]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _submit(cloud: Cloud, reply_queue: str, orders: list[NewOrder]) -> None:
    async with OrdersClient(cloud.broker.connection_string, reply_queue=reply_queue) as client:
        await client.submit_many(orders)


async def _version(cloud: Cloud) -> str:
    address = f"http://127.0.0.1:{cloud.http_port}/api/version"
    async with aiohttp.ClientSession() as session, session.get(address) as answer:
        return await answer.text()


async def _settled(cloud: Cloud, tally: Tally) -> Verdict:
    """Return the verdict on all orders, once nothing is on its way any more."""
    store = TableStore.connect(cloud.azurite.connection_string)
    ids = list(tally.received)

    async def verdict() -> Verdict:
        return await judge(
            store, ids, tally, {name: cloud.remote.ledger(name) for name in SERVICES}
        )

    try:
        await _until(cloud, lambda: not cloud.left_over(), "messages are left")
        result = await verdict()
    finally:
        await store.close()
    problems = (result.unfinished, result.missing, result.doubled, result.wrong_effects)
    _require(result.settled, f"{result.last_line()}: {problems}")
    _require(len(ids) == tally.orders, f"{len(ids)} of {tally.orders} orders came")
    return result


async def _until(cloud: Cloud, reached: Callable[[], bool], text: str) -> None:
    """Wait until it is reached, as long as every instance runs."""
    end = time.monotonic() + PATIENCE_S
    while not reached():
        for child in cloud.instances:
            _require(child.alive, child.describe_end())
        if time.monotonic() > end:
            queues = cloud.left_over() or "nothing"
            raise RehearsalError(
                f"{text}; in the queues: {queues}{await _complaints(cloud.broker)}"
            )
        await asyncio.sleep(0.05)


async def _complaints(broker: Broker) -> str:
    """Return what an operator would read: the causes of alerts and of dead letters, a line each."""
    queues = Queues()
    names = [queue.name for queue in broker.namespace if broker.counts(queue.name).dead_letter]
    paths = [queues.alerts, queues.dead_letters, *(name + DEAD_LETTER_SUBQUEUE for name in names)]
    bus = OperatorServiceBus.connect(Endpoint(broker.connection_string))
    try:
        rows = list_of(await read(bus, paths, queues), queues, {}).rows
    finally:
        await bus.close()
    causes = Counter(f"{row.what}: {row.cause}" for row in rows)
    return "".join(f"\n    {n} x {cause}" for cause, n in causes.most_common(CAUSES_MAX))


def _is_http(bindings: list[dict[str, Any]]) -> bool:
    return any(binding["type"] == "httpTrigger" for binding in bindings)


def _exported(ingestion: Ingestion) -> bool:
    spans = ingestion.items["RequestData"] + ingestion.items["RemoteDependencyData"]
    return bool(spans and ingestion.items["MetricData"])


def _calls(cloud: Cloud) -> int:
    return sum(cloud.remote.counts(name)[0] for name in SERVICES)


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise RehearsalError(text)

"""Settings: each default, each refusal with the name of the setting in its sentence."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sas.adapters import telemetry
from sas.adapters.payload_codec import FernetCodec
from sas.bootstrap import Application, assemble, checked, closed_with_loop
from sas.config import QUEUE_SETTINGS, SettingError, read_config, read_queues
from sas.domain.queues import Queues
from sas.ports import Business, StateStore
from sas.testing.store import MemoryStore
from tests.payload_codec_kit import CheapCodec
from tests.unit.actors_kit import CHAIN, kit

BUS = "Endpoint=sb://localhost;SharedAccessKeyName=n;SharedAccessKey=k"
BUS_ID = "00000000-0000-0000-0000-000000000001"
TABLE_ID = "0A9A7E1F-b9d0-4cc4-a60d-0319b160aaa3"
LEAST = {"ServiceBus": BUS, "AzureWebJobsStorage": "UseDevelopmentStorage=true"}


def test_the_least_settings_are_two_connections() -> None:
    config = read_config(LEAST)
    assert config.service_bus.connection_string == BUS
    assert config.tables.connection_string == "UseDevelopmentStorage=true"
    assert config.table == "orders"
    assert config.shards == 16
    assert config.queues == Queues()
    assert config.order_bytes_max == 252 * 1024
    assert config.source == "/scheduler-agent-supervisor"


def test_each_queue_has_a_setting_and_an_empty_one_is_its_default() -> None:
    for field, name in QUEUE_SETTINGS.items():
        assert getattr(read_queues({name: "a-queue"}), field) == "a-queue"
        assert read_queues({name: ""}) == Queues()


def test_a_connection_is_found_under_either_of_its_names() -> None:
    settings = {"AzureWebJobsStorage": "UseDevelopmentStorage=true", "AzureWebJobsServiceBus": BUS}
    assert read_config(settings).service_bus.connection_string == BUS


def test_identities_take_the_place_of_connection_strings() -> None:
    config = read_config(
        {
            "ServiceBus__fullyQualifiedNamespace": "ns.servicebus.windows.net",
            "ServiceBus__clientId": BUS_ID,
            "SAS_TABLES__endpoint": "https://a.table.core.windows.net",
            "SAS_TABLES__clientId": TABLE_ID,
        }
    )
    assert config.service_bus.connection_string is None
    assert config.service_bus.address == "ns.servicebus.windows.net"
    assert config.service_bus.client_id == BUS_ID
    assert config.tables.address == "https://a.table.core.windows.net"
    assert config.tables.client_id == TABLE_ID


def test_a_storage_account_of_its_own_goes_before_the_hosts() -> None:
    connection = "TableEndpoint=https://mine.table.core.windows.net;SharedAccessSignature=s"
    assert read_config(LEAST | {"SAS_TABLES": connection}).tables.connection_string == connection


REFUSED: dict[str, tuple[str, ...]] = {
    "ServiceBus": ("", "SharedAccessKey=k"),
    "SAS_TABLES": ("AccountKey=k",),
    "AzureWebJobsStorage": ("x",),
    "SAS_TABLE": ("a", "", "1abc", "with-dash", "größe", "x" * 64),
    "SAS_SHARDS": ("0", "257", "1" * 5000, "-1", "1.5", "²", ""),
    "SAS_AGENT_LIMITS": ("a:" + "1" * 5000,),
    "SAS_MESSAGE_BYTES_MAX": ("262143",),
    "SAS_QUEUE_DELAY_SECONDS": ("0",),
    "SAS_FUNCTION_SECONDS": ("0", "soon", "nan", "-1", "inf", "86400"),
    "SAS_SOURCE": ("", "a b", "/a\n", "/ä", "1:a", "/%zz", "/a#b#c", "<a>", "/" + "a" * 500),
    "SAS_INSTANCE": ("a/b", "a b", "a|b", "é", "a\n", "../a"),
    "SAS_TABLES__endpoint": ("a.table.core.windows.net", "https://", "ftp://a.b", "https://a b"),
    "SAS_CALLBACK_URL": (
        *("https://", "https://a.example/c?code=1", "https://a.example/#c"),
        *("https://u@a.example", "https://a:b/", "https://[a/"),
    ),
    "SAS_CALLBACK_KEY": ("abc\udcff\udcfe",),  # bytes that are not text, as the environment says
}


def test_a_wrong_setting_is_refused_by_name() -> None:
    for name, texts in REFUSED.items():
        for text in texts:
            with pytest.raises(SettingError, match=name):
                read_config(LEAST | {name: text})
    with pytest.raises(SettingError, match="SAS_TABLES"):
        read_config(LEAST | {"AzureWebJobsStorage": ""})
    for shards in ("1", "16", "256"):
        assert read_config(LEAST | {"SAS_SHARDS": shards}).shards == int(shards)


def test_a_function_may_not_work_longer_than_its_host_lets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that is cut off, and its message that is put back, take a while longer."""
    for timeout, allowed in (("00:05:00", 255), ("0.06:00:00", 21_555), ("00:00:50", 5)):
        (tmp_path / "host.json").write_text(f'{{"functionTimeout": "{timeout}"}}', encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        with pytest.raises(
            SettingError, match=f"raise functionTimeout to .* set at most {allowed}$"
        ):
            read_config(LEAST | {"SAS_FUNCTION_SECONDS": str(allowed + 1)})
        read_config(LEAST | {"SAS_FUNCTION_SECONDS": str(allowed)})
        # In Azure, this setting comes first.
        host_timeout = {"AzureFunctionsJobHost__functionTimeout": "2.00:00:00"}
        read_config(LEAST | {"SAS_FUNCTION_SECONDS": "80000"} | host_timeout)


def test_a_host_without_a_limit_allows_a_function_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in (None, "[" * 70_000, "[]", '{"functionTimeout": "-1"}', "{}"):
        if text is not None:
            (tmp_path / "host.json").write_text(text, encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        assert read_config(LEAST | {"SAS_FUNCTION_SECONDS": "4000"}).function_time.seconds == 4000


def test_a_name_that_no_queue_or_no_key_can_have_is_refused() -> None:
    """Rows of the store are named after queues."""
    signs = "/\\#?|%+ "
    texts = [*(f"a{sign}b" for sign in signs), " a", "a\n", "\u0085a", "ü", "-a", "..", "_a"]
    for name in QUEUE_SETTINGS.values():
        for text in (*texts, "a" * 101):
            with pytest.raises(SettingError, match=f"{name}=.*: use letters, digits"):
                read_config(LEAST | {name: text})


def test_a_prefix_may_end_with_a_sign_and_a_name_may_not() -> None:
    for text in ("a-", "a.", "a_"):
        assert read_queues({"SAS_QUEUE_RESPONSE_PREFIX": text}).response_prefix == text
        with pytest.raises(SettingError, match=r"SAS_QUEUE_ORDERS=.*: use letters, digits"):
            read_queues({"SAS_QUEUE_ORDERS": text})


def test_two_queues_with_one_name_are_refused_as_service_bus_compares_names() -> None:
    for environment in (
        {"SAS_QUEUE_ORDERS": "Scheduler"},
        {"SAS_QUEUE_ORDERS": "scheduler-urgent"},
        {"SAS_QUEUE_SCHEDULER": "DEAD-letters"},
    ):
        with pytest.raises(SettingError, match="would have two purposes"):
            read_queues(environment)


def test_a_prefix_by_which_an_application_could_name_a_queue_of_ours_is_refused() -> None:
    for prefix in ("orders-", "scheduler-", "Operator", "agent-", "agent-stock", "a"):
        with pytest.raises(SettingError, match=f"SAS_QUEUE_RESPONSE_PREFIX='{prefix}' is also"):
            read_queues({"SAS_QUEUE_RESPONSE_PREFIX": prefix})


def test_a_source_is_a_uri_reference() -> None:
    for text in ("/a", "urn:a:b", "https://a.example/b?c=d#e", "a/b:c", "?a", "a#", "/%C3%A4"):
        assert read_config(LEAST | {"SAS_SOURCE": text}).source == text


def test_an_identity_needs_a_host_an_address_and_a_client_id() -> None:
    by_identity = {
        "ServiceBus__fullyQualifiedNamespace": "ns.servicebus.windows.net",
        "SAS_TABLES__endpoint": "https://a.table.core.windows.net",
    }
    read_config(by_identity)
    for environment in (
        {"ServiceBus__fullyQualifiedNamespace": "https://ns.servicebus.windows.net"},
        {"ServiceBus__fullyQualifiedNamespace": "ns"},
        {"ServiceBus__clientId": "mine"},
        {"SAS_TABLES__clientId": "mine"},
    ):
        with pytest.raises(SettingError, match=next(iter(environment))):
            read_config(by_identity | environment)


def test_an_instance_is_named_after_its_machine_and_process() -> None:
    by_name = read_config(LEAST | {"SAS_INSTANCE": "i" * 100}).instance
    assert by_name == f"{'i' * 40}:{os.getpid()}"
    in_azure = read_config(LEAST | {"WEBSITE_INSTANCE_ID": "a/b c"}).instance
    assert in_azure == f"a-b-c:{os.getpid()}"
    assert read_config(LEAST).instance.endswith(f":{os.getpid()}")


@pytest.fixture
def least(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in LEAST.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_a_wrong_setting_is_reported_before_any_message_is_taken(least: pytest.MonkeyPatch) -> None:
    for setting, why in (
        (("SAS_AGENT_LIMITS", "cash:1"), "SAS_AGENT_LIMITS names 'cash', .* are payment, st"),
        (("SAS_QUEUE_SCHEDULER", "agent-stock"), "the queue 'agent-stock' would have two purposes"),
        (("SAS_SHARDS", "none"), "SAS_SHARDS='none': give a whole number"),
        (("ServiceBus", ""), "the setting ServiceBus is missing"),
    ):
        with least.context() as patching:
            patching.setenv(*setting)
            with pytest.raises(SettingError, match=why):
                checked(kit(CHAIN).business)


def test_telemetry_that_cannot_start_is_reported_before_any_message_is_taken(
    least: pytest.MonkeyPatch,
) -> None:
    def missing(_mode: str) -> None:
        raise ModuleNotFoundError(name="opentelemetry.exporter")

    least.setattr(telemetry, "_exporters", missing)
    least.setenv("SAS_TELEMETRY", "otlp")
    with pytest.raises(telemetry.TelemetryError, match=r"needs the package .* install it"):
        checked(kit(CHAIN).business)


def assembled(
    store: StateStore | None = None, business: Business | None = None, **settings: str
) -> Application:
    """Return the application of a business, in memory, with these settings."""
    system = kit(CHAIN)
    return assemble(
        store or system.store,
        system.bus,
        clock=system.clock,
        business=business or system.business,
        settings=read_config(LEAST | settings),
    )


def test_the_connections_of_an_application_are_closed_when_its_event_loop_ends() -> None:
    closed: list[str] = []

    class ClosedStore(MemoryStore):
        async def close(self) -> None:
            await asyncio.sleep(0)  # a real one takes a while
            closed.append("store")

    async def run() -> None:
        closed_with_loop(assembled(ClosedStore()))
        await asyncio.sleep(0)
        assert closed == []

    asyncio.run(run())
    assert closed == ["store"]


def test_without_keys_there_is_no_codec_and_its_package_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sas.adapters.payload_codec", None)
    for keys in ("", "  "):
        assert assembled(SAS_PAYLOAD_KEYS=keys).context.codec is None


def test_the_codec_is_that_of_the_setting_or_that_of_the_business_and_not_both() -> None:
    keys = f" {KEY}, {OTHER_KEY} "
    assert KEY not in repr(read_config(LEAST | {"SAS_PAYLOAD_KEYS": keys}))
    assert isinstance(assembled(SAS_PAYLOAD_KEYS=keys).context.codec, FernetCodec)
    business = replace(kit(CHAIN).business, codec=CheapCodec())
    assert assembled(business=business).context.codec is business.codec
    with pytest.raises(SettingError, match="a codec of its own: keep one of the two"):
        assembled(business=business, SAS_PAYLOAD_KEYS=keys)


def test_keys_are_separated_by_commas_and_a_wrong_one_is_refused_without_being_quoted() -> None:
    config = read_config(LEAST | {"SAS_CALLBACK_KEY": f" {KEY}, {OTHER_KEY} "})
    assert config.callback_keys.keys == (KEY, OTHER_KEY)
    for name, keys, why in (
        ("SAS_PAYLOAD_KEYS", ("", "short", "k1:abc", "é" * 44, "a" * 43), ": give Fernet keys"),
        ("SAS_CALLBACK_KEY", ("", "short1", KEY[:31]), ", key 2: .*`openssl rand"),
    ):
        for key in keys:
            with pytest.raises(SettingError, match=f"{name}{why}") as refused:
                read_config(LEAST | {name: f"{KEY},{key}"})
            assert KEY not in str(refused.value)
            assert not key or key not in str(refused.value)


def test_applications_with_a_queue_of_their_own_are_named_in_a_setting() -> None:
    assert read_config(LEAST).queues.applications == ()
    queues = read_config(LEAST | {"SAS_APPLICATIONS": " web, shop-2,"}).queues
    assert queues.applications == ("web", "shop-2")
    assert {"orders-web", "orders-web-urgent", "orders-shop-2"} <= set(queues.own())


def test_applications_whose_queues_or_ids_would_meet_others_are_refused() -> None:
    for names, why in (
        *((name, "is not a name") for name in ("Web", "we b", "web/1", "web_1", "-web", "1web")),
        *((name, "is not a name") for name in ("web-", "web-urgent", "a" * 41, "wéb")),
        *((names, "rename one") for names in ("web,web", "web,web-shop", "web-shop,web")),
        *((name, "would have two purposes") for name in ("urgent", "rejected")),
    ):
        with pytest.raises(SettingError, match=why):
            read_config(LEAST | {"SAS_APPLICATIONS": names})


KEY = "OLTmUuRNp_I3DZ4mDicTZVCko6bQf1wMMy-LEiQIP9I="
OTHER_KEY = "2FCZCVqjABZaZwNvm1QNa48L4hEkF5w92fc4F85uEY0="
REFERENCE = "@Microsoft.KeyVault(SecretUri=https://v.vault.azure.net/secrets/callbacks)"
REFERENCES = [
    REFERENCE,
    f"  {REFERENCE} ",
    REFERENCE.upper(),
    "@microsoft.keyvault(VaultName=v;SecretName=callbacks)",
    "@ Microsoft . KeyVault (VaultName=v;SecretName=callbacks)",
    "Microsoft.KeyVault(VaultName=v;SecretName=callbacks)",
    "@Microsoft.AppConfiguration(Endpoint=https://a.azconfig.io; Key=callbacks)",
]


def test_an_unresolved_reference_is_not_a_secret() -> None:
    """Everyone who knows the vault's name knows the text of the reference."""
    names = ("SAS_TABLES", "AzureWebJobsStorage", "ServiceBus", "SAS_SOURCE")
    for reference in REFERENCES:
        settings = [("PAYMENT_API_KEY", REFERENCE), *((name, reference) for name in names)]
        for name in ("SAS_CALLBACK_KEY", "SAS_PAYLOAD_KEYS"):
            keys = (reference, f"{KEY},{reference}", f"{reference} , {KEY}")
            settings += [(name, text) for text in keys]
        for name, text in settings:
            with pytest.raises(SettingError, match=f"{name} is a Key Vault reference that was not"):
                read_config(LEAST | {name: text})
    read_config(LEAST | {"EDITOR_PLUGINS": "microsoft.keyvault;microsoft.git"})

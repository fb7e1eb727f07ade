"""How `sas`, the desk and the client find the system that they connect to."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devstack.env_file import EnvFile
from devstack.inputs import DevstackError
from sas import profiles
from sas.cli.arguments import read_bus
from sas.cli.environments import masked
from sas.cli.main import build_parser, main
from sas.client import OrdersClient
from sas.operate.errors import USAGE
from sas.profiles import ProfileError
from tests.terminal import terminal

PROD = """
[prod]
namespace = "shop.servicebus.windows.net"
tables = "https://shop.table.core.windows.net"
table = "trips"

[test.settings]
ServiceBus = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=R;SharedAccessKey=hidden"
SAS_TABLES = "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=hidden"
SAS_QUEUE_ORDERS = "in"
"""
BUS = "Endpoint=sb://127.0.0.1:2;SharedAccessKeyName=R;SharedAccessKey=K"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without profiles, and a project directory in which the test works."""
    for name in (*profiles.OF_BUS, *profiles.OF_TABLES, "SAS_TABLE", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("devstack.env_file._READERS_S", 0.1)
    inner = tmp_path / "project" / "inner"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    return tmp_path / "home"


def write_own(home: Path, text: str = PROD) -> Path:
    path = home / ".config" / "sas" / "profiles.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def write_of_project(text: str = PROD) -> Path:
    path = Path.cwd().parent / ".sas.toml"
    path.write_text(text)
    return path


@contextmanager
def stack(**settings: str) -> Iterator[Path]:
    """The file of a stack that runs in the project directory."""
    file = EnvFile(Path.cwd().parent)
    file.write(settings)
    try:
        yield file.path
    finally:
        file.remove()


# -- Profiles ---------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [write_own, lambda _: write_of_project()])
def test_a_profile_names_the_namespace_and_the_table_and_needs_no_secret(
    home: Path, place: object
) -> None:
    path = place(home)  # type: ignore[operator]
    found = profiles.settings("prod")
    assert found.settings["ServiceBus__fullyQualifiedNamespace"] == "shop.servicebus.windows.net"
    assert found.settings["SAS_TABLES__endpoint"] == "https://shop.table.core.windows.net"
    assert found.settings["SAS_TABLE"] == "trips"
    assert found.source == f"profile prod of {path}"


def test_a_profile_that_is_asked_for_wins_over_the_environment_and_over_a_stack(
    home: Path,
) -> None:
    write_own(home)
    env = {
        "HOME": str(home),
        "ServiceBus": BUS,
        "AzureWebJobsServiceBus": BUS,
        "AzureWebJobsStorage": "UseDevelopmentStorage=true",
        "SAS_TABLES": "AccountName=other",
        "SAS_TABLE": "other",
        "SAS_OPERATOR": "ann",
    }
    with stack(ServiceBus=BUS):
        found = profiles.settings("prod", env).settings
        assert found == {
            "HOME": str(home),
            "SAS_OPERATOR": "ann",
            "ServiceBus__fullyQualifiedNamespace": "shop.servicebus.windows.net",
            "SAS_TABLES__endpoint": "https://shop.table.core.windows.net",
            "SAS_TABLE": "trips",
        }
        assert "SAS_TABLE" not in profiles.settings("test", env).settings


def test_ones_own_profile_wins_over_that_of_a_project(home: Path) -> None:
    write_of_project(PROD.replace("shop.", "strange."))
    own = write_own(home)
    assert profiles.settings("prod").source.endswith(str(own))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[prod", "is not TOML"),
        ("a = " + "[" * 20_000, "is not TOML"),
        ('prod = "x"', "'prod' is not a profile: begin each with [NAME]"),
        ('["a b"]', "'a b' is not a profile"),
        ('[prod]\nbus = "x"', "[prod]: bus is not known: give namespace, tables, table"),
        ("[prod]\ntable = 1", "each value is a text in quotes"),
        ("[prod]\nsettings = 1", "each value is a text in quotes"),
        ("[prod.settings]\nA = true", "each value is a text in quotes"),
    ],
)
def test_a_file_that_is_wrong_says_where_and_what_to_write(
    text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_of_project(text)
    assert main(["--env", "prod", "list"]) == USAGE
    error = capsys.readouterr().err
    assert error.startswith(f"sas: {path}")
    assert said in error


@pytest.mark.parametrize("wrong", ["[test]\nbus = 1\n", '["a b"]\n'])
def test_a_wrong_profile_does_not_block_another_one_and_the_list_names_it(
    wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_of_project(wrong + '[prod]\nnamespace = "shop.servicebus.windows.net"\n')
    assert main(["env", "show", "prod"]) == 0
    assert "shop.servicebus.windows.net" in capsys.readouterr().out
    assert main(["env", "list"]) == 0
    said = capsys.readouterr()
    assert "prod" in said.out
    assert said.err.startswith(f"sas: {path}")
    assert main(["env", "show", "other"]) == USAGE
    assert capsys.readouterr().err == "sas: there is no profile 'other': give one of prod\n"


@pytest.mark.parametrize(
    "words", [["--env", "prdo", "list"], ["list", "--env", "prdo"], ["env", "show", "prdo"]]
)
def test_a_wrong_name_lists_what_exists(
    words: list[str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_own(home)
    assert main(words) == USAGE
    assert capsys.readouterr().err == ("sas: there is no profile 'prdo': give one of prod, test\n")


def test_without_any_profile_the_sentence_shows_how_one_looks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["list", "--env", "prod"]) == USAGE
    assert '[prod]\nnamespace = "NAME.servicebus.windows.net"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["list"], "--env (see `sas env`), --storage or SAS_TABLES"),
        (["submit", "x.json"], "--env (see `sas env`), --connection or ServiceBus"),
    ],
)
def test_where_nothing_runs_the_first_sentence_says_what_to_start(
    words: list[str], names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("x.json").write_text("{}")
    assert main([*words, *(["--reply-queue", "responses-a"] if "submit" in words else [])]) == USAGE
    error = capsys.readouterr().err
    assert error.startswith("sas: nothing runs here (no .devstack/env in this directory or above)")
    assert f"start `make up` or `devstack up`; or name a system with {names}" in error


def test_a_profile_without_a_table_or_a_namespace_says_which_setting_is_missing(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_own(home, '[bare]\ntable = "trips"\n')
    assert main(["--env", "bare", "list"]) == USAGE
    assert "the setting SAS_TABLES is missing" in capsys.readouterr().err


# -- The stack that runs here -----------------------------------------------------------------


def test_a_stack_above_this_directory_is_found() -> None:
    with stack(ServiceBus=BUS, ODD="it's $HOME `x`\n2") as path:
        found = profiles.settings()
        assert found.settings["ServiceBus"] == BUS
        assert found.settings["ODD"].startswith("it's $HOME")
        assert found.source == f"{path} (devstack up, pid {os.getpid()})"
    assert profiles.settings().is_plain


def test_environment_variables_win_whole_so_that_two_systems_never_mix() -> None:
    with stack(ServiceBus=BUS, AzureWebJobsStorage="AccountName=a") as path:
        env = {"AzureWebJobsStorage": "UseDevelopmentStorage=true"}
        found = profiles.settings(environ=env)
        assert found.settings == env
        assert found.source == f"environment variables, not {path}"
        same = {"ServiceBus": BUS, "AzureWebJobsStorage": "AccountName=a"}
        assert profiles.settings(environ=same).is_plain


def test_a_file_whose_stack_has_ended_is_refused_with_what_to_do() -> None:
    with stack(ServiceBus=BUS) as path:
        left = path.read_text()
    path.parent.mkdir()
    path.write_text(left)
    with pytest.raises(ProfileError, match="is that of a stack that has ended") as told:
        profiles.settings()
    assert "start it again, or remove the file" in str(told.value)
    assert profiles.settings(environ={"ServiceBus": BUS}).is_plain


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_not_used() -> None:
    with stack(ServiceBus=BUS) as path:
        os.chown(path, 12345, -1)
        with pytest.raises(ProfileError, match="belongs to another user"):
            profiles.settings()


def test_a_file_that_was_changed_by_hand_is_named() -> None:
    with stack(ServiceBus=BUS) as path:
        path.write_text("export ServiceBus='half")
        with pytest.raises(ProfileError, match="changed by hand"):
            profiles.settings()


def test_two_stacks_never_share_the_file() -> None:
    with stack(ServiceBus=BUS) as path:
        with pytest.raises(DevstackError, match="belongs to another stack"):
            EnvFile(path.parents[1]).write({})
        assert profiles.settings().settings["ServiceBus"] == BUS


def test_a_reader_that_looks_at_the_lock_does_not_keep_a_stack_from_writing() -> None:
    with stack(ServiceBus=BUS) as path:
        left = path.read_text()
    path.parent.mkdir()
    path.write_text(left)
    with path.open() as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        with pytest.raises(DevstackError):
            EnvFile(path.parents[1]).write({})
    with stack(ServiceBus=BUS):
        assert profiles.settings().settings["ServiceBus"] == BUS


# -- The command and the client ---------------------------------------------------------------


def test_the_environment_of_the_process_is_as_before_when_the_command_ends(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_own(home)
    before = dict(os.environ)
    assert main(["submit", "nothing.json", "--env", "test", "--reply-queue", "x"]) == USAGE
    assert dict(os.environ) == before
    assert "must begin with 'responses-'" in capsys.readouterr().err


def test_arguments_win_over_what_would_be_found(capsys: pytest.CaptureFixture[str]) -> None:
    with stack(ServiceBus=BUS):
        assert main(["list", "-v", "--storage", "x=1"]) == USAGE
    assert "using" not in capsys.readouterr().err


def test_the_verbs_that_connect_have_the_arguments_by_which_they_are_known() -> None:
    parsed = build_parser().parse_args(["submit", "x"])
    assert hasattr(parsed, "connection")
    assert read_bus(parsed, {"ServiceBus": BUS}).connection_string == BUS
    assert hasattr(build_parser().parse_args(["list"]), "storage")
    assert hasattr(build_parser().parse_args(["desk"]), "storage")


def test_the_list_and_one_profile_are_shown_without_secrets(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_own(home)
    assert main(["env", "list", "--json"]) == 0
    prod, test = map(json.loads, capsys.readouterr().out.splitlines())
    assert prod == {
        "Environment": "prod",
        "Namespace": "shop.servicebus.windows.net",
        "Tables": "https://shop.table.core.windows.net",
        "Table": "trips",
        "From": str(path),
    }
    assert "hidden" not in str(test)
    assert main(["env", "show", "test"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"from profile test of {path}\n")
    assert "SAS_QUEUE_ORDERS" in shown
    assert "hidden" not in shown
    assert main(["env", "list", "prod"]) == USAGE


def test_secrets_are_masked_in_connection_strings_and_by_the_name_of_a_setting() -> None:
    assert masked("ServiceBus", "a=1;SharedAccessKey=x=;b=2") == "a=1;SharedAccessKey=***;b=2"
    assert masked("SAS_CALLBACK_KEY", "abc") == "***"
    assert masked("SAS_TABLE", "orders") == "orders"


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_the_verb_fits_a_terminal_and_names_the_profile_in_use(columns: int, home: Path) -> None:
    write_own(home, PROD + '[local]\nnamespace = "n"\ntables = "x"\n')
    with terminal(columns) as screen:
        assert main(["env"]) == 0
        assert main(["env", "show", "prod"]) == 0
        screen.drain()
        long_words = [word for line in screen.lines for word in line.split() if len(word) > columns]
        assert [line for line in screen.lines if len(line) > columns and not long_words] == []
        assert main(["--env", "local", "list"]) == USAGE
        screen.drain()
        assert "sas: using profile local of " in "".join(screen.lines)


async def test_the_client_connects_to_what_the_command_would_use(home: Path) -> None:
    write_own(home)
    with stack(ServiceBus=BUS):
        async with OrdersClient.from_environment(reply_queue="responses-a") as client:
            assert client._client.fully_qualified_namespace == "127.0.0.1"
    async with OrdersClient.from_environment("prod", reply_queue="responses-a") as client:
        assert client._client.fully_qualified_namespace == "shop.servicebus.windows.net"
    with pytest.raises(ValueError, match="start devstack, set ServiceBus, or name a profile"):
        OrdersClient.from_environment(reply_queue="responses-a")

"""How `sas`, the desk and the client find the system that they connect to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devstack.env_file import EnvFile
from devstack.inputs import DevstackError
from sas import environment
from sas.cli.main import main
from sas.client import OrdersClient
from sas.environment import Here, StackError
from sas.operate.errors import USAGE
from tests.terminal import terminal

BUS = "Endpoint=sb://127.0.0.1:2;SharedAccessKeyName=R;SharedAccessKey=K"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project directory in which the test works, and no variable that names a system."""
    for name in (*environment.OF_BUS, *environment.OF_TABLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("devstack.env_file._READERS_S", 0.1)
    inner = tmp_path / "project" / "inner"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)


@contextmanager
def stack(**settings: str) -> Iterator[Path]:
    """The file of a stack that runs in the project directory."""
    file = EnvFile(Path.cwd().parent)
    file.write(settings)
    try:
        yield file.path
    finally:
        file.remove()


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["list"], "SAS_TABLES or SAS_TABLES__endpoint"),
        (["submit", "x.json"], "ServiceBus to a Service Bus"),
    ],
)
def test_where_nothing_runs_the_first_sentence_says_what_to_start(
    words: list[str], names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("x.json").write_text("{}")
    assert main([*words, *(["--reply-queue", "responses-a"] if "submit" in words else [])]) == USAGE
    error = capsys.readouterr().err
    assert error.startswith("sas: nothing runs here (no .devstack/env in this directory or above)")
    assert f"start `make up` or `devstack up`; or set {names}" in error


def test_a_stack_above_this_directory_is_found() -> None:
    with stack(ServiceBus=BUS, ODD="it's $HOME `x`\n2") as path:
        surroundings = environment.here()
        assert surroundings.settings["ServiceBus"] == BUS
        assert surroundings.settings["ODD"].startswith("it's $HOME")
        assert surroundings.stack == f"{path} (devstack up, pid {os.getpid()})"
    assert environment.here().stack is None


def test_with_a_stack_the_settings_of_callbacks_come_from_the_local_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    local = {"SAS_CALLBACK_KEY": "k", "SAS_CALLBACK_URL": "http://a/", "ServiceBus": "other"}
    file = Path.cwd().parent / "local.settings.json"
    file.write_text(json.dumps({"Values": local}))
    assert "SAS_CALLBACK_KEY" not in environment.here(environ={}).settings  # nothing runs
    with stack(ServiceBus=BUS):
        assert environment.here(environ={}).settings == local | {"ServiceBus": BUS}
        env = {"SAS_CALLBACK_KEY": "mine", "SAS_CALLBACK_URL": ""}
        settings = environment.here(environ=env).settings
        assert (settings["SAS_CALLBACK_KEY"], settings["SAS_CALLBACK_URL"]) == ("mine", "http://a/")
        file.write_text("{")
        assert environment.here(environ={}).settings == {"ServiceBus": BUS}


def test_environment_variables_win_whole_so_that_two_systems_never_mix() -> None:
    with stack(ServiceBus=BUS, AzureWebJobsStorage="AccountName=a"):
        env = {"AzureWebJobsStorage": "UseDevelopmentStorage=true"}
        assert environment.here(environ=env) == Here(env)


def test_a_file_whose_stack_has_ended_is_refused_with_what_to_do() -> None:
    with stack(ServiceBus=BUS) as path:
        text = path.read_text()
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(StackError, match="is that of a stack that has ended") as error:
        environment.here()
    assert "start it again, or remove the file" in str(error.value)
    assert environment.here(environ={"ServiceBus": BUS}).stack is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_not_used() -> None:
    with stack(ServiceBus=BUS) as path:
        os.chown(path, 12345, -1)
        with pytest.raises(StackError, match="belongs to another user"):
            environment.here()


def test_a_file_that_was_changed_by_hand_is_named() -> None:
    with stack(ServiceBus=BUS) as path:
        path.write_text("export ServiceBus='half")
        with pytest.raises(StackError, match="changed by hand"):
            environment.here()


def test_two_stacks_never_share_the_file() -> None:
    with stack(ServiceBus=BUS) as path:
        with pytest.raises(DevstackError, match="belongs to another stack"):
            EnvFile(path.parents[1]).write({})
        assert environment.here().settings["ServiceBus"] == BUS


# -- The command and the client ---------------------------------------------------------------


def test_the_environment_of_the_process_is_as_before_when_the_command_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = dict(os.environ)
    with stack(ServiceBus=BUS, ODD="1"):
        assert main(["submit", "nothing.json", "--reply-queue", "x"]) == USAGE
    assert dict(os.environ) == before
    assert "must begin with 'responses-'" in capsys.readouterr().err


def test_a_verb_that_connects_to_nothing_looks_for_no_stack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sas.cli.system.here", lambda: pytest.fail("it was looked for"))
    assert main(["new", "a b"]) == USAGE
    assert main(["workflows", "draw", "--app", "orders"]) == 0


def test_a_terminal_is_told_which_stack_is_used() -> None:
    with stack(AzureWebJobsStorage="x=1") as path, terminal(200) as screen:
        assert main(["list"]) == USAGE
        screen.drain()
        assert f"sas: using {path} (devstack up" in "".join(screen.lines)


async def test_the_client_connects_to_what_the_command_would_use() -> None:
    with stack(ServiceBus=BUS):
        async with OrdersClient.from_environment(reply_queue="responses-a") as client:
            assert client._client.fully_qualified_namespace == "127.0.0.1"
    with pytest.raises(ValueError, match="start devstack, or set ServiceBus"):
        OrdersClient.from_environment(reply_queue="responses-a")

"""``python -m devstack.servicebus`` as a process: how it starts and ends, and its errors."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from devstack.servicebus.__main__ import main
from devstack.tests.broker_runners import start_broker


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "Config.json"
    queues = [{"Name": "q", "Properties": {"LockDuration": "PT5M"}}]
    path.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Name": "n", "Queues": queues}]}}))
    return path


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "devstack.servicebus", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_broker_while_a_client_is_connected(
    config: Path, number: signal.Signals
) -> None:
    with (
        start_broker(config) as broker,
        socket.create_connection(("127.0.0.1", broker.port)) as peer,
    ):
        peer.sendall(b"AMQP\x00\x01\x00\x00")
        broker.process.send_signal(number)
        assert broker.process.wait(120) == 0


def test_the_error_for_a_busy_port_says_what_to_do(config: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        for option, other in (("--port", "--management-port"), ("--management-port", "--port")):
            done = run("--config", str(config), option, port, other, "0")
            assert done.returncode == 2
            assert "address already in use" in done.stderr
            assert "0 picks a free one" in done.stderr
            assert done.stderr.count("\n") == 1


def test_a_wrong_argument_gets_one_sentence(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, says in (
        (["--config", "missing.json"], "missing.json cannot be read"),
        (["--config", "{config}", "--port", "70000"], "'70000' is not a port"),
        (["--config", "{config}", "--port", "²"], "'²' is not a port: give a number from 0"),
        (["--config", "{config}", "--management-port", "9" * 5000], "is not a port: give a number"),
        (["--config", "{config}", "--data", "{config}"], "give --data a directory"),
        (["--port", "0"], "--config"),
        (["--config", "{config}", "--prot", "1"], "unrecognized arguments: --prot"),
    ):
        try:
            code = main([argument.replace("{config}", str(config)) for argument in arguments])
        except SystemExit as end:  # from argparse
            code = int(str(end.code))
        printed = capsys.readouterr()
        assert code == 2
        assert says in printed.err
        assert printed.out == ""

"""What the worker or the host would refuse at deployment is refused here, in a sentence."""

import shutil
import sys
import textwrap
from pathlib import Path

import pytest

from devstack.functions.bindings import (
    HttpTrigger,
    IndexingError,
    ServiceBusTrigger,
    TimerTrigger,
)
from devstack.functions.indexing import FoundFunction, bind, find, imported, select
from devstack.functions.settings import HostError, Settings, SettingsError

SETTINGS = Settings(
    {"SB": "Endpoint=sb://localhost;SharedAccessKeyName=R;SharedAccessKey=K", "Q": "q", "EMPTY": ""}
)
HEAD = "import typing\nimport azure.functions as func\napp = func.FunctionApp()\n"
QUEUE = '@app.service_bus_queue_trigger(arg_name="msg", connection="SB", queue_name="q")\n'
TOPIC = '@app.service_bus_topic_trigger(arg_name="m", connection="SB", topic_name="t", '
TOPIC += 'subscription_name="s")\n'
TIMER = '@app.timer_trigger(arg_name="t", schedule="0 0 * * * *")\n'
RETRY = '@app.retry(strategy="fixed_delay", max_retry_count="3", delay_interval="00:00:05")\n'
OUTPUT = '@app.service_bus_queue_output(arg_name="out", connection="SB", queue_name="o")\n'


def found_in(app_dir: Path, code: str) -> list[FoundFunction]:
    # Bytecode of another text of the same length and second would pass for that of this one.
    shutil.rmtree(app_dir / "__pycache__", ignore_errors=True)
    (app_dir / "function_app.py").write_text(textwrap.dedent(code))
    with imported(app_dir) as module:
        return find(module)


def bound_in(app_dir: Path, code: str) -> None:
    for function in found_in(app_dir, code):
        bind(function, app_dir, SETTINGS)


def test_triggers_are_read_with_their_settings_resolved(tmp_path: Path) -> None:
    code = (
        HEAD
        + '@app.service_bus_queue_trigger(arg_name="msgs", connection="SB", queue_name="%Q%",'
        + " cardinality=func.Cardinality.MANY, data_type=func.DataType.BINARY)\n"
        + "def many(msgs: typing.List[func.ServiceBusMessage]): ...\n"
        + '@app.timer_trigger(arg_name="t", schedule="0 */5 * * * *", use_monitor=False)\n'
        + "async def tick(t: func.TimerRequest) -> None: ...\n"
        + '@app.route("a/{id}", methods=["GET"], auth_level=func.AuthLevel.ADMIN)\n'
        + "def web(req: func.HttpRequest) -> func.HttpResponse: ...\n"
    )
    many, tick, web = (bind(function, tmp_path, SETTINGS) for function in found_in(tmp_path, code))
    assert isinstance(many.trigger, ServiceBusTrigger)
    assert (many.trigger.queue, many.trigger.batch, many.trigger.binary) == ("q", True, True)
    assert isinstance(tick.trigger, TimerTrigger)
    assert (tick.trigger.use_monitor, tick.signature.is_async) == (False, True)
    assert web.trigger == HttpTrigger(
        param="req", route="a/{id}", methods=("GET",), auth_level="admin"
    )


def test_functions_of_blueprints_are_found_too(tmp_path: Path) -> None:
    (tmp_path / "more.py").write_text(
        "import azure.functions as func\nbp = func.Blueprint()\n"
        + QUEUE.replace("app.", "bp.")
        + "def from_blueprint(msg): ...\n"
    )
    code = HEAD + "from more import bp\napp.register_functions(bp)\n"
    assert [function.name for function in found_in(tmp_path, code)] == ["from_blueprint"]


def test_what_the_app_imported_is_forgotten_so_that_the_next_app_gets_its_own(
    tmp_path: Path,
) -> None:
    for name in ("one", "two"):
        app = tmp_path / name
        app.mkdir()
        (app / "shared_name.py").write_text(f"NAME = {name!r}\n")
        code = HEAD + "from shared_name import NAME\n" + QUEUE
        code += "@app.function_name(NAME)\ndef f(msg): ...\n"
        assert [function.name for function in found_in(app, code)] == [name]
    assert "shared_name" not in sys.modules
    assert str(tmp_path / "two") not in sys.path


def test_a_wrong_setting_is_reported_in_the_sentence_of_the_app(tmp_path: Path) -> None:
    (tmp_path / "own_settings.py").write_text("class SettingError(ValueError): pass\n")
    code = "import own_settings\nraise own_settings.SettingError('SIZE=0: give a number.')\n"
    with pytest.raises(IndexingError) as refusal:
        found_in(tmp_path, code)
    assert str(refusal.value) == (
        "function_app.py cannot be imported: SIZE=0: give a number (SettingError)."
    )


def test_an_app_that_azure_would_refuse_is_refused(tmp_path: Path) -> None:
    for code, sentence in (
        ("import nonsense_module\n", "cannot be imported: ModuleNotFoundError"),
        ("def f(:\n", "cannot be imported: SyntaxError"),
        ("import json\njson.loads('{')\n", r"JSONDecodeError: .* at function_app.py:2\.$"),
        ("import sys\nsys.exit(3)\n", "cannot be imported: SystemExit: 3 at function_app.py:2"),
        ("def g():\n    1 / 0\ng()\n", r"ZeroDivisionError: .* at function_app.py:2\.$"),
        ("x = 1\n", "has no azure.functions.FunctionApp"),
        (HEAD, "registers no function"),
        (HEAD + "other = func.FunctionApp()\n", r"more than one FunctionApp .*\(app, other\)"),
        (HEAD + 2 * (QUEUE + "def f(msg): ...\n"), "does not have a unique function name"),
        (
            HEAD + QUEUE + "def f(msg): ...\n" + QUEUE + "def F(msg): ...\n",
            "differ in case only",
        ),
        (
            HEAD + QUEUE + '@app.function_name("a b")\ndef f(msg): ...\n',
            "is not a valid function name",
        ),
        (HEAD + QUEUE + "def f(message): ...\n", r"message, which no binding names.*\(msg\)"),
        (HEAD + QUEUE + OUTPUT + "def f(msg): ...\n", "binding named out but no such parameter"),
        (HEAD + QUEUE + "def f(msg: int): ...\n", "annotation int does not fit"),
        (HEAD + QUEUE + "def f(msg: func.ServiceBusMessage | None): ...\n", "worker refuses"),
        (HEAD + QUEUE + "def f(msg: typing.Optional[str]): ...\n", "worker refuses"),
        (HEAD + QUEUE + "def f(msg: list[func.ServiceBusMessage]): ...\n", "typing.List"),
        (
            HEAD + QUEUE + "def f(msg: func.Out[str]): ...\n",
            "of msg must be something other than Out",
        ),
        (
            HEAD + QUEUE + OUTPUT + "def f(msg, out: str): ...\n",
            "of out must be azure.functions.Out",
        ),
        (HEAD + QUEUE + "def f(msg: 'Missing'): ...\n", "something that is not defined"),
        (HEAD + QUEUE + "def f(msg, context: str): ...\n", "must be an azure.functions.Context"),
    ):
        with pytest.raises(IndexingError, match=sentence):
            found_in(tmp_path, code)


def test_a_binding_that_cannot_run_is_refused_by_name(tmp_path: Path) -> None:
    for decorators, parameters, sentence in (
        (QUEUE.replace('"q"', '"%NO%"'), "msg", "setting 'NO'"),
        (QUEUE.replace('"SB"', '"NO"'), "msg", "uses the connection 'NO'"),
        (
            '@app.timer_trigger(arg_name="t", schedule="1 2")\n',
            "t",
            "needs six fields",
        ),
        ('@app.timer_trigger(arg_name="t", schedule="%NO%")\n', "t", "setting 'NO'"),
        (
            '@app.timer_trigger(arg_name="t", schedule="² * * * * *")\n',
            "t",
            "'²' is not a valid second",
        ),
        (QUEUE.replace('"q"', '""'), "msg", "trigger of function f names no queue"),
        (QUEUE + OUTPUT.replace('"o"', '"%EMPTY%"'), "msg, out", "output out of .* names no queue"),
        (
            '@app.timer_trigger(arg_name="t", schedule="00:00:00")\n',
            "t",
            "the interval 00:00:00 is too short",
        ),
        (
            '@app.blob_trigger(arg_name="b", path="c/{n}", connection="SB")\n',
            "b",
            "does not run blobTrigger.*--except",
        ),
        (
            TOPIC,
            "m",
            "does not run topics",
        ),
        (
            QUEUE + '@app.blob_output(arg_name="out", path="c/x", connection="SB")\n',
            "msg, out",
            "output binding blob",
        ),
        (
            QUEUE + '@app.blob_input(arg_name="b", path="c/x", connection="SB")\n',
            "msg, b",
            "does not run input bindings such as blob",
        ),
    ):
        with pytest.raises((IndexingError, SettingsError), match=sentence):
            bound_in(tmp_path, HEAD + decorators + f"def f({parameters}): ...\n")


def test_a_retry_policy_is_named_and_has_no_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found_in(tmp_path, HEAD + QUEUE + RETRY + "def f(msg): ...\n")
    assert "@app.retry has no effect here" in caplog.text


def test_a_function_left_out_needs_neither_connection_nor_support(tmp_path: Path) -> None:
    code = HEAD + QUEUE.replace('"SB"', '"NO"') + "def f(msg): ...\n" + QUEUE + "def g(msg): ...\n"
    functions = found_in(tmp_path, code)
    for selection in (select(functions, only=["G"]), select(functions, without=["f"])):
        assert [bind(function, tmp_path, SETTINGS).name for function in selection] == ["g"]


def test_an_unknown_name_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    functions = found_in(tmp_path, HEAD + QUEUE + "def f(msg): ...\n")
    with pytest.raises(IndexingError, match="no function 'h' in this app; it has f"):
        select(functions, only=["h"])
    with pytest.raises(IndexingError, match="No function is left"):
        select(functions, without=["f"])


def test_a_directory_without_an_app_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="name the directory of a function app"), imported(tmp_path):
        pass

import json
from pathlib import Path

import pytest

from devstack.functions.settings import Settings, SettingsError

EMULATOR = "Endpoint=sb://localhost;SharedAccessKeyName=R;SharedAccessKey=K"


def app_with(tmp_path: Path, content: object) -> Path:
    (tmp_path / "local.settings.json").write_text(json.dumps(content))
    return tmp_path


def test_the_environment_beats_the_file_and_overrides_beat_both(tmp_path: Path) -> None:
    app = app_with(tmp_path, {"Values": {"A": "file", "B": "file", "C": "file"}})
    settings = Settings.load(
        app, environ={"A": "environment", "B": "environment"}, overrides={"A": "override"}
    )
    assert [settings.get(name) for name in "ABC"] == ["override", "environment", "file"]


def test_the_environment_beats_the_file_whatever_the_case(tmp_path: Path) -> None:
    app = app_with(tmp_path, {"Values": {"MyQueue": "file"}})
    settings = Settings.load(app, environ={"MYQUEUE": "environment"})
    assert settings.get("MyQueue") == "environment"


def test_a_missing_file_is_fine(tmp_path: Path) -> None:
    assert Settings.load(tmp_path, environ={"A": "1"}).get("A") == "1"


def test_comments_and_trailing_commas_in_the_file_are_read_as_func_reads_them(
    tmp_path: Path,
) -> None:
    text = '{ // the key\n "Values": {"URL": "http://x//y", /* two */ "N": "1",},\n}'
    (tmp_path / "local.settings.json").write_text(text)
    settings = Settings.load(tmp_path, environ={})
    assert (settings.get("URL"), settings.get("N")) == ("http://x//y", "1")


def test_an_unusable_file_is_refused_with_a_sentence(tmp_path: Path) -> None:
    for content, sentence in (
        ({"IsEncrypted": True, "Values": {}}, "is encrypted"),
        ({"Values": {"N": 1}}, "the value of N must be a string"),
        ({"Values": []}, "must be an object"),
        ([], "must hold a JSON object"),
    ):
        with pytest.raises(SettingsError, match=sentence):
            Settings.load(app_with(tmp_path, content), environ={})


def test_json_that_python_cannot_hold_is_refused_with_a_sentence(tmp_path: Path) -> None:
    for content in ("[" * 100_000, '{"n": ' + "9" * 5000 + "}"):
        (tmp_path / "local.settings.json").write_text(content)
        with pytest.raises(SettingsError, match=r"nests too deep|too many digits"):
            Settings.load(tmp_path, environ={})


def test_broken_json_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "local.settings.json").write_text('{\n"Values": {\n"A" 1}}')
    with pytest.raises(SettingsError, match="in line 3"):
        Settings.load(tmp_path, environ={})


def test_percent_names_are_resolved_also_inside_text() -> None:
    settings = Settings({"ORDERS": "orders", "ENV": "dev"})
    assert settings.resolve("%ORDERS%-%env%", place="x") == "orders-dev"


def test_an_unknown_percent_name_is_fatal_and_the_near_one_is_named() -> None:
    settings = Settings({"ORDERS_QUEUE": "orders"})
    with pytest.raises(SettingsError, match=r"'ORDER_QUEUE'.*did you mean ORDERS_QUEUE\?"):
        settings.resolve("%ORDER_QUEUE%", place="The trigger of function f")


def test_a_connection_is_found_under_its_name_before_the_prefixed_one() -> None:
    settings = Settings({"SB": EMULATOR, "AzureWebJobsSB": EMULATOR + ";EntityPath=x"})
    assert settings.service_bus("SB", place="f") == EMULATOR
    settings = Settings({"AzureWebJobsSB": EMULATOR})
    assert settings.service_bus("SB", place="f") == EMULATOR


def test_a_missing_connection_is_named() -> None:
    with pytest.raises(
        SettingsError,
        match=r"the connection 'SB', a Service Bus connection string: set it in",
    ):
        Settings({}).service_bus("SB", place="The trigger of function f")


def test_an_invalid_connection_string_is_refused_without_its_secret() -> None:
    for value in (
        "UseDevelopmentStorage=true",
        "Endpoint=foo",
        "Endpoint=sb://h",
        "Endpoint=sb://h;SharedAccessKeyName=n",
        "Endpoint=sb://h:99999;SharedAccessKeyName=n;SharedAccessKey=k",
        "Endpoint=sb://[::1;SharedAccessKeyName=n;SharedAccessKey=k",
    ):
        with pytest.raises(SettingsError, match="must look like Endpoint=") as caught:
            Settings({"SB": value}).service_bus("SB", place="f")
        assert "SharedAccessKey=k" not in str(caught.value)


def test_a_function_is_disabled_by_any_spelling_of_its_setting() -> None:
    for name in ("AzureWebJobs.f.Disabled", "AzureWebJobs__f__Disabled", "AzureWebJobs_f_Disabled"):
        assert Settings({name: "true"}).disabled("f")
        assert not Settings({name: "false"}).disabled("f")
        assert not Settings({name: "1"}).disabled("g")


def test_a_disabled_setting_that_is_not_true_or_false_is_refused() -> None:
    with pytest.raises(SettingsError, match="must be true or false"):
        Settings({"AzureWebJobs.f.Disabled": "off"}).disabled("f")


def test_a_bound_of_bodies_that_is_no_number_is_refused() -> None:
    """Azure would ignore it, and take bodies of 100 MB."""
    with pytest.raises(SettingsError, match="must be a number of bytes: '2 MB'"):
        Settings({"FUNCTIONS_REQUEST_BODY_SIZE_LIMIT": "2 MB"}).body_bytes_max()

"""``sas azd deploy``: secrets, uploads that are refused at first, and the functions in Azure."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from zipfile import ZipFile

import pytest

from sas.cli.main import main
from sas.deploy import deploy as deployment
from sas.deploy import smoke
from sas.deploy.azd import DeploymentRefusedError
from sas.deploy.commands import CommandFailedError
from sas.deploy.deploy import deploy
from tests.infra.azd_kit import DEPLOYED
from tests.infra.kit import INFRA
from tests.infra.stand_ins import Cloud
from tests.infra.stand_ins.az_resources import SUBSCRIPTION
from tests.infra.stand_ins.azd_deploy import FORBIDDEN
from tests.infra.stand_ins.in_process import call_in_process

SECRETS = {**DEPLOYED, "SAS_SECRET_SETTINGS": "SAS_CALLBACK_KEY,TRIPS_API_KEY"}
READ = {"sas-callback-key": "Resolved", "trips-api-key": "Resolved"}


@pytest.fixture
def zip_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A zip, and pauses that take no time. The folder for temporary files is the test's own."""
    monkeypatch.setattr(deployment, "READ_AGAIN_S", (0, 0))
    monkeypatch.setattr(deployment, "UPLOAD_AGAIN_S", (0, 0, 0))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    path = tmp_path / "temporary" / "kept.zip"
    path.write_bytes(b"zip")
    return path


def cloud(path: Path, monkeypatch: pytest.MonkeyPatch, **state: object) -> Cloud:
    (path / "bin").mkdir(exist_ok=True)
    call_in_process(path / "bin", monkeypatch)
    return Cloud(path / "bin", **{"account": SUBSCRIPTION, **state})


def test_an_upload_that_is_refused_while_roles_spread_is_tried_again(
    zip_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    azure = cloud(tmp_path, monkeypatch, refusals=2)
    deploy(zip_path, DEPLOYED)
    assert azure.state["uploaded"] == [3]
    assert zip_path.exists(), "azd removes a zip in the folder for temporary files"


def test_a_deployment_that_azd_gives_up_says_what_azd_said(
    zip_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for state, uploads, words in (
        ({"refusals": 9}, 4, re.escape(FORBIDDEN[-60:])),
        ({"failure": "the zip is empty"}, 1, "the zip is empty"),
    ):
        azure = cloud(tmp_path, monkeypatch, **state)
        with pytest.raises(CommandFailedError, match=words):
            deploy(zip_path, DEPLOYED)
        assert len(azure.called("azd deploy orders")) == uploads


def test_secrets_are_read_again_before_a_deployment(
    zip_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azure keeps for a day that it could not read one, and needs a while to read it again."""
    missing = dict.fromkeys(READ, "SecretNotFound")
    azure = cloud(tmp_path, monkeypatch, references=missing, read=READ, slow=1)
    deploy(zip_path, SECRETS)
    assert azure.state["uploaded"] == [3]


def test_nothing_is_deployed_while_a_secret_cannot_be_read(
    zip_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for status, command in (
        ("SecretNotFound", "az keyvault secret set --vault-name kv-1 --name trips-api-key"),
        ("AccessToKeyVaultDenied", "sas azd owner"),
    ):
        azure = cloud(tmp_path, monkeypatch, references={**READ, "trips-api-key": status})
        with pytest.raises(
            DeploymentRefusedError, match=f"trips-api-key: {status}.\n    {command}"
        ):
            deploy(zip_path, SECRETS)
        assert azure.called("azd deploy") == []


def test_what_is_no_package_or_has_no_app_is_refused_before_it_is_uploaded(
    zip_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(DeploymentRefusedError, match="run `azd provision` first"):
        deploy(zip_path, {})
    azure = cloud(tmp_path, monkeypatch, azd=DEPLOYED)
    for name, value in DEPLOYED.items():
        monkeypatch.setenv(name, value)
    artifact = tmp_path / "artifact.zip"
    with ZipFile(artifact, "w") as archive:
        archive.writestr("app.zip", b"zip")
    for path, words in (
        (tmp_path / "absent.zip", "There is no .*: run `sas azd package` first"),
        (zip_path, "is no zip of `sas azd package`"),
        (artifact, "an artifact of GitHub has app.zip inside: unpack it"),
    ):
        assert main(["azd", "deploy", str(path)]) == 1
        assert re.search(words, capsys.readouterr().err)
    assert azure.called("azd deploy") == []


def test_functions_that_azure_lacks_or_still_has_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud(tmp_path, monkeypatch, functions=["submission", "callbacks"])
    actual = smoke.deployed(DEPLOYED)
    assert smoke.difference({"submission", "callbacks"}, actual) == ""
    assert smoke.difference({"submission", "scheduler"}, actual) == (
        "Azure has 2 functions: it lacks scheduler, and still has callbacks"
    )


def test_the_template_tells_azd_the_names_that_a_deployment_needs() -> None:
    bicep = (INFRA / "main.bicep").read_text()
    for name in DEPLOYED.keys() - {"AZURE_SUBSCRIPTION_ID"}:
        assert f"output {name} " in bicep, name

"""Directories that devstack makes."""

from pathlib import Path

from devstack.inputs import make_directory


def test_a_new_directory_for_data_is_its_users_alone(tmp_path: Path) -> None:
    assert make_directory(tmp_path / "data" / "a").stat().st_mode & 0o777 == 0o700

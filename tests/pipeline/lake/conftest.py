import os
import shutil

import pytest

from pipeline.lake.fix_lake import Archive


@pytest.fixture(autouse=True)
def _no_waiting_for_disks(monkeypatch):
    """Power does not fail here. That all is synced is tested by what is handed to `fsync`."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="session")
def empty_lake(tmp_path_factory):
    path = tmp_path_factory.mktemp("template") / "lake"
    Archive(path)
    return path


@pytest.fixture
def archive(tmp_path, empty_lake):
    shutil.copytree(empty_lake, tmp_path / "lake")
    return Archive(tmp_path / "lake")

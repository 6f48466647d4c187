"""The way to an object store, with a directory in its place: no syncs, no locks, the rest as on disk."""

import os

import pytest

from lakemq.pipeline.lake import MESSAGES, META, compact, erase, vacuum, verify
from lakemq.pipeline.lake.place import Place
from pipeline.lake.fix_lake import Archive


@pytest.fixture
def remote(tmp_path, monkeypatch):
    """deltalake opens `file://` through the same interface as `s3://`; a path that keeps its scheme is not local."""
    monkeypatch.setattr(Place, "of", classmethod(lambda cls, uri, options=None: cls(_with_scheme(os.fspath(uri)))))
    (tmp_path / "lake").mkdir()
    return Archive(tmp_path / "lake")


def _with_scheme(path):
    return path if "://" in path else f"file://{path}"


def test_a_lake_in_an_object_store(remote, monkeypatch):
    monkeypatch.delattr(os, "fsync")
    assert not remote.lake.place.is_local
    for first in (0, 10):
        remote.put(first, first + 10, topic="a/b%|c")
    with remote.lake.lock():
        assert remote.lake.heal().ranges == ()
    assert remote.offsets(MESSAGES) == remote.offsets(META) == list(range(20))
    assert verify(remote.lake).is_whole
    assert len(list(compact(remote.lake))) == 2
    erase(remote.lake, ["key-1"])
    vacuum(remote.lake, retention_hours=0, force=True)
    assert len(remote.offsets()) == 16
    assert verify(remote.lake).is_whole
    assert len(list((remote.path / MESSAGES).glob("topic=*"))) == 1

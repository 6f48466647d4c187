"""What a worker imported is not walked over by every collection."""

import gc

from lakemq.pipeline import collecting


def test_what_is_there_is_spared_once(monkeypatch):
    monkeypatch.setattr(collecting, "_is_spared", False)
    before = gc.get_freeze_count()
    try:
        collecting.spare_imports()
        spared = gc.get_freeze_count()
        assert spared > before + 10_000
        held = [[] for _ in range(100)]
        collecting.spare_imports()
        assert gc.get_freeze_count() == spared
        del held
    finally:
        gc.unfreeze()  # other tests look for leaks

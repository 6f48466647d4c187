"""Every planted bug of the store is caught, and none of the checks cries wolf."""

import pytest

from lakemq.errors import LakeMQError
from lakemq.storage.directory import ForeignDirectoryError
from planted import PLANTED

CHECKS = list(dict.fromkeys(bug.caught_by for bug in PLANTED))


@pytest.mark.sim
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_sound_store_passes(check):
    check()


@pytest.mark.sim
@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_the_bug_is_caught(bug):
    with bug.planted(), pytest.raises((AssertionError, LakeMQError, ForeignDirectoryError)):
        bug.caught_by()

"""Every planted bug of the broker is caught by simulated schedules; a sound broker passes them in `test_simulation`."""

import pytest

from planted import PLANTED_BROKER


@pytest.mark.sim
@pytest.mark.parametrize("bug", PLANTED_BROKER, ids=lambda bug: bug.name)
def test_the_bug_is_caught(bug):
    with bug.planted(), pytest.raises(AssertionError):
        bug.caught_by()

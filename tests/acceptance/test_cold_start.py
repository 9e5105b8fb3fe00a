"""A driver that starts cold: half a minute of waiting, in a separate file so that it starts early."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import Accept
from tests.acceptance.test_run import only, texts


@pytest.mark.wide
def test_a_driver_that_forgets_its_settings_is_given_none(accept: Accept) -> None:
    """A node without persistence mode: the power cap would be lost before the check that should report it."""
    ran = accept(*only("settings"), node="cold-start-8")
    assert (ran.code, ran.set_to) == (0, []), ran.out
    assert "persistence mode is off" in texts(ran, "settings", "could not look")[0]

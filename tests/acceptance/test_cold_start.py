"""A driver that starts cold: half a minute of waiting, in a file of its own so that it begins early."""

from __future__ import annotations

from tests.acceptance.conftest import Accept
from tests.acceptance.test_run import only, texts


def test_a_driver_that_forgets_its_settings_is_given_none(accept: Accept) -> None:
    """A node without persistence mode: the cap would be gone before the check that is to name it."""
    ran = accept(*only("settings"), node="cold-start-8")
    assert (ran.code, ran.set_to) == (0, []), ran.out
    assert "persistence mode is off" in texts(ran, "settings", "could not look")[0]

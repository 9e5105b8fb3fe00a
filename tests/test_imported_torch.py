"""The process with torch that rank starters are forked from does less work, by settings that exist."""

from __future__ import annotations

import pytest

from tests.imported_torch import set_less_work


def test_a_setting_that_no_module_has_any_more_is_an_error() -> None:
    with pytest.raises(AssertionError, match=r"tests\.narrowed has no _ROUNDS_MAX"):
        set_less_work([("tests.narrowed", "_ROUNDS_MAX", 1)])

"""What may be loaded, by the options of a check; and the measurements if nothing is loaded.

Every check reads this module; only one that puts load on a node reads the others here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from gpudoctor.errors import UserError
from gpudoctor.facts.model.measurements import PROBES, Measurements
from gpudoctor.facts.model.missing import Missing
from gpudoctor.lazy import lazy_pattern

Backend = Literal["nccl", "gloo"]
# the check that needs a framework -> its name in Measurements and their not_run
FRAMEWORKS = {"env.frameworks": "frameworks", "strategy.deepspeed": "deepspeed", "strategy.tensorflow": "tensorflow"}
MAX_PATHS = 32  # each costs a thread of the process that checks them, and seconds at level full
_RATE = lazy_pattern(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*([kMGT]i?)?B/s\s*", re.IGNORECASE)
_BITS = lazy_pattern(r"\d\s*[KMGT]i?b/s|bit|bps")  # an eighth of as many bytes
_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_MOST_GB_S = 1e4


class LoadRequest(msgspec.Struct, frozen=True):
    """What may be loaded and how, from the options of the same names.

    `data` are absolute paths to read data from, empty if the user named none; `need_gb_s` is the rate that
    each GPU must be fed at.
    """

    backend: Backend | Literal["auto"] = "auto"
    gpu: str | None = None
    ranks: int | None = None
    inject: tuple[str, ...] = ()
    force: bool = False
    data: tuple[str, ...] = ()
    need_gb_s: float | None = None


def absolute_paths(paths: Sequence[str]) -> tuple[str, ...]:
    """The distinct absolute paths, without accessing the file system. Raise UserError."""
    made: dict[str, None] = {}
    for path in paths:
        if not path or "\0" in path:
            raise UserError(f"--data {path!r}: a path is wanted")
        try:
            made[os.path.abspath(os.path.expanduser(path))] = None  # noqa: PTH100, PTH111 - no access to the path
        except OSError:
            raise UserError(f"--data {path}: the working directory is gone; name an absolute path") from None
    if len(made) > MAX_PATHS:
        raise UserError(f"--data: {len(made)} paths; at most {MAX_PATHS} are wanted")
    return tuple(made)


def need_gb_s(text: str) -> float:
    """A rate such as 400MB/s in GB/s; raise UserError. Units are decimal (MB) or binary (MiB), not bits (Mb).

    >>> need_gb_s("400MB/s"), need_gb_s("1.5 GB/s")
    (0.4, 1.5)
    """
    if _BITS.search(text):
        raise UserError(f"--need {text[:60]!r}: b stands for bits; a rate in bytes is wanted, such as 400MB/s")
    match = _RATE.fullmatch(text)
    rate_gb_s = float(match[1]) * _FACTORS[(match[2] or "").lower()] / 1e9 if match else 0.0
    if not 0 < rate_gb_s <= _MOST_GB_S:
        raise UserError(f"--need {text[:60]!r}: a rate a GPU is wanted, such as 400MB/s or 1.5GB/s")
    return rate_gb_s


def not_run(why: Missing) -> Measurements:
    """Measurements without any probe, with the reason for each."""
    # drop the hint at CPU ranks: they cannot show which GPUs a framework sees
    of_gpus = Missing(why.reason.partition("; --backend gloo")[0], why.kind)
    names = (*PROBES, "torch", *FRAMEWORKS.values())
    return Measurements(not_run=dict.fromkeys(names, why) | {"frameworks": of_gpus})

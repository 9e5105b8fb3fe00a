"""gpudoctor: is this multi-GPU node fit to train on, and if not, which part is at fault?

`docs/python-api.md` describes the public API. Importing this package imports nothing else: each name is resolved on
first use.
"""

__version__ = "0.1.0"

__all__ = [
    "CheckRequest",
    "Fault",
    "Measurements",
    "Node",
    "NotFitError",
    "Report",
    "Sourced",
    "UserError",
    "check",
    "judge",
    "load_node",
    "load_source",
    "preflight",
    "run_check",
]

TYPE_CHECKING = False  # type checkers treat it as typing's; importing typing would cost more than this whole module
if TYPE_CHECKING:
    from gpudoctor.api.functions import check, judge, load_node, load_source, preflight, run_check
    from gpudoctor.api.local_verdict import NotFitError
    from gpudoctor.api.node_check import CheckRequest, Sourced
    from gpudoctor.checks.core.faults import Fault
    from gpudoctor.errors import UserError
    from gpudoctor.facts.model.measurements import Measurements
    from gpudoctor.facts.model.node import Node
    from gpudoctor.report.model import Report

_MODULES = {
    "CheckRequest": "gpudoctor.api.node_check",
    "Fault": "gpudoctor.checks.core.faults",
    "Measurements": "gpudoctor.facts.model.measurements",
    "Node": "gpudoctor.facts.model.node",
    "NotFitError": "gpudoctor.api.local_verdict",
    "Report": "gpudoctor.report.model",
    "Sourced": "gpudoctor.api.node_check",
    "UserError": "gpudoctor.errors",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'gpudoctor' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_MODULES.get(name, "gpudoctor.api.functions")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

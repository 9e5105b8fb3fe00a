"""driver.version-match: do the driver's kernel module and user library have the same version?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.explains import VIEWS, Explains
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, fail, ok, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.core.unread import unread
from gpudoctor.checks.driver.loaded import INIT_UNKNOWN, INIT_VERSION_MISMATCH, init_evidence
from gpudoctor.facts.model.driver import ApiMismatch
from gpudoctor.facts.model.missing import Missing, known

_WITHOUT_AN_ANSWER = (INIT_VERSION_MISMATCH, INIT_UNKNOWN)


@check(
    "driver.version-match",
    title="The driver's kernel module and user library are the same version",
    needs_gpu=False,
    explains=(
        Explains(("driver.*", "gpu.count", "gpu.lost", *VIEWS), anywhere=True),
        Explains(("gpu.*",), anywhere=True, gaps=True),
    ),
)
def version_match(case: Case) -> Iterator[Finding]:
    """Fail if NVML itself refuses with error 18, or if the two versions differ."""
    driver = case.node.driver
    module, library = known(driver.module_version), known(driver.library_version)
    refused = _refused_by_module(case)
    if refused:
        module, library = module or known(refused.module), library or known(refused.library)
    evidence = (
        Evidence("kernel module", module or "not read"),
        Evidence("user library", library or "not read"),
        init_evidence(case),
    )
    differ = module.strip() != library.strip() if module and library else refused is not None
    if driver.init_code == INIT_VERSION_MISMATCH or differ:
        yield fail(
            NODE,
            f"kernel module {module or 'of another version'}, user library {library or 'of another version'}",
            Expected(f"both {module}" if module else "the same version", "==", module, source="the loaded module"),
            *evidence,
            likely="the driver package was updated while the old kernel module was loaded",
            advice=[
                "Drain the node: no new CUDA program can start here.",
                Advice("Reboot; or end everything that uses the GPUs and reload the module.", "reboot"),
                "In a container: the library in the image hides the host's; remove it from the image.",
            ],
        )
    elif module and library:
        yield ok(NODE, f"both {module}", None, *evidence)
    elif module and (on_disk := known(driver.disk_version)) and on_disk.strip() != module.strip():
        yield _updated_on_disk(module, on_disk, evidence)
    elif isinstance(driver.module_version, Missing):
        yield unread(NODE, "kernel module version", driver.module_version)
    elif isinstance(driver.library_version, Missing):
        yield unread(NODE, "user library version", driver.library_version)


def _refused_by_module(case: Case) -> ApiMismatch | None:
    """The versions in the log; any program may send the module one, so only if the library itself gave no result."""
    code = case.node.driver.init_code
    answered = not isinstance(code, Missing) and code not in _WITHOUT_AN_ANSWER
    return None if answered else case.node.kernel_log.api_mismatch


def _updated_on_disk(module: str, on_disk: str, evidence: Iterable[Evidence]) -> Finding:
    return warn(
        NODE,
        f"kernel module {module} is loaded, and {on_disk} lies on the disk",
        Expected(f"both {module}", "==", module, source="the loaded module"),
        *evidence,
        Evidence("modinfo nvidia", on_disk),
        likely="the driver package was updated since the module was loaded, the user library with it",
        advice=["Drain the node and reboot it, or reload the module."],
    )

"""The outcome of a probe: why it has no figures, and what its problems say of the node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.finding import Advice, Evidence, Finding, Found, fail, skip, unknown
from gpudoctor.checks.core.gpu_use import UNSEEN_MIB, use_of_gpu
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.core.unread import unread
from gpudoctor.checks.measured.ranks import on_gpus, rank_gpu, rank_subject
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.measurements import ProbeProblem, Training
from gpudoctor.facts.model.missing import Missing, known

NOT_MEASURED = "not measured in this run"
SYNC = "train.sync"  # the check that judges the outcome of the DDP train
# importing torch from a cold network disk can take minutes, which is no GPU's fault
_BEFORE_ANY_GPU = ("start", "import torch")
_LOOK_AT_GPUS = (
    Advice("Look for Xid and bus errors of the time.", "gpudoctor check gpu.xid gpu.lost pcie nvlink"),
    Advice("See what NCCL says.", "NCCL_DEBUG=INFO gpudoctor check collective"),
)
_LOOK_AT_HOST = (
    Advice("See whether the kernel ended it for want of memory.", "dmesg | grep -i -e oom -e killed"),
    Advice("Run it again while the machine is quiet.", "gpudoctor check collective train --backend gloo"),
)
_TrainingJudge = Callable[[Case, Training], Iterator[Finding]]


def problems_of(case: Case, probe: str) -> tuple[ProbeProblem, ...]:
    """What went wrong in the probe itself or in the launch of its ranks."""
    return tuple(p for p in case.measurements.problems if p.probe in (probe, "launch"))


def absent(case: Case, probe: str, what: str) -> Finding:
    """The finding for missing figures: the reason given for the probe or for torch, else that it was not requested."""
    for name in (probe, "torch"):
        missing = case.measurements.not_run.get(name)
        if missing is not None:
            return unread(NODE, what, missing)
    return skip(NODE, f"{what}: {NOT_MEASURED}")


def judged_problems(case: Case, probe: str) -> Iterator[Finding]:
    """One finding per problem, for the check that answers whether the probe worked.

    - A rank that crashed, or hung while others waited for it: `fail`, since a training would meet the same.
    - A rank that was killed (SIGKILL, SIGTERM): `unknown`, as for want of memory in the job's cgroup, or by a person.
    - A rank that ran out of memory: `fail`, since the probes need little; `unknown` if others hold the memory.
    - CPU ranks that are all slow together, and errors that torch raised itself: `unknown`, no part is convicted.
    - A GPU that refuses processes: `skip` if its compute mode forbids them, `unknown` if another program uses it or
      the mode is not known, otherwise `fail`: CUDA refuses broken GPUs with the same message (TensorRT issue 3822).
    """
    for problem in problems_of(case, probe):
        yield _judged(case, problem)


def not_judged(case: Case, probe: str, what: str, reported_by: str, *, measured: bool = True) -> Iterator[Finding]:
    """For the other checks of the probe: what each problem leaves open, else that nothing was `measured`.

    `reported_by` is the check that has the details.
    """
    for problem in problems_of(case, probe):
        yield left_open(case, problem, what, f"not measured, {problem.text} (see {reported_by})")
    if not measured and not problems_of(case, probe):
        yield absent(case, probe, what)


def judges_training(what: str) -> Callable[[_TrainingJudge], Callable[[Case], Iterator[Finding]]]:
    """Turn a function that judges the DDP train into a check; `what` is its subject in texts.

    The check reports a missing train and each of its problems, with details left to train.sync.
    """

    def check_of(judge: _TrainingJudge) -> Callable[[Case], Iterator[Finding]]:
        @wraps(judge)
        def check_training(case: Case) -> Iterator[Finding]:
            training = case.measurements.training
            yield from not_judged(case, "train", what, SYNC, measured=training is not None)
            if training is not None:
                yield from judge(case, training)

        return check_training

    return check_of


def left_open(case: Case, problem: ProbeProblem, what: str, why: str) -> Finding:
    """`unknown`, because of a problem; a skip if a setting keeps processes off the rank's GPU."""
    subject = rank_subject(case, problem.rank)
    if (mode := _closed_by(case, problem)) is not None:
        return skip(subject, f"{what}: {problem.text}: {mode}")
    return unknown(subject, f"{what}: {why}")


def without_figures(case: Case, probe: str, measured: Iterable[int], what: str) -> Iterator[Finding]:
    """Yield an `unknown` for each rank without figures, unless a problem of the probe gives the reason."""
    launch, have = case.measurements.launch, set(measured)
    if launch is None or problems_of(case, probe):
        return
    for rank in range(launch.world_size):
        if rank not in have:
            yield unknown(rank_subject(case, rank), f"{what}: this rank brought no figures")


def judged_outcome(case: Case, probe: str, what: str, *, measured: bool) -> Iterator[Finding]:
    """For the check that answers whether the probe worked: each problem, else why nothing was `measured`."""
    yield from judged_problems(case, probe)
    if not measured and not problems_of(case, probe):
        yield absent(case, probe, what)


def _judged(case: Case, problem: ProbeProblem) -> Finding:
    subject = rank_subject(case, problem.rank)
    who = "the launch" if problem.rank is None else f"rank {problem.rank}"
    text = problem.text
    evidence = tuple(Evidence(f"stderr of {who}", line) for line in problem.output)
    if problem.kind == "refused":
        return _refused(case, problem, evidence)
    if problem.kind == "out-of-memory":
        return _out_of_memory(case, problem, evidence)
    look: tuple[Advice, ...] = _LOOK_AT_GPUS if on_gpus(case) else _LOOK_AT_HOST
    if text.startswith("interrupted by "):  # by who started the check
        look = ()
    no_gpu_yet = problem.kind == "timeout" and problem.phase in _BEFORE_ANY_GPU
    if problem.kind == "error" or no_gpu_yet or (problem.rank is None and not on_gpus(case)):
        return unknown(subject, text, *evidence, advice=look)
    hung = problem.kind == "timeout"
    return fail(
        subject,
        Found(text, problem.kind),
        "every rank comes back in time" if hung else "every rank ends by itself",
        *evidence,
        likely=_likely(case, hung),
        advice=look,
    )


def _closed_by(case: Case, problem: ProbeProblem) -> str | None:
    """Text for the setting that keeps processes off the rank's GPU; None if no setting does."""
    gpu = rank_gpu(case, problem.rank) if problem.kind == "refused" else None
    return mode_that_closes(gpu) if gpu else None


def mode_that_closes(gpu: Gpu) -> str | None:
    """Text for a compute mode that limits the GPU to one process or none; None if it accepts any number."""
    mode = known(gpu.settings.compute_mode)
    return None if mode in (None, "default") else f"its compute mode is {mode}"


def _refused(case: Case, problem: ProbeProblem, evidence: tuple[Evidence, ...]) -> Finding:
    subject, gpu = rank_subject(case, problem.rank), rank_gpu(case, problem.rank)
    if (mode := _closed_by(case, problem)) is not None:
        return skip(subject, f"{problem.text}: {mode}")
    if gpu is None or isinstance(gpu.settings.compute_mode, Missing):
        return unknown(subject, f"{problem.text}; its compute mode is not known", *evidence, advice=_LOOK_AT_GPUS)
    if problem.probe != "launch":  # the rank had opened its own GPU by then; the probes open other ranks' GPUs too
        return unknown(subject, problem.text, *evidence, advice=_LOOK_AT_GPUS)
    if (use := _use_in_words(gpu)) is not None:
        return unknown(subject, f"{problem.text}; {use}", *evidence, advice=_LOOK_AT_GPUS)
    return fail(
        subject,
        Found(problem.text, problem.kind),
        "a process may use it: its compute mode is default, and nobody was seen on it",
        *evidence,
        likely="the GPU or its driver is in a state that only a reset, or a repair, ends",
        advice=(
            Advice("Look for Xid errors of the time.", "gpudoctor check gpu.xid gpu.lost gpu.ecc"),
            Advice("Reset it while it is idle, and try again.", f"nvidia-smi --gpu-reset -i {gpu.smi_id}"),
        ),
    )


def _use_in_words(gpu: Gpu) -> str | None:
    """Text for other users of the GPU's memory according to the facts; None if none were seen."""
    use = use_of_gpu(gpu)
    if use.others:
        return f"pid {use.others[0].pid} uses the GPU"
    return use.unseen if (use.unlisted_mib or 0) > UNSEEN_MIB else None


def _out_of_memory(case: Case, problem: ProbeProblem, evidence: tuple[Evidence, ...]) -> Finding:
    subject, on_gpu = rank_subject(case, problem.rank), on_gpus(case) and "the host" not in problem.text
    gpu = rank_gpu(case, problem.rank) if on_gpu else None
    if gpu is not None and (use := _use_in_words(gpu)) is not None:  # a busy GPU, tested because of --force
        return unknown(subject, f"{problem.text}; {use}", *evidence, advice=_LOOK_AT_GPUS)
    holder = "nvidia-smi --query-compute-apps=pid,used_memory --format=csv" if on_gpu else "ps aux --sort=-rss | head"
    return fail(
        subject,
        Found(problem.text, problem.kind),
        "memory for a train that needs little of it",
        *evidence,
        likely="memory that was not given back by a process that ended, or a GPU too small to train on"
        if on_gpu
        else "other processes fill the memory of the host, or the job's limit is too low",
        advice=(Advice("See what holds the memory.", holder),),
    )


def _likely(case: Case, hung: bool) -> str:
    if not on_gpus(case):
        return "the host: memory, CPUs, or the installation of torch (no GPU took part)"
    if hung:
        return "a GPU, link or driver that does not answer; or IOMMU/ACS in the way of peer-to-peer"
    return "the GPU or its driver took the process down"

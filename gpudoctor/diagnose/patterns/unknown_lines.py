"""Lines that no table knows: which of them look like errors, which are only information, which come from a job at all."""

from __future__ import annotations

import re

# what looks like an error in a line that nothing else recognises
_LOUD = re.compile(
    r"(?i)(?<![\w-])(?:error|exception|fatal|panic|crashed|aborted|core dumped|segmentation fault)(?![\w=-])"
    r"|\b\w+(?-i:Error|Exception): |\bfailed\b|\bfailure\b|\bconnection refused\b|\bpermission denied\b|\bno route to host\b|\bnot reachable\b"
    r"|\bcannot (?:open|connect|allocate)\b|\bcommand not found\b|(?-i:\b(?:Killed|KILLED|ABORT(?:ING)?|Aborting)\b)"
)
# a logger's mark, a second try, a count of none, a metric ("validation error 0.31"), code, a tracker of experiments
_NOT_LOUD = re.compile(
    r"(?-i:\b(?:INFO|Info|WARN(?:ING)?|Warning|DEBUG|TRACE|NOTICE)\b|Warning:)|level=(?:info|warn|debug)|\b(?:retry|retrying|retries|ignor(?:ed|ing))\b"
    r"|\b(?:no|0|zero|without|any) (?:\w+ )?(?:errors?|exceptions?|failures?)\b|\bfailed\b(?: \w+){0,2}\s?[:=]?\s?0\b"
    # prose: "I constantly see this error"
    r"|^(?!\W{0,3}(?:fatal|error)|\s*\[).{0,200}?\bi (?:\w{2,12} )?(?:see|saw|get|got|have|had|am|was|tried|try|run|ran|use|think|found|keep)\b"
    r"|\berror(?: rate)?\s?[:=]?\s?\d+\.\d|^\s*(?:except|raise|def|class|if|return|import|from|#)\b|^wandb: ",
    re.IGNORECASE,
)
# a level that says enough
_LOUD_LEVEL = re.compile(r".{0,60}?\b(?:CRITICAL|FATAL)\b")
# lines that only a job, what starts it or the machine below it prints
_OF_A_JOB = re.compile(
    r"NCCL (?:INFO|WARN|version)|torch[./]distributed|torchelastic|ProcessGroup(?:NCCL|Gloo)|\[c10d\]|OMP_NUM_THREADS environment"
    r"|\[(?:rank|default)\d+\]:|\[\d+,\d+\]<std(?:out|err)>|\[(?:INFO|WARNING|ERROR)\] \[\w+\.py:\d+:\w+\]|(?i:deepspeed)[\w.]*[:\]]"
    r"|\b(?:srun|sbatch|salloc|slurmstepd[\w.-]*|mpirun|prterun|torchrun): |\bJobId=\d|(?i:\bworld[ _]size\b)|submitit (?:INFO|WARNING|ERROR)|\((?:raylet|\w+ pid=\d+|\w+ rank=\d+ pid=\d+)"
    r"|tensorflow/(?:core|compiler|stream_executor)/|(?:external/)?xla/\S+:\d+\]|jaxlib\.|(?:GPU|TPU) available: (?:True|False)|LOCAL_RANK: \d+ - CUDA_VISIBLE"
    r"|\*{5} Running training|\bNum (?:examples|Epochs) = \d|(?i:\b(?:accuracy|samples/s\w*|tokens/s\w*)\b[\"']?\s?[:=]\s?\d)|\[batch=\d+/\d+\]|# Avg bus bandwidth|# +(?:nThread|Using devices|Rank +\d)"
    r"|\b\d+ +\d+ +(?:float|half|double|bfloat16|u?int\d+|fp8\w*) +(?:none|sum|prod|max|min|avg)\b"
    r"|(?:INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d \[?\w+\.py:\d+\]| \d+/\d+ +(?:Running|Pending|Completed|CrashLoopBackOff|Error|OOMKilled|Init:\S+|ContainerCreating) +\d|\bNVRM: |(?:level=info|INFO).{0,200}\b(?i:cuda|gpu|nccl|rank)\b"
)
# with or without the prefix of a journal; dmesg -T
OF_A_KERNEL = re.compile(
    r"^\[ *\d{1,8}\.\d{6}\] |^\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\] |\bkernel: "
)
# a bar of tqdm, a loss: work goes on, at a step that is not known
WORK = re.compile(r"\d%\|.{0,200}\| *\d+/\d+ \[|(?i:\b(?:\w+_)?(?:loss|grad_norm|accuracy)\b[\"']?\s?[:=]?\s?-?\d)")

# Lines with words of failure that report none. Sources: NCCL's src/plugin and src/misc (information about optional
# parts), torch's warnings at a clean end, Ray
_HARMLESS = re.compile(
    r"NET/Plugin ?: |Plugin load|Could not find: ?lib|Failed to find nccl\w+Plugin|Failed to find CUDA library"
    r"|Failed to find \w+Plugin|NET/IB : No device found|Failed to open libibverbs|NVLS multicast support is not available"
    r"|P2P plugin |fabric UUID 0\.0|Could not find real path of /sys/class/net|destroy_process_group\(\) was not called"
    r"|process group has NOT been destroyed|Guessing device ID|OMP_NUM_THREADS|leaked (?:semaphore|shared_memory) objects"
    r"|Missing hostname|CXI Service ID|FI_HMEM|PlacementGroupCleaner|TUNER/Plugin|PROFILER/Plugin|No plugin found"
    r"|NET/IB ?: .{0,80}async (?:\w+ )?event ?: ?(?!.{0,60}(?:error|fatal))"
    r"|switch_g_job_postfini|Graceful shutdown of backend failed|TORCH_NCCL_\w+ is deprecated|libibverbs: Warning"
    r"|DeprecationWarning|FutureWarning|UserWarning: (?!CUDA init|.{0,80}is not compatible with the current)"
)


def is_harmless(text: str) -> bool:
    """Whether the line is only information."""
    return _HARMLESS.search(text) is not None


def is_loud(text: str, raw: str = "") -> bool:
    """Whether the line looks like an error, and nothing in it says that it is none; `raw`: with its prefixes.

    >>> is_loud("fatal: the flux capacitor is empty"), is_loud("validation error 0.31, failed samples: 0")
    (True, False)
    """
    loud = _LOUD.search(text) or _LOUD_LEVEL.match(raw or text)
    return loud is not None and _NOT_LOUD.search(raw or text) is None


def is_of_a_job(text: str) -> bool:
    """Whether only a job, its launcher, a benchmark of GPUs or a kernel prints such a line.

    >>> is_of_a_job("gpu01:77:78 [0] NCCL INFO Using network IB"), is_of_a_job("I would like to train on GPUs")
    (True, False)
    """
    return (_OF_A_JOB.search(text) or WORK.search(text) or OF_A_KERNEL.search(text)) is not None

"""Words of tools that name a cause, one line each: a row of the tables that goes takes its cause with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.diagnose.asking import answer_to, said

PHRASES = (
    (
        "bootstrap_no_interface",
        "n1:12:34 [0] misc/socket.cc:77 NCCL WARN Address family 59936 is neither AF_INET nor AF_INET6",
    ),
    ("cancelled", "Job deleted at request of root@adm1"),
    ("container_failed", "FATAL:   Unable to open image.sif: no such file or directory"),
    ("container_failed", "OCI runtime exec failed: exec failed: unable to start container process"),
    (
        "container_failed",
        'docker: OCI runtime create failed: container_linux.go:380: starting container process caused: exec: "train": executable file not found',
    ),
    ("container_failed", "slurmstepd: error: pyxis: couldn't start container"),
    ("container_failed", "slurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1"),
    ("duplicate_rank", "n1:12:34 [0] bootstrap.cc:77 NCCL WARN Invalid rank requested : 9/8"),
    (
        "efa_not_found",
        "libfabric:1:core:core:ofi_layering_ok():1001<warn> provider efa output empty list\nn1:1:1 [0] NCCL INFO NET/OFI x",
    ),
    (
        "ib_qp_setup_failed",
        "n1:12:34 [0] misc/ibvwrap.cc:77 NCCL WARN Call to ibv_create_qp failed with error No space left",
    ),
    (
        "import_error",
        "python: error while loading shared libraries: libpython3.11.so.1.0: cannot open shared object file: No such file or directory",
    ),
    ("launch_failed", "srun: error: Application launch failed: Invalid job credential"),
    ("launch_failed", "srun: error: Unable to create step for job 77: Requested node configuration is not available"),
    ("launch_failed", "srun: fatal: Can not execute train.py"),
    ("launch_failed", "train.sh: line 3: torchrun: command not found"),
    ("nan", "AssertionError: Rank 3, iteration 12: Unexpected result nan. found NaN in local grad norm"),
    ("nccl_size_mismatch", "n1:12:34 [0] x.cc:77 NCCL WARN Mismatched collective on rank 3"),
    ("nccl_topology", "n1:12:34 [0] graph/paths.cc:77 NCCL WARN Could not find a path for pattern 4, falling back"),
    (
        "nccl_topology",
        "n1:12:34 [0] graph/xml.cc:77 NCCL WARN Could not open XML topology file /x.xml : No such file or directory",
    ),
    ("shm_too_small", "n1:12:34 [0] misc/shmutils.cc:77 NCCL WARN Error: posix_fallocate failed : Interrupted"),
    (
        "terminated_signal",
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    train()\nKeyboardInterrupt',
    ),
    (
        "user_exception",
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.",
    ),
    (
        "victims_only",
        '[rank3]:[W ProcessGroupNCCL.cpp:1] Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early)',
    ),
    ("victims_only", "n1:12:34 [0] misc/socket.cc:77 NCCL WARN Socket recv failed while polling for opId=1"),
    (
        "victims_only",
        "n1:12:34 [0] proxy.cc:77 NCCL WARN [Proxy Service 3] Failed to execute operation Connect from rank 3, retcode 3",
    ),
)


@pytest.mark.parametrize(("what", "line"), PHRASES)
def test_a_line_of_a_tool_names_its_cause(what: str, line: str, tmp_path: Path) -> None:
    assert said(answer_to(f"{line}\n", tmp_path))[0] == what

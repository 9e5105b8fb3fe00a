"""`python -m acceptance` as an operator sees it, with a simulated driver and nvidia-smi."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpudoctor.facts.simulated.load import load_node
from tests.acceptance.conftest import Accept, Begin, Ran
from tests.needs import needs
from tests.subprocesses import completed

SHORT = ("--backend", "gloo", "--repeats", "2")
GPU_7 = "0000:cb:00.0"


def only(*steps: str) -> list[str]:
    return [*SHORT, *(word for step in steps for word in ("--only", step))]


def members(archive: Path) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(archive.read_bytes()))) as tar:
        return {Path(entry.name).name: tar.extractfile(entry).read() for entry in tar.getmembers()}  # type: ignore[union-attr]


def told(ran: Ran) -> dict[str, Any]:
    """acceptance.json, its steps by name."""
    document: dict[str, Any] = json.loads(members(ran.archive)["acceptance.json"])
    return {**document, "steps": {step["step"]: step for step in document["steps"]}}


def texts(ran: Ran, step: str, outcome: str) -> list[str]:
    return [item["text"] for item in told(ran)["steps"][step]["items"] if item["outcome"] == outcome]


@pytest.mark.wide
def test_without_a_gpu_it_ends_green_and_lists_what_it_could_not_look_at(accept: Accept) -> None:
    steps = ("driver", "quick", "facts", "standard", "rates", "all-reduce", "under-load", "interrupt", "left-behind")
    ran = accept(*only(*steps), smi=False)
    assert (ran.code, ran.err.count("\n")) == (0, 1), ran.out + ran.err
    outcomes = {name: step["outcome"] for name, step in told(ran)["steps"].items()}
    # on a busy machine the ranks may be too noisy to judge
    assert outcomes.pop("standard") in ("agreed", "could not look")
    assert {name for name, outcome in outcomes.items() if outcome == "agreed"} == {
        *("driver", "quick", "under-load", "interrupt", "left-behind")
    }
    assert {name for name, outcome in outcomes.items() if outcome == "could not look"} == {
        *("facts", "rates", "all-reduce")
    }
    assert "SIMULATED" in ran.out
    assert "it ran on 2 CPU ranks" in ran.out
    assert "TFLOP/s" not in ran.out  # a CPU's figure would pass for a GPU's
    *summary, path = ran.out.splitlines()
    assert path == str(ran.archive)  # as long as it has to be
    assert max(map(len, summary)) <= 80
    assert list(ran.temporary.iterdir()) == []
    again = completed([sys.executable, "-m", "gpudoctor", "check", "--node", str(ran.archive), "--json"])
    report = json.loads(again.stdout)
    # judging again gives the same: unknown if the ranks were too noisy
    noisy = texts(ran, "standard", "could not look")[:-1]
    assert (again.returncode, report["simulated"], len(report["gpus"])) == (3 if noisy else 0, True, 8), noisy
    assert report["measurements"]["launch"]["world_size"] == 2  # of its standard check, judged again


@pytest.mark.wide
def test_facts_that_nvidia_smi_tells_the_same_way_agree(accept: Accept) -> None:
    ran = accept(*only("facts"))
    assert ran.code == 0, ran.out
    assert texts(ran, "facts", "agreed")[0].startswith("128 values of 8 GPUs are the same")
    assert "nvidia-smi.xml" in members(ran.archive)


@pytest.mark.wide
@pytest.mark.parametrize("name", ["qx-h100.xml", "qx-t4.xml"])
def test_a_real_dump_agrees_with_what_the_live_readers_make_of_its_driver(
    accept: Accept, captures: Path, name: str
) -> None:
    """An 8 x H100 and a T4 node: the dump's parser and the NVML readers yield the same facts."""
    dump = str(captures / name)
    ran = accept(*only("facts"), node=dump, env={"FAKE_SMI_XML": dump})
    assert ran.code == 0, ran.out
    assert int(texts(ran, "facts", "agreed")[0].split()[0]) >= 90


@pytest.mark.wide
def test_each_value_that_nvidia_smi_tells_differently_is_named(accept: Accept) -> None:
    lies = {
        "default_power_limit=650.00 W": "power.default_limit_w: gpudoctor 700.0, nvidia-smi 650.0",
        "current_ecc=N/A": "ecc.enabled: gpudoctor True, nvidia-smi none",
        "current_link_width=8x": "pcie.width: gpudoctor 16, nvidia-smi 8",
        "gpu_temp=93 C": "thermal.gpu_c: gpudoctor",
    }
    ran = accept(*only("facts"), env={"FAKE_SMI_LIE": ";".join(lies)})
    assert ran.code == 1
    said = texts(ran, "facts", "did not agree")
    assert len(said) == len(lies)
    for named in lies.values():
        assert [text.startswith("GPU 0 (0000:1b:00.0): ") for text in said if named in text] == [True], named


@pytest.mark.wide
def test_an_answer_of_nvidia_smi_that_is_no_xml_breaks_one_step_only(accept: Accept) -> None:
    ran = accept(*only("facts", "quick"), env={"FAKE_SMI_LIE": "serial=<broken"})
    assert ran.code == 1
    assert "is not to be read" in texts(ran, "facts", "did not agree")[0]
    assert told(ran)["steps"]["quick"]["outcome"] == "agreed"


@pytest.mark.wide
def test_a_broken_gpu_did_not_agree_and_is_named(accept: Accept) -> None:
    """A node with a lost GPU: the run reports it and ends as usual."""
    ran = accept(*only("quick"), faults=("gpu-lost@3",))
    assert ran.code == 1
    assert any(said.startswith("gpu.lost fail: GPU 3") for said in texts(ran, "quick", "did not agree"))


@pytest.mark.wide
def test_a_power_cap_is_named_and_taken_back(accept: Accept) -> None:
    ran = accept(*only("settings", "left-behind"))
    assert ran.code == 0, ran.out
    assert texts(ran, "settings", "agreed") == [
        f"a power cap of 560 W on GPU 7 ({GPU_7}) is named: gpu.power-limit warn"
    ]
    assert ran.set_to == [f"-i {GPU_7} -pl 560", f"-i {GPU_7} -pl 700"]
    assert "the settings of 8 GPUs are as before" in texts(ran, "left-behind", "agreed")


@pytest.mark.wide
@pytest.mark.parametrize(
    ("variable", "words", "is_denied"),
    [
        ("FAKE_SMI_DENY", "nvidia-smi said: Changing settings", True),  # without root
        ("FAKE_SMI_CANNOT", "is not supported for GPU", False),  # a cloud GPU: nvidia-smi says so and exits with 0
    ],
)
def test_settings_that_cannot_be_changed_are_not_looked_at_and_nothing_is_set(
    accept: Accept, variable: str, words: str, is_denied: bool
) -> None:
    ran = accept(*only("settings"), env={variable: "1"})
    assert (ran.code, ran.set_to) == (0, []), ran.out
    said, *_ = texts(ran, "settings", "could not look")
    assert words in said
    assert ("needs root; " in said) == (is_denied and os.geteuid() != 0)


@pytest.mark.wide
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, 137)])
def test_a_signal_while_a_power_cap_is_set_takes_it_back(begin: Begin, number: signal.Signals, code: int) -> None:
    process, ran = begin(*only("settings"))
    try:
        wait_for(lambda: len(ran.set_to) == 1)
        children = psutil.Process(process.pid).children()
        (own,) = (child for child in children if child.cmdline()[1:3] == ["-m", "acceptance"])
        family = own.children(recursive=True)
        own.send_signal(number)
        ran.out, ran.err = process.communicate(timeout=60)
        assert process.returncode == code
        wait_for(lambda: ran.set_to[1:] == [f"-i {GPU_7} -pl 700"])
        psutil.wait_procs(family, timeout=20)
        assert [child for child in family if child.is_running() and child.status() != psutil.STATUS_ZOMBIE] == []
        wait_for(lambda: not any(ran.temporary.glob("gpudoctor-acceptance-*")))
        assert ran.archive.exists() == (number != signal.SIGKILL)
        if ran.archive.exists():
            assert told(ran)["interrupted"] == number.name
            assert f"INTERRUPTED by {number.name}" in ran.out
    finally:
        process.kill()
        process.communicate()


@pytest.mark.wide
def test_a_process_that_is_left_is_named_and_ended(accept: Accept) -> None:
    ran = accept(*only("facts", "left-behind"), env={"FAKE_SMI_STRAY": "1"})
    assert ran.code == 1
    (said,) = texts(ran, "left-behind", "did not agree")
    pids = [int(word.strip("(),")) for word in said.split() if word.startswith("(")]
    assert said.startswith("processes are left: sleep (")
    assert not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids)


@pytest.mark.wide
def test_the_archive_names_neither_a_gpu_nor_a_serial_unless_it_is_asked_to(accept: Accept) -> None:
    gpu = load_node("hgx-h100-8").gpus[0]
    for options, kept in (((), False), (("--no-redact",), True)):
        ran = accept(*only("driver", "facts"), *options)
        whole = b"".join(members(ran.archive).values())
        assert (str(gpu.uuid).encode() in whole) is kept
        assert (b"<serial>0000000000001</serial>" in whole) is kept
        ran.archive.unlink()


def test_no_gpu_is_one_line_with_the_way_out(accept: Accept) -> None:
    ran = accept(*only("quick"), faults=("driver-not-loaded",))
    assert (ran.code, ran.out, ran.archive.exists()) == (2, "", False)
    assert ran.err.count("\n") == 2  # the fake driver's own line, and this one
    assert "make gpu-acceptance BACKEND=gloo" in ran.err


@pytest.mark.wide
def test_an_archive_that_is_there_already_is_not_replaced(accept: Accept, tmp_path: Path) -> None:
    (tmp_path / "acceptance.tar.gz").write_text("mine", encoding="utf-8")
    ran = accept(*only("quick"))
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 2)
    assert "acceptance.tar.gz: cannot write: there is one already" in ran.err
    assert ran.archive.read_text(encoding="utf-8") == "mine"


@pytest.mark.wide
@needs("prlimit")
def test_a_disk_that_fills_up_costs_the_archive_and_not_the_summary(accept: Accept) -> None:
    # a module that is compiled under such a limit would be cut off in __pycache__
    ran = accept(*only("driver"), before=("prlimit", "--fsize=20000", "env", "PYTHONDONTWRITEBYTECODE=1"))
    assert ran.code == 2
    assert ran.err.splitlines()[1:] == [f"gpudoctor: error: {ran.archive}: cannot write: File too large"]
    assert "AGREED: 1 steps agreed" in ran.out
    assert not ran.archive.exists()


@pytest.mark.wide(every=4)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--burn", "5x"), "--burn '5x': write it as"),
        (("--only", "quick", "--skip", "quick"), "leave no step to run"),
        (("--only", "nonsense"), "--only: 'nonsense' is none of driver"),
        (("--repeats", "0"), "'0': a number from 1 to 1000 is wanted"),
    ],
)
def test_a_wrong_option_is_exit_2_and_names_it(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    done = completed([sys.executable, "-m", "acceptance", "-o", str(tmp_path / "a.tar.gz"), *options])
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


def wait_for(happened: Any, limit_s: float = 60.0) -> None:
    """Until it happened: an event of another process that has nothing to wait on."""
    end_s = time.monotonic() + limit_s
    while not happened():
        assert time.monotonic() < end_s, "it did not happen"
        os.sched_yield()
        time.sleep(0.02)

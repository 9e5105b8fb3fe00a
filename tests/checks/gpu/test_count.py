"""gpu.count: PCI bus, driver and expectation agree."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.checks.core.case import Expect
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Driver, Environment, Node, PciBus, Variable
from gpudoctor.profiles.profile import NodeProfile, Profile
from gpudoctor.testing import load
from tests.checks.gpu_nodes import (
    FAILED,
    bad,
    bus_id,
    eight,
    findings,
    h100,
    job,
    node,
    only,
    pci,
    put,
    seven_of_eight,
    status,
    text,
    texts,
)
from tests.checks.one_check import finds
from tests.narrowed import present


def test_bus_and_driver_agree() -> None:
    assert texts(findings("gpu.count", eight())) == ["8 GPUs, as many as on the PCI bus"]


def test_a_gpu_that_the_driver_does_not_show_is_named_by_its_bus_id() -> None:
    finding = only("gpu.count", seven_of_eight())
    assert finding.status.value == "fail"
    assert finding.subject.bus_id == bus_id(5)
    assert "7 of 8" in text(finding)


@pytest.mark.parametrize(
    ("leaves", "reason"),
    [
        ({"host__container": "docker"}, "inside a container (docker)"),
        ({"host__virtualization": "container"}, "inside a container"),
        ({"environment": Environment((Variable("NVIDIA_VISIBLE_DEVICES", "0,1"),))}, "NVIDIA_VISIBLE_DEVICES=0,1"),
        ({"driver__handle_errors": ("GPU 5: insufficient permissions (4)",)}, "denies this process"),
    ],
)
def test_a_smaller_scope_is_said_and_not_failed(leaves: dict[str, Any], reason: str) -> None:
    [finding] = findings("gpu.count", seven_of_eight(**leaves))
    assert finding.status.value == "pass"
    assert reason in text(finding)


def test_a_denied_handle_excuses_its_own_gpu_and_no_other() -> None:
    # the driver counts 7 of 8 and denies one of these: the eighth is lost
    shown = tuple(h100(i) for i in range(6))
    bus = PciBus(nvidia_devices=tuple(pci(i) for i in range(8)))
    refused = ("index 6: insufficient permissions (4)",)
    subject = put(node(*shown, pci=bus), driver__device_count=7, driver__handle_errors=refused)
    finds(bad("gpu.count", subject), "fail", found="the driver shows 7 of the 8 GPUs that this process may see")
    seven = tuple(h100(i) for i in range(8) if i != 6)
    assert status("gpu.count", put(subject, gpus=seven, driver__device_count=8)) == "pass"


def test_a_drained_gpu_warns_and_is_not_called_gone() -> None:
    drained = seven_of_eight(driver__drained_gpus=(bus_id(5),))
    finding = only("gpu.count", drained, expect=Expect(gpus=8))
    assert (finding.status.value, finding.subject.bus_id) == ("warn", bus_id(5))
    assert "drained by an operator" in text(finding)
    assert only("gpu.count", seven_of_eight(driver__drained_gpus=())).status.value == "fail"


def test_all_gpus_asked_for_of_the_container_runtime_is_no_excuse() -> None:
    everything = Environment((Variable("NVIDIA_VISIBLE_DEVICES", "all"),))
    assert status("gpu.count", seven_of_eight(environment=everything)) == "fail"


def test_gpus_handed_to_virtual_machines_are_not_missing() -> None:
    for driver in ("vfio-pci", "nvgrace-gpu-vfio-pci", "pci-stub", "xen-pciback"):
        bus = PciBus(nvidia_devices=tuple(pci(i, driver if i == 5 else "nvidia") for i in range(8)))
        assert status("gpu.count", seven_of_eight(pci=bus)) == "pass"


def test_virtual_functions_of_a_vgpu_host_are_not_missing() -> None:
    host = h100(0, settings__virtualization="host-vgpu")
    function = put(pci(0, None), bus_id="0000:10:00.4")
    assert status("gpu.count", node(host, pci=PciBus(nvidia_devices=(pci(0), function)))) == "pass"
    # or by the bus, if the driver does not tell the mode
    silent = h100(0, settings__virtualization=FAILED)
    for is_one, expected in ((True, "pass"), (False, "fail")):
        bus = PciBus(nvidia_devices=(pci(0), put(function, driver="nvidia", virtual_function=is_one)))
        assert status("gpu.count", node(silent, pci=bus)) == expected


def test_an_unbound_gpu_of_another_model_may_be_too_old_for_the_driver() -> None:
    old = put(pci(5, None), device_id="0x1180")
    bus = PciBus(nvidia_devices=(*(pci(i) for i in range(8) if i != 5), old))
    assert status("gpu.count", seven_of_eight(pci=bus)) == "warn"
    same_model = PciBus(nvidia_devices=tuple(pci(i, None if i == 5 else "nvidia") for i in range(8)))
    assert status("gpu.count", seven_of_eight(pci=same_model)) == "fail"


def test_the_configured_number_is_expected_even_where_the_bus_agrees_with_the_driver() -> None:
    subject = node(*(h100(i) for i in range(7)))
    finding = only("gpu.count", subject, expect=Expect(gpus=8))
    assert finding.status.value == "fail"
    assert (present(finding.expected).value, present(finding.expected).source) == (8, "configuration")
    assert status("gpu.count", subject, expect=Expect(gpus=7)) == "pass"


def test_more_gpus_than_configured_only_warns() -> None:
    assert status("gpu.count", eight(), expect=Expect(gpus=4)) == "warn"


def test_the_profiles_number_is_expected_unless_a_container_narrows_the_view() -> None:
    profile = Profile("hgx-h100-8", "asked for", node=NodeProfile("hgx-h100-8", "HGX", "h100", 8))
    two = node(h100(0), h100(1))
    finding = only("gpu.count", two, profile=profile)
    assert present(finding.expected).source == "profile hgx-h100-8"
    assert status("gpu.count", put(two, host__container="docker"), profile=profile) == "pass"


def test_a_number_that_is_written_down_holds_in_a_container_that_was_given_all_gpus() -> None:
    seven = put(node(*(h100(index) for index in range(7))), host__container="docker")
    eight_wanted = Expect(gpus=8)
    assert status("gpu.count", seven, expect=eight_wanted) == "fail"
    some = put(seven, environment__variables=(Variable("NVIDIA_VISIBLE_DEVICES", "0,1,2,3,4,5,6"),))
    assert status("gpu.count", some, expect=eight_wanted) == "pass"
    every = put(seven, environment__variables=(Variable("NVIDIA_VISIBLE_DEVICES", "all"),))
    assert status("gpu.count", every, expect=eight_wanted) == "fail"
    assert status("gpu.count", put(seven, driver__handle_errors=("code 4",)), expect=eight_wanted) == "pass"


def others(first: int, last: int = 7) -> tuple[str, ...]:
    return tuple(bus_id(i) for i in range(first, last + 1))


NOT_KNOWN = Missing("/proc/driver/nvidia/gpus: not there")


@pytest.mark.parametrize(
    "subject",
    [
        job(2, others(2)),
        job(2, others(2), SLURM_JOB_GPUS="4,5"),
        job(2, NOT_KNOWN, SLURM_JOB_GPUS="4,5"),
        job(2, NOT_KNOWN, SLURM_STEP_GPUS="4-5", SLURM_JOB_GPUS="4-7"),
        job(2, NOT_KNOWN, SLURM_GPUS_ON_NODE="2"),
        job(1, NOT_KNOWN, SLURM_GPUS_ON_NODE="4", SLURM_GPUS_PER_TASK="h100:1"),
        job(1, NOT_KNOWN, SLURM_GPUS_ON_NODE="4", CUDA_VISIBLE_DEVICES="0"),
        # one of the others is unbound from the driver: no business of a job that has all that it was given
        job(2, others(3), SLURM_JOB_GPUS="0,1"),
    ],
)
def test_a_job_that_shows_what_it_was_given_misses_no_gpu(subject: Node) -> None:
    [finding] = findings("gpu.count", subject, expect=Expect(gpus=8))
    assert finding.status.value == "pass"
    assert "of the 8 on the PCI bus" in text(finding)


def test_a_gpu_of_the_job_that_fell_off_the_bus_is_named_among_those_of_other_jobs() -> None:
    lost = job(3, others(4), SLURM_JOB_GPUS="0-3", SLURM_GPUS_ON_NODE="4")
    finds(bad("gpu.count", lost), "fail", bus_id=bus_id(3))


def test_where_nothing_tells_which_gpu_of_the_job_is_gone_it_is_one_fault() -> None:
    bad_ones = bad("gpu.count", job(3, NOT_KNOWN, SLURM_JOB_GPUS="0-3"))
    finds(bad_ones, "fail", kind="node", found="the driver shows 3 of the 4 GPUs that Slurm gave this job")
    whole_node = only("gpu.count", job(7, NOT_KNOWN, SLURM_GPUS_ON_NODE="8"))
    assert whole_node.subject.bus_id == bus_id(7)


@pytest.mark.parametrize(
    "subject",
    [
        # all device files may be opened: the job is not confined
        job(7, (), SLURM_JOB_GPUS="0-6"),
        # a prolog sees all GPUs, whatever the job was given
        job(7, NOT_KNOWN, SLURM_JOB_GPUS="0,1"),
        job(7, NOT_KNOWN),
    ],
)
def test_a_job_excuses_no_gpu_that_it_does_not_hide(subject: Node) -> None:
    finds(bad("gpu.count", subject), "fail", bus_id=bus_id(7))


def test_slurm_counts_mig_instances_and_they_are_no_lost_gpus() -> None:
    mig = put(job(1, others(1), SLURM_JOB_GPUS="0,1,2"), gpus=(h100(0, settings__mig_enabled=True),))
    assert status("gpu.count", mig) == "pass"


def test_a_gpu_without_a_handle_is_left_to_gpu_lost() -> None:
    lost = put(job(1, others(2)), driver__device_count=2, driver__handle_errors=("index 1: GPU is lost (15)",))
    assert [f.status.value for f in findings("gpu.count", lost)] == ["unknown"]
    assert status("gpu.lost", lost) == "fail"


def test_a_loaded_driver_that_shows_no_gpu_fails() -> None:
    assert text(only("gpu.count", node())) == "the driver shows no GPU"


def test_a_driver_that_does_not_answer_is_left_to_the_driver_checks() -> None:
    assert status("gpu.count", Node(driver=Driver(init_code=9))) == "skip"
    assert status("gpu.count", Node(driver=Driver(init_code=0, device_count=FAILED))) == "unknown"


def test_without_a_bus_the_driver_alone_is_said_with_the_scope() -> None:
    subject = node(h100(0), pci=PciBus(), host__container="podman")
    assert texts(findings("gpu.count", subject)) == ["1 GPU, as seen inside a container (podman)"]
    assert texts(findings("gpu.count", node(h100(0), pci=PciBus()))) == ["1 GPU"]


def test_a_gpu_that_the_drivers_options_exclude_warns_and_is_not_called_gone() -> None:
    excluded = seven_of_eight(driver__excluded_gpus=(bus_id(5),))
    finding = only("gpu.count", excluded, expect=Expect(gpus=8))
    assert (finding.status.value, finding.subject.bus_id) == ("warn", bus_id(5))
    assert "excluded by the driver's options" in text(finding)
    assert status("gpu.count", put(excluded, driver__excluded_gpus=())) == "fail"


def test_a_drained_gpu_does_not_hide_that_another_one_is_gone() -> None:
    drained, gone = findings("gpu.count", load("hgx-h100-8", ["gpu-off-pci@2", "gpu-drained@5"]))
    assert (drained.status.value, gone.status.value) == ("warn", "fail")
    assert "module 3" in text(gone)
    assert "1 of them taken from use" in text(gone)

"""The table of data loaders."""

from __future__ import annotations

from gpudoctor.facts.model.measured_hardware import DataLoading, LoaderRates, LoaderStep
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing
from gpudoctor.report.text_figures import loading_lines


def test_each_number_of_workers_has_its_row_and_what_was_not_tried_has_no_figure() -> None:
    steps = (
        LoaderStep(0, LoaderRates(9541.3, 0.0984, 0.0457, 0.0077, Missing("/dev/shm cannot be read", "failed"))),
        LoaderStep(16, LoaderRates(123456.0, 12.3, 1.5, 2.5, 300 << 20)),
        LoaderStep(32, None, Missing("no room", "denied")),
    )
    loading = DataLoading("cuda", 8, 3845, 32, 10552.0, steps, paths=("/data",))
    assert loading_lines(Measurements(data_loading=loading)) == [
        "  data loader: batches of 32 samples of 10.3 KiB, 3845 files of --data",
        "    workers  samples/s    GB/s  slowest rank  first batch  shm, MiB",
        "          0       9541  0.0984        0.0457       7.7 ms         -",
        "         16     123456    12.3           1.5        2.5 s       300",
        "         32          -       -             -            -         -",
    ]
    assert loading_lines(Measurements()) == []

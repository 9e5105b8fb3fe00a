"""storage.read: does data arrive as fast as the GPUs consume it?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import of_path
from gpudoctor.checks.core.unread import unread
from gpudoctor.checks.measured.probe_outcome import absent
from gpudoctor.facts.model.measured_hardware import ReadPattern, StorageRate, StorageRead
from gpudoctor.facts.model.missing import Missing
from gpudoctor.text.units import figure_text, short_size, time_text

_SHARDS_MB_S = Limit(
    10,
    "MB/s a GPU",
    "token shards: a GPU that trains 100 000 tokens a second reads 0.4 MB/s of 4-byte tokens; 25 times that",
    name="warn_shards_mb_s",
    status="warn",
)
# ResNet-50 v1.5 on one A100 or H100: 2500 to 3000 images a second (NVIDIA's DeepLearningExamples, MLPerf Training);
# a JPEG of ImageNet-1k's training set has 110 KB (138 GB, 1.28 million files)
_IMAGENET_GB_S = 0.3
_HOW: dict[str, str] = {
    "direct": "O_DIRECT: past this machine's page cache",
    "dropped": "no O_DIRECT there: the page cache was dropped by posix_fadvise",
}
Best = dict[str, StorageRate | None]  # the best rate of each pattern of reading
_FIO = "fio --name=r --filename=FILE --readonly --direct=1 --rw=read --bs=1M --numjobs=4 --group_reporting"
_ADVICE = (
    Advice("Measure it with fio, on a file of the data set.", _FIO),
    Advice("Copy the data set to local NVMe, or pack small files into shards (WebDataset, Parquet)."),
)
_OWN_ADVICE = (Advice("Name what training reads.", "gpudoctor check storage.read --data PATH --need RATE"), *_ADVICE)


@check("storage.read", impact="costs", needs_gpu=False, limits=(_SHARDS_MB_S,))
def read(case: Case) -> Iterator[Finding]:
    """Fail if even the best way to read stays below --need; without --need, report what it is enough for."""
    if not case.measurements.storage:
        yield absent(case, "storage", "reading")
        return
    for each in case.measurements.storage:
        yield _judged(case, each)


def _judged(case: Case, each: StorageRead) -> Finding:
    best = {pattern: _best(each, pattern) for pattern in ("sequential", "random")}
    rates = [rate.gb_s for rate in best.values() if rate is not None]
    if each.failure is not None:
        return _not_read(each, each.failure)
    if len(rates) < len(best):
        return unknown(of_path(each.path), "reading: not every pattern was measured", *_evidence(each))
    if isinstance(each.cold, Missing) and each.cold.kind == "unsupported":
        return skip(of_path(each.path), f"{each.cold.reason}: {_rates_text(best)}, and no storage was read")
    return _compared(case, each, best, min(rates), max(rates))


def _not_read(each: StorageRead, failure: Missing) -> Finding:
    finding = unread(of_path(each.path), "reading", failure)
    # a path that the user named must be readable: an empty folder may be a data set that is not mounted
    if failure.kind in ("failed", "absent") and not each.own_file:
        return unknown(finding.subject, finding.reason or "", *_evidence(each))
    return finding


def _compared(case: Case, each: StorageRead, best: Best, low_gb_s: float, high_gb_s: float) -> Finding:
    """The verdict on the slower and the faster pattern of reading."""
    subject, evidence = of_path(each.path), _evidence(each)
    # a rate measured in TMPDIR is not the data set's: it never fails a node, and is judged for one GPU only
    gpus = 1 if each.own_file else max(len(case.compute_gpus), 1)
    own = "; a file written for it just now, so that the disk's own cache may have held it" if each.own_file else ""
    found = Found(f"{_rates_text(best)}{own}", round(low_gb_s, 4), "GB/s")
    expected, least_gb_s = _expected(case, gpus)
    advice = _OWN_ADVICE if each.own_file else _ADVICE
    is_needed = case.measurements.data_need_gb_s is not None and not each.own_file
    if is_needed and high_gb_s < least_gb_s:
        return fail(subject, found, expected, *evidence, likely="the GPUs wait for data", advice=advice)
    if low_gb_s < least_gb_s:
        slow = " and ".join(pattern for pattern, rate in best.items() if rate is not None and rate.gb_s < least_gb_s)
        likely = f"a training whose reads are {slow} waits for data"
        return warn(subject, found, expected, *evidence, likely=likely, advice=advice)
    if isinstance(each.cold, Missing):  # fast enough, unless it came from RAM
        text = f"{found.text}, perhaps from RAM: {each.cold.reason}"
        # TMPDIR was not requested: if its disk cannot be told from RAM, nothing that was asked is unknown
        return skip(subject, text) if each.own_file else unknown(subject, text, *evidence)
    return ok(subject, Found(f"{found.text}: {_means(low_gb_s, case)}", found.value, found.unit), expected, *evidence)


def _best(each: StorageRead, pattern: ReadPattern) -> StorageRate | None:
    """The rate of the best number of readers, which is the number of workers to use."""
    return max((rate for rate in each.rates if rate.pattern == pattern), key=lambda rate: rate.gb_s, default=None)


def _expected(case: Case, gpus: int) -> tuple[Expected, float]:
    """The rate that the node needs, as `Expected` and in GB/s."""
    need, many = case.measurements.data_need_gb_s, f"{gpus} GPU{'s' * (gpus > 1)}"
    if need is not None:
        expected = need * gpus
        text, source = f"{_gb_s(expected)}: --need {_gb_s(need)} a GPU x {many}", "--need"
    else:
        expected = case.limit(_SHARDS_MB_S) / 1e3 * gpus
        text = f"at least {_gb_s(expected)}, for {many} that read token shards; --need says what yours want"
        source = case.limit_source(_SHARDS_MB_S)
    return Expected(text, ">=", round(expected, 6), "GB/s", source), expected


def _rates_text(best: Best) -> str:
    return ", ".join(
        f"{pattern} {_gb_s(rate.gb_s)} ({rate.readers} reader{'s' * (rate.readers > 1)})"
        for pattern, rate in best.items()
        if rate is not None
    )


def _evidence(each: StorageRead) -> tuple[Evidence, ...]:
    rows: list[Evidence] = []
    for pattern in ("sequential", "random"):
        of_pattern = [rate for rate in each.rates if rate.pattern == pattern]
        if of_pattern:
            figures = ", ".join(
                f"{rate.readers}: {_gb_s(rate.gb_s)} (p99 {time_text(rate.p99_us)})" for rate in of_pattern
            )
            rows.append(Evidence(f"{pattern}, reads of {short_size(of_pattern[0].block_bytes)}, by readers", figures))
    if not isinstance(each.method, Missing):
        how = f"{_HOW[each.method]}; caches of servers and disks are not seen"
        rows.append(Evidence("how it was read", f"{how}; {each.files} file{'s' * (each.files != 1)}"))
    if not isinstance(each.cached_gb_s, Missing):
        rows.append(Evidence("from the page cache, by 1 reader", _gb_s(each.cached_gb_s)))
    if not isinstance(each.opens_per_s, Missing) and not isinstance(each.open_p99_us, Missing):
        rows.append(Evidence("opened and closed", f"{each.opens_per_s:.0f} files/s, p99 {time_text(each.open_p99_us)}"))
    lost = sum(rate.lost_reads for rate in each.rates)
    if lost:
        rows.append(Evidence("read nothing", f"{lost} reads, of files that vanished or were cut short meanwhile"))
    return (*rows, *(Evidence("left out", text) for text in each.left_out))


def _means(low_gb_s: float, case: Case) -> str:
    """How many GPUs the slower pattern feeds, as text."""
    shards = case.limit(_SHARDS_MB_S) / 1e3
    jpegs = f"{_count(low_gb_s / _IMAGENET_GB_S)} GPUs that train ResNet-50 on JPEGs ({_gb_s(_IMAGENET_GB_S)} each)"
    return f"feeds {jpegs}, {_count(low_gb_s / shards)} on token shards ({_gb_s(shards)})"


def _count(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{number:.1f}"


def _gb_s(rate_gb_s: float) -> str:
    return f"{figure_text(rate_gb_s)} GB/s" if rate_gb_s >= 0.995 else f"{figure_text(rate_gb_s * 1e3)} MB/s"

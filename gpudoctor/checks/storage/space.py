"""storage.space: is there room for checkpoints, caches and temporary files?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, unread, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.storage.mount import DATA, LOCAL, bytes_text, class_words, subject_of, used_for
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.storage import StorageMount
from gpudoctor.units import GIB, MIB

_OURS = "gpudoctor's own choice"
_FAIL_MIB = Limit(64, "MiB", f"{_OURS}: less is no room for a socket, a log and a compiled kernel", name="fail_mib")
_WARN_GIB = Limit(
    10, "GiB", f"{_OURS}: the weights of a model of 5 billion parameters in bf16, once", name="warn_gib", status="warn"
)
_WARN_PCT = Limit(
    10,
    "%",
    f"{_OURS}: most file systems place files badly when fuller; a small one that is empty is none",
    name="warn_pct",
)
_WARN_INODES = Limit(
    10_000, "inodes", f"{_OURS}: an unpacked environment with torch has 30 000 files", name="warn_inodes", status="warn"
)
# roles of places that were not chosen for writing: the user may be on a disk that is meant for something else
_NOT_CHOSEN = {"working directory", DATA}


@check(
    "storage.space",
    title="There is room for checkpoints, caches and temporary files",
    impact="costs",
    needs_gpu=False,
    limits=(_FAIL_MIB, _WARN_GIB, _WARN_PCT, _WARN_INODES),
)
def space(case: Case) -> Iterator[Finding]:
    """Fail if a local file system that is written to is full, warn if it nearly is; read-only use needs no room."""
    mounts = case.node.storage.mounts
    if isinstance(mounts, Missing):
        yield unread(NODE, "mounted file systems", mounts)
        return
    for mount in mounts:
        yield _judged(case, mount)


def _judged(case: Case, mount: StorageMount) -> Finding:
    subject = subject_of(mount)
    if isinstance(mount.error, str):
        return skip(subject, f"it answers {mount.error}: see storage.mount")
    written = [path for path in mount.paths if path.roles != (DATA,)]
    denied = [path.writable for path in written if isinstance(path.writable, Missing)]
    if written and denied:
        return unread(subject, "whether it may be written to", denied[0])
    if not any(path.writable is True for path in written):
        return skip(subject, f"used as {used_for(mount)}: nothing is written there, or may not be")
    total, free = mount.total_bytes, mount.free_bytes
    if isinstance(total, Missing):
        return unread(subject, "its size", total)
    if isinstance(free, Missing):
        return unread(subject, "its free space", free)
    least = case.limit(_WARN_GIB) * GIB
    share_pct = 100 * free / max(total, 1)
    found = Found(f"{bytes_text(free)} free of {bytes_text(total)} ({class_words(mount)})", round(free / MIB), "MiB")
    evidence = Evidence(f"statvfs {mount.point}", f"{free} bytes free of {total}; used as {used_for(mount)}")
    if free < case.limit(_FAIL_MIB) * MIB and free < least:
        least = case.limit(_FAIL_MIB) * MIB
        expected = Expected(
            f"at least {bytes_text(least)}", ">=", round(least / MIB), "MiB", case.limit_source(_FAIL_MIB)
        )
        # a server may report any size; a small file system (tmpfs, /boot) may be meant to be small
        full = share_pct < case.limit(_WARN_PCT)
        by_chance = {role for path in written for role in path.roles} <= _NOT_CHOSEN
        meant = not by_chance or total >= case.limit(_WARN_GIB) * GIB
        worst = fail if full and mount.storage_class in LOCAL and meant else warn
        likely = "it is full, or will be with the next file" if full else "it is small: a cache or a log may not fit"
        return worst(subject, found, expected, evidence, likely=likely, advice=_room(mount))
    if (of_inodes := _inodes(case, mount)) is not None:
        return of_inodes
    expected = Expected(f"at least {bytes_text(least)}", ">=", round(least / MIB), "MiB", case.limit_source(_WARN_GIB))
    if free < least and share_pct < case.limit(_WARN_PCT):
        return warn(subject, found, expected, evidence, likely="the next checkpoint may not fit", advice=_room(mount))
    return ok(subject, found, None if free < least else expected, evidence)


def _inodes(case: Case, mount: StorageMount) -> Finding | None:
    """A finding if the file system runs out of inodes before bytes; None otherwise."""
    total, free, least = known(mount.inodes), known(mount.inodes_free), case.limit(_WARN_INODES)
    if not total or free is None or free >= least or free > total * case.limit(_WARN_PCT) / 100:
        return None
    worst = fail if free == 0 and mount.storage_class in LOCAL else warn
    return worst(
        subject_of(mount),
        Found(f"{free} inodes free of {total}", free, "inodes"),
        Expected(f"at least {least:.0f}", ">=", least, "inodes", case.limit_source(_WARN_INODES)),
        Evidence(f"statvfs {mount.point}", f"{free} of {total} inodes free; used as {used_for(mount)}"),
        likely="many small files: no further file can be made, whatever room there is",
        advice=(Advice("See which folder holds them.", f"du --inodes -xd2 {mount.point} | sort -n | tail"),),
    )


def _room(mount: StorageMount) -> tuple[Advice, ...]:
    return (
        Advice("See what fills it.", f"du -xhd2 {mount.point} | sort -h | tail"),
        Advice("Keep caches elsewhere.", "export HF_HOME=... TORCH_HOME=... TMPDIR=...   # on a larger file system"),
    )

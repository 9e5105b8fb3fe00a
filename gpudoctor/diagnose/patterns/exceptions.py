"""What an exception means, by the last line of its traceback: a cause, an echo of another rank, or a wrapper."""

from __future__ import annotations

import re

from gpudoctor.diagnose.events import Event, Role, clipped
from gpudoctor.diagnose.patterns.catalogue import error_event
from gpudoctor.statements.catalogue import RUNTIME
from gpudoctor.statements.classes import kind_of

# the program's own exception, in the words of what started it: ErrorMessage "TypeError: ...
_QUOTED = re.compile(r"[\"'](?=(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception): )")
EXCEPTION = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w{0,80}\.){0,12}[A-Za-z_]\w{0,80})(?::(?: (?P<message>.*))?)?$", re.DOTALL
)
CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
# what follows the exception's own words where a whole traceback stands in one line
_GLUED = re.compile(rf"\s+(?:{'|'.join(CHAINED)}|(?:Original )?Traceback \(most recent call last\))")
# vLLM, SGLang: the error of another process, which is printed elsewhere
_ELSEWHERE = re.compile(
    r"(?i)see (?:the )?(?:stack trace|root cause|error)|engine (?:core|process)\b.{0,60}(?:failed|died)"
    r"|WorkerProc initialization"
    # only a process exits; "download finished with status 404" is the program's own
    r"|(?:\bexited|\b(?:process|worker|child|command)\b.{0,60}\b(?:returned|ended|finished))"
    r" with (?:an? )?(?:non-?zero )?(?:exit )?(?:code|status)"
)
_OTHER_RANKS = re.compile(r"\bthere are other ranks\b|\bother ranks (?:did|do|have|could)(?: not\b|n['’]t\b)")
_GUILTY = re.compile(r"CheckpointException ranks:dict_keys\(\[([\d, ]+)\]\)")
_OF_A_DEAD_LOADER = (
    *("ConnectionResetError", "EOFError", "ConnectionRefusedError", "FileNotFoundError", "BrokenPipeError"),
)
_LOADER = {"_try_get_data", "_get_data", "rebuild_storage_fd", "rebuild_storage_filename", "get_connection"}
# launchers and engines that repeat what happened in another process
_WRAPPERS = {
    "ChildFailedError", "SignalException", "CalledProcessError", "WorkerGroupError", "RayTaskError",
    "TrainingFailedError", "ProcessRaisedException", "CheckpointException", "SystemExit", "GeneratorExit",
    "CancelledError", "EngineDeadError", "RendezvousClosedError", "RendezvousGracefulExitError", "RendezvousStateError",
    "ActorDiedError", "RayActorError", "ActorUnavailableError", "WorkerCrashedError", "NodeDiedError",
    "EngineGenerateError", "ExceptionGroup", "BaseExceptionGroup"
}  # fmt: skip
# answers of hubs, object stores and trackers, and what their clients raise if none comes
_SERVICE = re.compile(
    r"\b(?:429|50[0-4]) (?:Client|Server) Error\b|\bToo Many Requests\b|Max retries exceeded with url|SlowDown"
    r"|(?:couldn't connect to|Couldn't reach) .{0,200}(?:huggingface|\bHub\b|://)"
    r"|HTTPS?ConnectionPool\(host=|Could not connect to the endpoint URL"
)
_MOVED = {
    "ConnectionResetError", "ConnectionRefusedError", "ConnectionAbortedError", "BrokenPipeError", "EOFError",
    "DistStoreError", "DistNetworkError", "DistBackendError", "IncompleteReadError"
}  # fmt: skip
# an exception with one of these was raised below the program, or by another process: "likely" the program's at best
_BELOW = re.compile(
    rf"\b(?:{RUNTIME}|CUDA|cu[A-Z]\w+|NCCL|nccl[A-Z]\w+|HIP|hip[A-Z]\w+|ROCm|[NTHX]PUs?|(?:GPU|device) (?:lost|hang))\b"
    r"|\b[Tt]he (?:node|host|machine) (?:is|was|has)\b"
    r"|^(?:INTERNAL|UNAVAILABLE|ABORTED|UNKNOWN|DATA_LOSS|FAILED_PRECONDITION|DEADLINE_EXCEEDED|CANCELLED): "
)
_IMPORT = {"ModuleNotFoundError", "ImportError"}


def exception_event(text: str, functions: set[str] = frozenset()) -> Event:  # type: ignore[assignment]
    """The event for an exception's last line: a cause, or the error of a rank that lost its peers.

    >>> exception_event("KeyError: 'label'").what, exception_event("ImportError: x").what
    ('user_exception', 'import_error')
    """
    found = EXCEPTION.match(text)
    name = (found["type"] if found else text).rpartition(".")[2]
    message = (found["message"] or "") if found else ""
    detail: dict[str, str | int] = {"type": name, "message": clipped(_GLUED.split(message, maxsplit=1)[0])}
    if functions & _LOADER and name in _OF_A_DEAD_LOADER:
        return Event(role="cause", what="loader_worker_killed", strength=2, detail=detail)
    if known := error_event(text):
        known.detail.update(detail)
        if known.text:
            known.detail["message"] = clipped(known.text)
        return known
    if name in _IMPORT:
        return Event(role="cause", what="import_error", strength=3, detail=detail)
    if _SERVICE.search(text):
        return Event(role="cause", what="service_failed", strength=3, names_rank=False, detail=detail)
    if name == "MemoryError":
        return Event(role="cause", what="host_alloc_failed", strength=3, detail=detail)
    if name == "KeyboardInterrupt":
        return Event(role="ending", what="terminated_signal", strength=1, names_rank=False, detail=detail)
    if guilty := _GUILTY.search(text):
        detail["ranks"] = guilty[1]
    if _ELSEWHERE.search(message) or name in _WRAPPERS or name.startswith("RayTaskError"):
        return quoted_exception(message) or Event(role="wrapper", what="wrapper", detail=detail)
    if name in _MOVED:
        return Event(role="echo", what="user_exception", strength=1, detail=detail)
    kind = kind_of(text)
    # what others did, the way to them, or what runs below: no fault of the program
    if kind in ("network", "peer", "wait", "death") or _BELOW.search(message):
        role: Role = "echo" if kind in ("peer", "wait", "death") else "cause"
        return Event(role=role, what="failed_saying", strength=2, names_rank=False, detail=detail)
    # who says that others did not come that far is not at fault
    told_of = _OTHER_RANKS.search(message) is not None
    return Event(role="cause", what="user_exception", strength=3, names_rank=not told_of, detail=detail)


def quoted_exception(text: str) -> Event | None:
    """The event for the exception that the words of a launcher or wrapper quote; None without one."""
    quoted = _QUOTED.search(text)
    return exception_event(text[quoted.end() :]) if quoted else None

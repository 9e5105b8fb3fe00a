"""Servers of models: what one request raised is none of the server's own failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.diagnose.asking import answer_to, said

_UP = "INFO:     Started server process [1]\nINFO:     Application startup complete.\n"
_ACCESS = 'INFO:     10.1.2.3:4567 - "{} HTTP/1.1" {}\n'
_OK = _ACCESS.format("POST /v1/completions", "200 OK")
_PROBED = _ACCESS.format("GET /health", "200 OK")
_FAILED = _ACCESS.format("POST /v1/completions", "500 Internal Server Error")
_STOPPED = "INFO:     Shutting down\nINFO:     Application shutdown complete.\nINFO:     Finished server process [1]\n"
_SAID = "ERROR 08-19 11:32:40 [serving.py:57] ValueError: a prompt of 17011 tokens is too long\n"
_RAISED = (
    'ERROR:    Exception in ASGI application\nTraceback (most recent call last):\n  File "/app/serve.py", line 9, in f\n'
    "    reply = run(prompt)\n{}\n"
)
_KEY = _RAISED.format("KeyError: 'prompt'")
_FULL = _RAISED.format("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
_ILLEGAL = _RAISED.format("RuntimeError: CUDA error: an illegal memory access was encountered")
_ENGINE = (
    "(EngineCore_0 pid=272) ERROR 08-19 11:32:40 [core.py:634] EngineCore encountered a fatal error.\n"
    "(EngineCore_0 pid=272) ERROR 08-19 11:32:40 [core.py:634] Traceback (most recent call last):\n"
    '(EngineCore_0 pid=272) ERROR 08-19 11:32:40 [core.py:634]   File "/app/core.py", line 9, in run\n'
    "(EngineCore_0 pid=272) ERROR 08-19 11:32:40 [core.py:634] AssertionError: no such block\n"
    "ERROR 08-19 11:32:40 [async_llm.py:416] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. "
    "See stack trace (above) for the root cause.\n"
)
_DEAD = "CRITICAL 09-12 04:32:05 launcher.py:99] MQLLMEngine is already dead, terminating server process\n"


@pytest.mark.parametrize(
    "text",
    [_SAID + _OK, _SAID + _STOPPED, _KEY + _FAILED + _OK, _FULL + _FAILED + _OK + _STOPPED],
    ids=["answered later", "stopped in order", "a traceback", "memory for one request"],
)
def test_what_a_server_outlived_was_a_requests(text: str, tmp_path: Path) -> None:
    assert said(answer_to(_UP + _OK + text, tmp_path)) == ("healthy", None)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (_UP + _OK + _SAID, "user_exception"),
        (_UP + _OK + _SAID + _FAILED + _STOPPED, "user_exception"),
        (_UP + _OK + _SAID + _DEAD + _STOPPED, "user_exception"),
        (_UP + _OK + _ENGINE + _OK + _STOPPED, "user_exception"),
        (_UP + _OK + _KEY + 3 * _PROBED, "user_exception"),
        (_UP + _OK + _SAID + 3 * _OK + _ILLEGAL + _FAILED + _STOPPED, "cuda_illegal_access"),
        ("step 1 loss 2.1\nstep 2 loss 2.0\n" + _KEY + _OK, "user_exception"),
    ],
    ids=[
        *("its last word", "no later one was answered", "its engine died", "its engine, and a late answer"),
        *("probes alone", "a request's error, then its own", "of a training beside it"),
    ],
)
def test_what_a_server_did_not_outlive_is_its_failure(text: str, what: str, tmp_path: Path) -> None:
    assert said(answer_to(text, tmp_path)) == (what, None)


def test_the_log_of_any_web_server_is_no_job(tmp_path: Path) -> None:
    assert answer_to(6 * _OK + 2 * _FAILED, tmp_path).word == "NOT RECOGNISED"


def test_a_request_that_was_not_answered_may_be_an_error(tmp_path: Path) -> None:
    failed = '10.1.2.3 - - [19/Aug/2025:11:32:40 +0000] "POST /v1/completions HTTP/1.1" 500 Internal Server Error\n'
    assert answer_to("INFO:     Application startup complete.\n" + failed, tmp_path).verdict == "unknown"

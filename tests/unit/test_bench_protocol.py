"""The protocol against a mock server: every way to be trusted, doubted, rejected or failed."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from mock_engine import COUNTERS, SUMS, WIDE, MockEngine, benchmark, subject, write_prompt
from reproquant.bench import session
from reproquant.bench.measurement import Measurement
from reproquant.bench.protocol import measure
from reproquant.bench.workload import digest_of_ids
from reproquant.engines.base import Dialect, Plan
from reproquant.engines.native import NativeRun
from reproquant.errors import StudyError, ToolError
from reproquant.machine import host
from reproquant.study import Subject

TIMES_MS = TTFT_MS, ITL_MS = 10.0, 5.0
E1 = (
    "ValueError: The quantization method fp8 is not supported for the current GPU. "
    "Minimum capability: 80. Current capability: 70."
)


@pytest.fixture
def prompt(tmp_path: Path) -> Path:
    return write_prompt(tmp_path)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Measurement:
    """A run that nothing is wrong with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "busy_share", lambda: 0.0)
        return run("steady", write_prompt(tmp_path_factory.mktemp("good")))


@pytest.fixture(autouse=True)
def a_quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "busy_share", lambda: 0.0)
    monkeypatch.setattr(session, "DEATH_S", 0.5)


def run(behaviour: str, prompt: Path, engine: MockEngine | None = None, **changes: Any) -> Measurement:
    log = prompt.with_name("log")
    return measure(
        engine or MockEngine(times_ms=TIMES_MS), subject(behaviour), benchmark(prompt, **changes), log
    )


def test_a_good_run_keeps_every_request_and_recovers_the_known_speed(good: Measurement) -> None:
    result = good
    assert result.status == "ok", result.reasons
    assert [(level.concurrency, len(level.decode_tok_per_s.rounds)) for level in result.levels] == [
        (1, 2),
        (2, 2),
    ]
    assert len(result.requests) == 6 and len(result.warmup) == 5
    nonces = [request.nonce_id for request in (*result.warmup, *result.requests)]
    assert len(set(nonces)) == 11
    assert TTFT_MS - 1 < result.levels[0].ttft_ms.median < TTFT_MS + 100
    assert 500 / (ITL_MS + 6) < result.levels[0].decode_tok_per_s.median < 1000 / (ITL_MS - 2)
    assert result.workload.ids_sha256 and len(result.start_s) == 1 and (result.peak_rss_bytes or 0) > 1e6
    assert any("grew by 0" in line for line in result.cache_off)
    assert "PORT" in result.command and Measurement.model_validate_json(result.model_dump_json()) == result


def test_an_error_in_the_stream_stops_the_run_and_is_its_evidence(prompt: Path) -> None:
    result = run("breaks", prompt)
    assert result.status == "failed" and result.levels == []
    assert "the mock broke" in (result.evidence or "")
    assert len(result.warmup) == 1 and result.requests == []


def test_a_server_that_dies_half_way_fails_with_its_words_and_what_it_gave(prompt: Path) -> None:
    result = run("dies", prompt)
    assert result.status == "failed"
    assert "died while it was measured" in result.reasons[0]
    assert "RuntimeError: the mock was told to die" in (result.evidence or "")
    assert len(result.warmup) == 5 and any(request.error for request in result.requests)


def test_a_server_that_is_killed_in_a_round_fails_and_what_it_gave_is_kept(
    prompt: Path, tmp_path: Path
) -> None:
    """kill -9 from outside, as the kernel does it when memory runs out."""
    received, killed = tmp_path / "received", []
    engine = MockEngine("--prompts", str(received), times_ms=(100.0, 20.0))

    def kill() -> None:
        deadline = time.monotonic() + 30
        while not received.is_file() or len(received.read_text().splitlines()) < 8:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        killed.append(engine.process_group)
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    result = run("steady", prompt, engine)
    killer.join()
    assert result.status == "failed"
    assert "died while it was measured" in result.reasons[0]
    assert len(result.warmup) == 5 and 2 < len(result.requests) < 6
    whole = [request for request in result.requests if not request.error]
    assert whole and all(request.completion_tokens == 8 for request in whole)
    assert psutil.pid_exists(killed[0]) is False and host.group_members(killed[0]) == []


def test_the_rounds_are_shared_by_the_launches_and_no_prompt_comes_twice(prompt: Path) -> None:
    result = run("steady", prompt, launches=2, rounds=3)
    assert [(one.launch, one.round) for one in result.rounds if one.concurrency == 1] == [
        (0, 0),
        (0, 1),
        (1, 2),
    ]
    assert len(result.start_s) == 2
    assert {request.launch for request in result.warmup} == {0, 1}
    nonces = [request.nonce_id for request in (*result.warmup, *result.requests)]
    assert len(set(nonces)) == len(nonces) == 2 * 5 + 3 * 3


def test_what_is_sent_is_exactly_the_ids_that_were_promised_each_with_its_own_first_one(
    prompt: Path, tmp_path: Path
) -> None:
    """As the server received them: the nonce at token 0, and behind it the server's own ids of the text."""
    received = tmp_path / "received"
    result = run("steady", prompt, MockEngine("--prompts", str(received), times_ms=TIMES_MS), launches=2)
    sent = [json.loads(line) for line in received.read_text().splitlines()]
    text = [ord(character) for character in prompt.read_text(encoding="utf-8")]
    assert len(sent) == len(result.warmup) + len(result.requests) == 2 * 5 + 2 * 3
    assert {len(ids) for ids in sent} == {32}
    assert len({ids[0] for ids in sent}) == len(sent)
    asked = [request.nonce_id for request in (*result.warmup, *result.requests)]
    assert sorted(ids[0] for ids in sent) == sorted(asked)
    windows = {tuple(text[start : start + 31]) for start in range(len(text) - 30)}
    assert all(tuple(ids[1:]) in windows for ids in sent)
    measured = {request.nonce_id for request in result.requests}
    assert {tuple(ids[1:]) for ids in sent if ids[0] in measured} == {tuple(text[:31])}
    assert result.workload.ids_sha256 == digest_of_ids(text)


def test_unsteady_rounds_are_followed_by_more(prompt: Path) -> None:
    narrow = WIDE.model_copy(update={"decode_spread_percent": 0.001})
    result = run("steady", prompt, rounds=2, rounds_if_unsteady=4, limits=narrow)
    assert len(result.levels[0].decode_tok_per_s.rounds) == 4
    assert result.status == "flagged" and "0.001% is steady" in result.reasons[0]


def test_every_round_has_its_start_skew_and_the_servers_own_count(good: Measurement) -> None:
    assert [one.counted_tokens for one in good.rounds] == [8 * one.concurrency for one in good.rounds]
    assert all(0 <= one.start_skew_ms < 50 for one in good.rounds)
    assert any(one.start_skew_ms > 0 for one in good.rounds)


def test_each_pair_of_figures_is_kept_with_its_verdict(good: Measurement) -> None:
    assert [(check.what, check.concurrency, check.verdict) for check in good.checks] == [
        ("decode", 1, "ok"),
        ("first token and prefill", 1, "ok"),
        ("output tokens", 1, "ok"),
        ("decode", 2, "ok"),
        ("output tokens", 2, "ok"),
    ]
    decode, _, tokens, *_ = good.checks
    assert decode.left == good.levels[0].decode_tok_per_s.median
    assert (tokens.left, tokens.right) == (16, 16)


def test_a_warm_up_that_does_not_settle_is_a_doubt(prompt: Path) -> None:
    result = run("steady", prompt, warmup_at_most=4, limits=WIDE.model_copy(update={"warmup_percent": 0}))
    assert result.status == "flagged" and len(result.warmup) == 4 + 2
    assert "Launch 0 was still warming up after 4 requests" in result.reasons[0]


def test_a_refused_machine_is_unsupported_with_the_engines_line_as_evidence(prompt: Path) -> None:
    result = run("steady", prompt, MockEngine("--refuse", f"(Worker pid=7) {E1}"))
    assert (result.status, result.evidence, result.levels) == ("unsupported", f"(Worker pid=7) {E1}", [])
    assert result.workload.ids_sha256 is None and result.start_s == []


def test_an_out_of_memory_at_the_start_is_a_failure_and_not_unsupported(prompt: Path) -> None:
    words = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.02 GiB."
    result = run("steady", prompt, MockEngine("--refuse", words))
    assert result.status == "failed" and words in (result.evidence or "")


def test_private_paths_do_not_get_into_the_measurement(prompt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPROQUANT_STORE", str(prompt.parent))
    monkeypatch.setenv("HOME", str(prompt.parent.parent))
    result = run("steady", prompt, MockEngine("--refuse", f"OSError: {prompt} is no model"))
    assert "<store>/prompt.txt is no model" in (result.evidence or "")
    assert str(prompt.parent.parent) not in result.model_dump_json()


def test_nothing_listens_any_more_after_a_measurement(prompt: Path) -> None:
    engine = MockEngine()
    run("steady", prompt, engine, rounds=1, rounds_if_unsteady=1)
    assert engine.process_group is None
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", engine._port)) != 0


def test_one_output_token_is_refused_because_it_has_no_decode_step(prompt: Path) -> None:
    with pytest.raises(StudyError, match="no decode step"):
        run("steady", prompt, output_tokens=1)


class WithSums(MockEngine):
    """A server that tells no request's times, and all requests' sums in /metrics, as vLLM before 0.27."""

    dialect = Dialect("prompt", "add_special_tokens", counters={**COUNTERS, **SUMS})


def test_sums_in_the_counters_stand_in_for_times_that_a_server_does_not_tell(prompt: Path) -> None:
    result = run("silent", prompt, WithSums(times_ms=TIMES_MS))
    assert result.status == "ok", result.reasons
    assert all(request.server.mean_of == request.concurrency for request in result.requests if request.server)
    alone, pair = result.levels
    assert alone.prefill_from == pair.prefill_from == "server"
    assert alone.server_prefill_ms and TTFT_MS <= alone.server_prefill_ms.median < TTFT_MS + 50
    assert [(check.what, check.concurrency) for check in result.checks if check.what == "decode"] == [
        ("decode", 1)
    ]


class WithTool(MockEngine):
    """A mock engine whose own tool gives these tokens a second, or fails."""

    def __init__(self, decode: float | None) -> None:
        super().__init__(times_ms=TIMES_MS)
        self._decode = decode

    def native(self, plan: Plan, subject: Subject, log: Path) -> NativeRun:
        assert self.process_group is None, "the server still runs"
        if self._decode is None:
            raise ToolError("a tool", "it has no memory", "buy some")
        return NativeRun("a tool", (("a", "tool"),), (500.0,), (self._decode, self._decode))


@pytest.mark.parametrize(("factor", "status"), [(1.0, "ok"), (0.3, "rejected")])
def test_the_engines_own_tool_confirms_the_decode_or_rejects_it(
    factor: float, status: str, prompt: Path
) -> None:
    wide = WIDE.model_copy(update={"decode_native_percent": 50, "decode_native_flag_percent": 50})
    result = run("steady", prompt, WithTool(factor * 1000 / ITL_MS), limits=wide)
    assert (result.status, result.native and result.native.tool) == (status, "a tool"), result.reasons
    assert [check.verdict for check in result.checks if check.right_of == "a tool"] == [status]


def test_a_tool_that_fails_is_a_doubt(prompt: Path) -> None:
    result = run("steady", prompt, WithTool(None))
    assert (result.status, result.native) == ("flagged", None)
    assert any("gave no figures: it has no memory" in text for text in result.reasons)


def test_the_tool_is_left_alone_where_the_study_wants_none(prompt: Path) -> None:
    assert run("steady", prompt, WithTool(None), native_repetitions=0).status == "ok"


def test_where_the_fewest_are_several_each_of_them_has_a_prompt_of_its_own(prompt: Path) -> None:
    """Warm-up sends the lowest concurrency, whatever it is: three times two and once three, then two rounds."""
    result = run("steady", prompt, concurrencies=(2, 4), warmup_requests=9, warmup_at_most=9)
    assert result.status == "ok", result.reasons
    assert len(result.warmup) == 9 * 2 + 4 and len(result.requests) == 2 * 6
    asked = [request.nonce_id for request in (*result.warmup, *result.requests)]
    assert len(set(asked)) == len(asked)


def test_more_prompts_than_the_text_can_tell_apart_are_refused_before_any_is_sent(prompt: Path) -> None:
    with pytest.raises(StudyError, match="88 requests need as many different first tokens"):
        run("steady", prompt, concurrencies=(4,), warmup_requests=20, warmup_at_most=20)


def test_a_prompt_that_is_no_utf_8_is_refused(prompt: Path) -> None:
    prompt.write_bytes(b"\xff\xfe")
    with pytest.raises(StudyError, match="UTF-8"):
        run("steady", prompt)


class Placed(WithTool):
    """Notes the cores of the thread that runs its tool."""

    cores: frozenset[int] = frozenset()

    def native(self, plan: Plan, subject: Subject, log: Path) -> NativeRun:
        self.cores = frozenset(os.sched_getaffinity(0))
        return super().native(plan, subject, log)


def test_the_tool_runs_on_the_servers_cores_and_the_sampler_keeps_the_clients(
    prompt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = frozenset(os.sched_getaffinity(0))
    client = frozenset([max(cores)])
    servers = cores - client or cores
    monkeypatch.setattr(session, "shares", lambda: (servers, client))
    engine = Placed(1000 / ITL_MS)
    run("steady", prompt, engine)
    assert engine.cores == servers and os.sched_getaffinity(0) == cores

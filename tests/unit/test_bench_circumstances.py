"""What telemetry says of a run: heat, slowdowns, strangers, clocks, energy; from columns with known values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pynvml
import pytest

from mock_engine import benchmark as mock_benchmark
from reproquant.bench.circumstances import energies, findings, peak_rss_bytes, watched
from reproquant.bench.telemetry import Card, Columns, Span, Telemetry, Window
from reproquant.study import Benchmark, Limits

LIMITS = Limits()
TIMES = [float(second) for second in range(40)]
QUIET: Columns = {
    "temperature_c": [60] * 40,
    "event_reasons": [0] * 40,
    "foreign_processes": [0] * 40,
    "sm_mhz": [1500] * 40,
    "power_w": [300] * 40,
    "energy_j": [300 * at for at in TIMES],
    "memory_bytes": [1e9] * 5 + [9e9] * 35,
    "utilization_percent": [90] * 40,
}


def card(index: int = 0, used: bool = True, **columns: Any) -> Card:
    """A quiet card at 300 W; ``columns`` are laid over its own, null leaves one out."""
    changed = {name: values for name, values in {**QUIET, **columns}.items() if values is not None}
    return Card(index=index, used=used, power_from="instant", columns=changed)


def rounds() -> list[Window]:
    """Three rounds of one and of four requests, 4 s each, from second 6 to 30."""
    return [
        Window(kind="round", round=n // 2, concurrency=1 + 3 * (n % 2), start_s=6 + 4 * n, end_s=9.5 + 4 * n,
               requests=1, output_tokens=128)
        for n in range(6)
    ]  # fmt: skip


def sustained(concurrency: int = 1, start_s: float = 25.5, end_s: float = 35.5) -> Window:
    return Window(
        kind="sustained", round=None, concurrency=concurrency, start_s=start_s, end_s=end_s,
        requests=10, output_tokens=1500,
    )  # fmt: skip


def recorded(*cards: Card, windows: list[Window] | None = None, host: Columns | None = None) -> Telemetry:
    span = Span(
        what="server",
        launch=0,
        time_s=TIMES,
        host=host or {},
        cards=list(cards),
        windows=rounds() if windows is None else windows,
        not_measured={},
        sampler_cpu_percent=0.5,
    )
    return Telemetry(subject="a", spans=[span])


def between(first: int, last: int, value: float, other: float) -> list[float | None]:
    """A column that has ``value`` in these seconds and ``other`` before and after."""
    return [value if first <= at <= last else other for at in TIMES]


def on_gpu(*cards: Card) -> Any:
    return findings(recorded(*cards), LIMITS, on_gpu=True, cores=8)


def test_a_quiet_card_gives_no_reason() -> None:
    found = on_gpu(card())
    assert (found.wrong, found.unsteady, found.weak) == ([], [], [])


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"temperature_c": between(20, 20, 85, 60)}, "85 °C hot"),
        (
            {"event_reasons": between(20, 20, pynvml.nvmlClocksThrottleReasonHwThermalSlowdown, 0)},
            "heat (hardware)",
        ),
        (
            {"event_reasons": between(20, 20, pynvml.nvmlClocksThrottleReasonSwThermalSlowdown | 1, 1)},
            "heat (driver)",
        ),
        (
            {"event_reasons": between(20, 20, pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown, 0)},
            "brake signal",
        ),
        ({"foreign_processes": between(20, 20, 2, 0)}, "2 other program(s)"),
    ],
)
def test_heat_slowdowns_and_strangers_reject_a_run_on_its_cards_only(
    columns: dict[str, Any], words: str
) -> None:
    (reason,) = on_gpu(card(**columns)).wrong
    assert words in reason
    (reason,) = on_gpu(card(), card(1, **columns)).wrong
    assert "GPU 1" in reason
    assert on_gpu(card(), card(1, used=False, **columns)).wrong == []


def test_what_happens_before_and_after_the_rounds_rejects_nothing() -> None:
    hot = [90 if at < 6 or at > 30 else 60 for at in TIMES]
    busy = [3 if at < 6 or at > 30 else 0 for at in TIMES]
    assert on_gpu(card(temperature_c=hot, foreign_processes=busy)).wrong == []


def test_a_power_limit_and_idling_are_no_slowdown() -> None:
    bits = pynvml.nvmlClocksThrottleReasonSwPowerCap | pynvml.nvmlClocksThrottleReasonGpuIdle
    assert on_gpu(card(event_reasons=[bits] * 40)).wrong == []


def test_a_clock_that_moved_between_rounds_makes_a_run_unsteady() -> None:
    slower = [1500 if at < 20 else 1450 for at in TIMES]
    reasons = on_gpu(card(sm_mhz=slower)).unsteady
    assert [reason[:16] for reason in reasons] == ["At concurrency 1", "At concurrency 4"]
    assert "GPU 0's clock differs from round to round by 3.3%" in reasons[0]
    assert on_gpu(card(sm_mhz=[1500 if at < 20 else 1475 for at in TIMES])).unsteady == []


def test_a_round_shorter_than_the_sampling_takes_the_nearest_sample() -> None:
    brief = [window.model_copy(update={"end_s": window.start_s + 0.1}) for window in rounds()]
    slower = [1500 if at < 20 else 1400 for at in TIMES]
    found = findings(recorded(card(sm_mhz=slower), windows=brief), LIMITS, on_gpu=True, cores=8)
    assert len(found.unsteady) == 2


def test_what_a_card_does_not_tell_is_a_doubt() -> None:
    found = on_gpu(card(temperature_c=None, foreign_processes=None))
    assert len(found.weak) == 2 and found.wrong == []
    assert found.weak[0] == "GPU 0 doesn't tell temperature c (no sample): whether it was hot is unknown."


def test_a_gpu_subject_whose_cards_could_not_be_watched_is_doubtful() -> None:
    (reason,) = on_gpu(card(used=False)).weak
    assert "could not be watched" in reason


def test_on_a_cpu_others_that_keep_the_cores_busy_are_a_doubt() -> None:
    host: Columns = {"server_cores": [4.0] * 40, "busy_cores": [6.0] * 40}
    (reason,) = findings(recorded(host=host), LIMITS, on_gpu=False, cores=8).weak
    assert "other programs kept the cores 25% busy" in reason
    assert findings(recorded(host=host), LIMITS, on_gpu=False, cores=16).weak == []
    assert findings(recorded(card(), host=host), LIMITS, on_gpu=True, cores=8).weak == []


def test_a_cpu_clock_that_moved_is_unsteady() -> None:
    clock: Columns = {"frequency_mhz": [3000 if at < 20 else 2000 for at in TIMES]}
    reasons = findings(recorded(host=clock), LIMITS, on_gpu=False, cores=8).unsteady
    assert len(reasons) == 2 and "the CPU's clock" in reasons[0]


@pytest.fixture
def benchmark(tmp_path: Path) -> Benchmark:
    return mock_benchmark(tmp_path / "prompt", limits=LIMITS)


def test_energy_is_that_of_the_window_by_the_counter_of_all_cards_in_use(benchmark: Benchmark) -> None:
    cards = [card(), card(1), card(2, used=False)]
    (found,), checks, reasons = energies(recorded(*cards, windows=[sustained()]), benchmark, on_gpu=True)
    assert (found.source, found.of, found.seconds) == ("counter", "GPUs", 10)
    assert found.joules == pytest.approx(6000) and found.tokens_per_joule == pytest.approx(0.25)
    assert [(check.what, check.verdict, round(check.difference, 6)) for check in checks] == [
        ("energy", "ok", 0)
    ]
    assert reasons == []


def test_the_integral_follows_a_power_that_changes(benchmark: Benchmark) -> None:
    rising = [10 * at for at in TIMES]
    telemetry = recorded(card(power_w=rising, energy_j=None), windows=[sustained()])
    (found,), checks, _ = energies(telemetry, benchmark, on_gpu=True)
    assert (found.source, checks) == ("integral", [])
    assert found.joules == pytest.approx(5 * (35.5**2 - 25.5**2))


@pytest.mark.parametrize(
    ("factor", "figures", "verdict"), [(1.04, 1, "ok"), (0.92, 1, "flagged"), (1.2, 0, "flagged")]
)
def test_a_counter_that_disagrees_with_the_power_is_flagged_and_far_off_gives_no_figure(
    factor: float, figures: int, verdict: str, benchmark: Benchmark
) -> None:
    counter = [factor * 300 * at for at in TIMES]
    found, (check,), reasons = energies(
        recorded(card(energy_j=counter), windows=[sustained()]), benchmark, on_gpu=True
    )
    assert (len(found), check.verdict) == (figures, verdict)
    assert bool(reasons) is (figures == 0)
    assert (check.reason is None) is (verdict == "ok")


def test_a_window_that_the_samples_do_not_cover_gives_no_energy(benchmark: Benchmark) -> None:
    late = sustained(start_s=35, end_s=45)
    found, checks, (reason,) = energies(recorded(card(), windows=[late]), benchmark, on_gpu=True)
    assert (found, checks) == ([], []) and "no counter answered" in reason


def test_on_a_cpu_the_packages_are_counted_and_where_there_is_none_the_reason_stands(
    benchmark: Benchmark,
) -> None:
    host: Columns = {"package_j": [50 * at for at in TIMES]}
    (found,), checks, _ = energies(recorded(host=host, windows=[sustained()]), benchmark, on_gpu=False)
    assert (found.of, found.joules, checks) == ("CPU packages", pytest.approx(500), [])
    none = recorded()
    none.spans[0].not_measured["host.package_j"] = "there is no energy counter"
    assert energies(none, benchmark, on_gpu=False)[2] == ["there is no energy counter"]
    off = benchmark.model_copy(update={"energy_seconds": 0})
    assert energies(none, off, on_gpu=False)[2] == ["the study's benchmark.energy_seconds is 0"]


def test_each_card_has_its_figures_over_the_rounds_and_its_memory_over_the_launch() -> None:
    idle = card(1, used=False, power_w=[60] * 40, utilization_percent=[0] * 40, memory_bytes=[1e9] * 40)
    found = watched(recorded(card(temperature_c=between(20, 21, 71, 60)), idle), ["none"])
    assert found is not None
    busy, other = found.cards
    assert (busy.used, busy.peak_bytes, busy.temperature_c, busy.sm_mhz) == (True, 8_000_000_000, 71, 1500)
    assert (other.used, other.peak_bytes, other.power_w, other.utilization_percent) == (False, 0, 60, 0)
    assert found.not_measured["energy"] == "none"


def test_nothing_that_was_watched_gives_nothing() -> None:
    assert watched(Telemetry(subject="a", spans=[])) is None
    assert peak_rss_bytes(Telemetry(subject="a", spans=[])) is None
    assert peak_rss_bytes(recorded(host={"rss_bytes": [None, 5e8, 7e8, *[1e8] * 37]})) == 700_000_000


def test_a_launch_in_which_a_card_was_not_watched_is_a_doubt_even_if_another_was() -> None:
    told, blind = recorded(card()), recorded()
    second = blind.spans[0].model_copy(update={"launch": 1, "not_measured": {"sampler": "it ended"}})
    both = Telemetry(subject="a", spans=[told.spans[0], second])
    (reason,) = findings(both, LIMITS, on_gpu=True, cores=8).weak
    assert "could not be watched all the time (it ended)" in reason
    second.not_measured.clear()
    reasons = findings(both, LIMITS, on_gpu=True, cores=8).weak
    assert len(reasons) == 3 and all(reason.startswith("GPU 0 doesn't tell") for reason in reasons)


def test_a_sampler_that_ended_before_the_last_round_is_a_doubt() -> None:
    telemetry = recorded(card())
    telemetry.spans[0].not_measured["sampler"] = "the driver didn't answer for 5 s"
    (reason,) = findings(telemetry, LIMITS, on_gpu=True, cores=8).weak
    assert "the driver didn't answer for 5 s" in reason


@pytest.mark.parametrize("on_gpu", [True, False])
def test_a_clock_that_is_told_as_0_is_no_clock(on_gpu: bool) -> None:
    """Some virtual machines say so of their CPU, and of a part of a GPU."""
    clock: Columns = {"frequency_mhz": [0] * 40}
    telemetry = recorded(card(sm_mhz=[0] * 40), host=clock)
    assert findings(telemetry, LIMITS, on_gpu, cores=8).unsteady == []


def test_a_gpu_subject_has_no_energy_of_the_cpu_packages(benchmark: Benchmark) -> None:
    """As where its card is a part of one (MIG), which NVML doesn't name."""
    host: Columns = {"package_j": [50 * at for at in TIMES]}
    telemetry = recorded(card(used=False), host=host, windows=[sustained()])
    found, checks, (reason,) = energies(telemetry, benchmark, on_gpu=True)
    assert (found, checks) == ([], []) and "no counter answered" in reason

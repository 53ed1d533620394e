"""The study's answer in a sentence, and what it rests on."""

from __future__ import annotations

from collections.abc import Sequence

from reproquant.report.numbers import Number, Numbers
from reproquant.report.sentences import Sentence, at, say
from reproquant.report.subjects import Spread, Subject, best, rivals
from reproquant.study import Study

Ranking = Sequence[tuple[Subject, Spread]]


def concurrencies(numbers: Numbers, study: Study) -> tuple[Number, ...]:
    """The study's concurrencies, fewest requests first."""
    taken = [
        numbers.take("study.json", f"/benchmark/concurrencies/{n}", "", f"study.concurrencies.{n}")
        for n in range(len(study.benchmark.concurrencies))
    ]
    return tuple(sorted(taken, key=lambda number: number.value))


def answer(numbers: Numbers, study: Study, subjects: Sequence[Subject]) -> Sentence:
    """Which subject decodes fastest for one request and which gives most output, where, at what size."""
    levels = concurrencies(numbers, study)
    decoders = best(subjects, "decode_tok_per_s", levels[0])
    givers = best(subjects, "output_tok_per_s", levels[-1])
    where = _where(numbers, study, subjects)
    if not decoders and not givers:
        return where + ("no subject gave figures that may be compared.",)
    open_decode = rivals(subjects, "decode_tok_per_s", levels[0])
    open_output = rivals(subjects, "output_tok_per_s", levels[-1])
    alone = len(decoders) == len(givers) == 1
    if decoders and givers and decoders[0][0] is givers[0][0] and (alone or not open_decode + open_output):
        (winner, decode), (_, output) = decoders[0], givers[0]
        speed, volume = (say("{}" + _doubt_note(winner), figure.median) for figure in (decode, output))
        if alone:
            text = f"only {winner.name} could be ranked: it decodes {{}} {{}} and gives {{}} {{}}; "
            figures = say(text, speed, at(levels[0]), volume, at(levels[-1]))
            return where + figures + say("its weights take {}.", winner.size)
        text = "{} decodes fastest {} ({}) and gives the most output {} ({}) from {} of weights."
        words = (winner.name,), at(levels[0]), speed, at(levels[-1]), volume, winner.size
        return where + say(text, *words)
    first = _part(decoders, "decodes fastest", "decode", at(levels[0]), bool(open_decode))
    second = _part(givers, "gives the most output", "output", at(levels[-1]), bool(open_output))
    return where + first + ("; ",) + second + (".",)


def _part(ranking: Ranking, does: str, what: str, when: Sentence, contested: bool) -> Sentence:
    """A ranking's winner with its figure and size; ``contested`` if one without a place may be above it."""
    if not ranking:
        return say(f"no subject's {what} {{}} may be compared", when)
    winner, figure = ranking[0]
    among = " of those that could be ranked" if contested else ""
    text = f"{winner.name} {does}{among} {{}} ({{}}{_doubt_note(winner)}, from {{}} of weights)"
    return say(text, when, figure.median, winner.size)


def context(numbers: Numbers, study: Study, subjects: Sequence[Subject]) -> tuple[Sentence, ...]:
    """What the answer rests on: model, hardware, distance to the baseline and to the next subject."""
    manifest = "model/manifest.json"
    found = [say("The model is {}.", numbers.quote(manifest, "/name"))]
    if numbers.read(manifest)["source"].get("note"):
        found.append(say("{}", numbers.quote(manifest, "/source/note")))
    if all(subject.hardware == "cpu" for subject in subjects):
        found.append(("Measured on a CPU: this shows that the pipeline works and says nothing about GPUs.",))
    if len({subject.ids.text for subject in subjects if subject.ids}) > 1:
        found.append(("The servers tokenize the prompt differently, so the subjects' work is not the same.",))
    levels = concurrencies(numbers, study)
    questions = (("decode_tok_per_s", "decode", levels[0]), ("output_tok_per_s", "output", levels[-1]))
    for question in questions:
        found += _gain(subjects, *question, study.benchmark.baseline)
    for question in questions:
        found += _close_calls(subjects, *question) + _rivals(subjects, *question)
    if emulated := [subject.name for subject in subjects if subject.emulated]:
        text = "without FP8 units, by widening the weights in each forward pass: not FP8's speed, not ranked."
        found.append((f"Emulated: {', '.join(emulated)}, {text}",))
    ranked = {subject.name for metric, _, level in questions for subject, _ in best(subjects, metric, level)}
    if swinging := [one.name for one in subjects if one.swinging and one.name in ranked]:
        text = "ranked only where all its rounds are above or below all of every other's."
        found.append((f"Unstable: {', '.join(swinging)}; such a subject is {text}",))
    unranked = [one.name for one in subjects if not one.measured and one.name not in ranked]
    if unranked:
        found.append((f"Not ranked: {', '.join(unranked)}. The reasons stand below the table.",))
    return tuple(found)


def workload(numbers: Numbers) -> Sentence:
    """What every request was, and what the table's figures are."""

    def take(key: str, unit: str = "") -> Number:
        return numbers.take("study.json", f"/benchmark/{key}", unit, f"study.{key}")

    return say(
        "Every request sends {} and makes {}, always the likeliest. A figure is the median of {} "
        "(more where a subject was unsteady), with its lowest and highest round in brackets.",
        take("prompt_tokens", "tokens"),
        take("output_tokens", "tokens"),
        take("rounds", "rounds"),
    )


def _where(numbers: Numbers, study: Study, subjects: Sequence[Subject]) -> Sentence:
    if all(subject.hardware == "cpu" for subject in subjects):
        return ("On this CPU, ",)
    if study.machine.gpu is None:
        return ("On these GPUs, ",)
    count = numbers.take("study.json", "/machine/gpus", "", "study.gpus")
    return say(f"On {{}} × {study.machine.gpu}, ", count)


def _doubt_note(subject: Subject) -> str:
    return "" if subject.status == "ok" else f", {subject.status}"


def _gain(
    subjects: Sequence[Subject], metric: str, word: str, level: Number, baseline: str
) -> list[Sentence]:
    """How many times the baseline the winner reaches."""
    return [
        say(f"The {word} of {winner.name} {{}} is {{}} that of the baseline, {baseline}.", at(level), ratio)
        for winner, _ in best(subjects, metric, level)[:1]
        if (ratio := winner.ratios.get(metric))
    ]


def _close_calls(subjects: Sequence[Subject], metric: str, word: str, level: Number) -> list[Sentence]:
    """A sentence if rounds of a ranking's first subject overlap with those of others, which it names."""
    ranking = best(subjects, metric, level)
    if not ranking:
        return []
    first, own = ranking[0]
    near = [(other.name, figure.high) for other, figure in ranking[1:] if own.low.value <= figure.high.value]
    if not near:
        return []
    text = (
        f"The {word} of {first.name} {{}} is a close call: its slowest round ({{}}) is not above "
        f"the fastest of {', '.join(f'{name} ({{}})' for name, _ in near)}."
    )
    return [say(text, at(level), own.low, *(high for _, high in near))]


def _rivals(subjects: Sequence[Subject], metric: str, word: str, level: Number) -> list[Sentence]:
    """A sentence for each unstable subject that has no place and may be above the first."""
    return [
        say(
            f"The {word} of {rival.name} {{}} may be higher than that of {first.name}: it is unstable, "
            f"its fastest round ({{}}) is above the slowest of {first.name} ({{}}).",
            at(level),
            figure.high,
            own.low,
        )
        for first, own in best(subjects, metric, level)[:1]
        for rival, figure in rivals(subjects, metric, level)
    ]

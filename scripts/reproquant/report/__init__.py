"""The report of a study: what was found, with a source for every number."""

from __future__ import annotations

from pathlib import Path, PurePath

from reproquant.files import repository, write_json, write_text
from reproquant.report.claims import PLACE, publish
from reproquant.report.content import Content, read_content
from reproquant.report.html import render_html
from reproquant.report.markdown import render_markdown
from reproquant.report.numbers import Numbers
from reproquant.report.plots import plots
from reproquant.report.sentences import as_data as sentence_data
from reproquant.report.traces import traces
from reproquant.study import Study


def build(results: Path, target: Path, templates: Path | None = None) -> None:
    """Write a report of a results directory into ``target``: index.html, report.md, report.json, claims.json.

    ``templates`` holds index.html.j2, report.md.j2 and style.css; by default the
    repository's workflow/report. The same results give the same bytes. Raises
    FormatError if a result is missing or malformed, or if a template would show
    a figure that has no source.
    """
    templates = templates or repository() / "workflow" / "report"
    claims = target / PurePath(PLACE).name
    publish(repository() / "workflow/claims/v100-article.yaml", claims)
    numbers = Numbers(results, {PLACE: claims})
    content = read_content(numbers, Study.load(results / "study.json"))
    drawings = (*plots(content), *traces(content))
    write_text(target / "index.html", render_html(content, drawings, templates, results))
    write_text(target / "report.md", render_markdown(content, templates))
    write_json(target / "report.json", as_data(content))


def as_data(content: Content) -> dict[str, object]:
    """report.json: every number with its source; elsewhere numbers are named by id."""
    return {
        "study": content.study,
        "model": content.model,
        "answer": sentence_data(content.answer),
        "subjects": [
            {
                "name": subject.name,
                "status": subject.status,
                "emulated": subject.emulated,
                "reasons": [reason.text for reason in subject.reasons],
                "doubts": [sentence_data(doubt) for doubt in subject.doubts],
                "evidence": subject.evidence.text if subject.evidence else None,
                "artifact_bytes": subject.size.id,
                "efficiency": subject.efficiency.data() if subject.efficiency else None,
                "to_baseline": {metric: ratio.id for metric, ratio in subject.ratios.items()},
                "levels": [
                    {
                        "concurrency": level.concurrency.id,
                        **{metric: spread.median.id for metric, spread in level.figures.items()},
                    }
                    for level in subject.levels
                ],
            }
            for subject in content.subjects
        ],
        "drift": content.drift.data(),
        "claims": [claim.data() for claim in (*content.claims.judged, *content.claims.others)],
        "quality": [one.data() for one in content.quality.evaluations] if content.quality else [],
        "files": content.numbers.files(),
        "numbers": [number.entry() for number in content.numbers],
    }

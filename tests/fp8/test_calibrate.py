from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_checkpoint
import torch

from reproquant.errors import FormatError
from reproquant.fp8.calibrate import Calibration, CalibrationError, drawn
from reproquant.fp8.chat import conversations

TEMPLATE = (
    "{% for message in messages %}\n"
    "    {% if message.role == 'system' %}{{ raise_exception('no system') }}{% endif %}\n"
    "{{ bos_token }}{{ message.role }}: {{ message.content | trim }}{{ eos_token }}\n"
    "{% endfor %}"
)
RENDERED = "<s>user: one</s>\n<s>assistant: two</s>\n<s>user: three</s>\n<s>assistant: four</s>\n"
PARAGRAPHS = "one\n\n two \n\n\nthree\n\nfour\n\nfive"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tiny_checkpoint.write(tmp_path / "source", "llama", torch.bfloat16)


def configure(source: Path, **config: object) -> None:
    (source / "tokenizer_config.json").write_text(json.dumps(config))


def test_paragraphs_become_questions_and_answers_in_the_checkpoints_template(source: Path) -> None:
    configure(source, chat_template=TEMPLATE, bos_token="<s>", eos_token={"content": "</s>", "special": True})
    assert conversations(source, PARAGRAPHS) == RENDERED


def test_the_template_may_be_a_file_or_one_of_several(source: Path) -> None:
    several = [{"name": "tools", "template": "no"}, {"name": "default", "template": TEMPLATE}]
    configure(source, chat_template=several, bos_token="<s>", eos_token="</s>")
    assert conversations(source, PARAGRAPHS) == RENDERED
    (source / "chat_template.jinja").write_text("{{ messages[1].content }};")
    assert conversations(source, PARAGRAPHS) == "two;four;"


def test_a_template_is_told_no_date(source: Path) -> None:
    configure(source, chat_template="{{ strftime_now is defined }}")
    assert conversations(source, "a\n\nb") == "False"


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({}, "it has no chat template"),
        ({"chat_template": "{% for %}"}, "can't be rendered"),
        ({"chat_template": "{{ raise_exception('only tools') }}"}, "only tools"),
        ({"chat_template": "{{ messages.__class__.__mro__ }}"}, "can't be rendered"),
    ],
)
def test_a_checkpoint_without_a_usable_template_is_refused(
    source: Path, config: dict[str, object], why: str
) -> None:
    configure(source, **config)
    with pytest.raises(FormatError, match=why) as refused:
        conversations(source, PARAGRAPHS)
    assert "fp8.calibration.form: raw" in str(refused.value)


def calibration(source: Path, **changes: object) -> Calibration:
    text = source / "text.txt"
    text.write_text("abcdefghijklmnopqrstuvwxy" * 10, encoding="utf-8")
    settings = {"text": text, "form": "raw", "rows": 5, "row_tokens": 8, "seed": None}
    return Calibration(**{**settings, **changes})


def test_a_seed_draws_other_windows_of_the_same_text_and_the_same_ones_again(source: Path) -> None:
    every = calibration(source, rows=31).token_rows(source).tolist()
    first = calibration(source).token_rows(source).tolist()
    assert first == every[:5]
    one, again, other = (calibration(source, seed=seed).token_rows(source).tolist() for seed in (1, 1, 2))
    assert one == again
    assert one not in (other, first)
    assert all(row in every for row in one)


def test_the_drawing_depends_on_the_seed_alone_and_takes_no_window_twice() -> None:
    assert drawn(6, seed=0) == [4, 2, 1, 5, 0, 3]
    assert sorted(drawn(1000, seed=3)) == list(range(1000))
    assert drawn(4, seed=None) == [0, 1, 2, 3]


def test_chat_rows_are_windows_of_the_rendered_conversations(source: Path) -> None:
    configure(source, chat_template="{{ messages[0].content }}|{{ messages[1].content }};")
    text = source / "text.txt"
    text.write_text("ab\n\ncd\n\nef\n\ngh", encoding="utf-8")
    letters = sorted(tiny_checkpoint.alphabet())
    rows = Calibration(text, "chat", rows=2, row_tokens=6, seed=None).token_rows(source).tolist()
    assert ["".join(letters[number] for number in row) for row in rows] == ["ab|cd;", "ef|gh;"]


def test_a_text_that_is_too_short_says_how_many_rows_it_has(source: Path) -> None:
    with pytest.raises(CalibrationError, match="at most 31 rows"):
        calibration(source, rows=32).token_rows(source)

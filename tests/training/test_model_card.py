import json

import pytest

from midcourse.training.model_card import CardFacts, model_card, published

SETTINGS = {
    "seed": "3",
    "environment.name": '"mathematics"',
    "environment.path": '"/home/someone/tasks.jsonl"',
    "policy.path": '"Qwen/Qwen3-0.6B"',
    "method.name": '"rti"',
    "method.files": '["data/a.jsonl", "~/b.jsonl"]',
    "role_engines.judge.base_url": '"http://10.0.0.5:8000/v1"',
    "training.learning_rate": "1e-06",
}
SHARE = {"low": 0.4, "high": 0.6}
EVALUATION = {
    "splits": {
        "test": {
            "pass_at": {"1": {"value": 0.5, **SHARE}, "2": {"value": 0.75, **SHARE}},
            "pass_hat": {"1": {"value": 0.5, **SHARE}, "2": {"value": 0.25, **SHARE}},
        }
    },
    "tags": {},
}


def card(**changes):
    facts = {"base": "Qwen/Qwen3-0.6B", "is_adapter": False, "update": 40, "settings": SETTINGS, **changes}
    return model_card(CardFacts(**facts))


def test_it_says_what_the_weights_are_and_how_they_came_to_be():
    text = card(evaluation=EVALUATION)
    front, body = text.split("---\n")[1:]
    fields = dict(line.split(": ", 1) for line in front.strip().splitlines())
    assert json.loads(fields["base_model"]) == "Qwen/Qwen3-0.6B"
    assert json.loads(fields["library_name"]) == "transformers"
    assert json.loads(fields["tags"]) == ["midcourse", "reinforcement-learning"]
    for row in ("| method | rti |", "| environment | mathematics |", "| updates | 40 |"):
        assert row in body
    assert "| test | 50.0 % | 75.0 % | 25.0 % |" in body
    assert "training.learning_rate = 1e-06" in body
    assert "AutoModelForCausalLM.from_pretrained(FOLDER)" in body


def test_of_an_adapter_it_says_how_the_two_are_loaded():
    text = card(is_adapter=True)
    assert 'library_name: "peft"' in text
    assert 'base = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B")' in text
    assert "PeftModel.from_pretrained(base, FOLDER)" in text
    assert "built into midcourse" in card(is_adapter=True, base="nano")


@pytest.mark.parametrize("base", ["/home/someone/gemma", "gemma", "models/../gemma"])
def test_a_base_that_is_a_folder_is_named_and_no_line_loads_its_name(base):
    text = card(is_adapter=True, base=base)
    loading = text.split("## Loading")[1].split("## ")[0]
    assert "# BASE: the folder of the base model" in loading
    assert "AutoModelForCausalLM.from_pretrained(BASE)" in loading
    assert "gemma" not in loading
    assert f"| base model | {published(base)} |" in text


def test_no_place_of_the_machine_or_its_network_is_published():
    text = card(base="/home/someone/models/own-model")
    assert "someone" not in text
    assert "10.0.0.5" not in text
    assert 'environment.path = "tasks.jsonl"' in text
    assert '"b.jsonl"' in text
    assert "base_model:" not in text.split("---")[1]
    assert "own-model" in text


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("nano", "nano"),
        ("/a/b/model/", "model"),
        ("../b/model", "model"),
        ("~/model", "model"),
        (r"C:\models\own", "own"),
        ("https://user:pass@host/x", "(not published)"),
        ("a / b", "a / b"),
        (".5", ".5"),
    ],
)
def test_what_is_published_of_a_text(given, expected):
    assert published(given) == expected


def test_a_relative_path_that_is_there_is_a_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert published("team/model") == "team/model"
    (tmp_path / "team" / "model").mkdir(parents=True)
    assert published("team/model") == "model"


def test_what_others_wrote_cannot_mark_up_the_card():
    evil = '"x | <img src=a> `b`\\n# head\\n```\\n---"'
    text = card(settings={"method.name": evil, "environment.name": evil, "other": evil}, base="a|b](x)<i>")
    before, _, block = text.partition("```toml\n")
    assert "<img" not in before
    assert "<i>" not in before.split("---")[2].split("```python")[0]
    assert "\n# head" not in text
    assert block.splitlines()[-1] == "```"
    assert len([line for line in block.splitlines() if line.startswith("```")]) == 1


def test_without_settings_and_scores_there_is_still_a_card():
    text = card(settings={})
    assert "## Settings" not in text
    assert "## Scores" not in text
    assert "trained by reinforcement learning" in text


def test_scores_of_another_kind_are_left_out():
    facts = CardFacts(base="nano", is_adapter=False, update=1, evaluation={"splits": {"test": {"reward_mean": 0.5}}})
    assert "## Scores" not in model_card(facts)

"""Every settings file among the examples, and every block of settings on pages about real models, is read."""

import re
from pathlib import Path

import pytest

from midcourse.config import load_config

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted(EXAMPLES.rglob("*.toml"))
DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("engines", "models", "training_real_models", "eight_gpus", "chat_templates")
BLOCKS = [
    pytest.param(page, block, id=f"{page} {place}")
    for page in PAGES
    for place, block in enumerate(re.findall(r"```toml\n(.*?)```", (DOCS / f"{page}.md").read_text("utf-8"), re.DOTALL))
]
pytestmark = pytest.mark.usefixtures("plugins_are_forgotten")


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(EXAMPLES))) for path in FILES])
def test_it_is_read_and_its_engine_gives_what_its_method_needs(path):
    config = load_config(path)
    assert config.method.needs <= config.engine.features
    assert config.output.startswith("runs/")
    assert f"examples/{path.relative_to(EXAMPLES)}" in path.read_text(encoding="utf-8")  # the command that starts it


@pytest.mark.parametrize(("page", "block"), BLOCKS)
def test_a_block_of_settings_on_a_page_is_read(page, block, tmp_path):
    path = tmp_path / f"{page}.toml"
    path.write_text(block, encoding="utf-8")
    load_config(path, ["method.name=grpo"])


@pytest.mark.parametrize(
    ("page", "line"), [("eight_gpus", "--output runs/trial"), ("training_real_models", "train run")]
)
def test_a_first_trial_does_not_score_every_test_task(page, line):
    commands = re.sub(r" \\\n +", " ", (DOCS / f"{page}.md").read_text("utf-8")).splitlines()
    trials = [command for command in commands if line in command and "training.updates=2" in command]
    assert trials
    for trial in trials:
        given = re.findall(r"--set (\S+)", trial)
        settings = load_config(None, given).evaluation
        assert (settings.at_start, settings.max_tasks) == (False, 4)


def test_there_are_files_and_blocks():
    assert len(FILES) >= 3
    assert len(BLOCKS) >= 5


def test_the_first_run_of_a_real_model_is_a_small_one():
    config = load_config(EXAMPLES / "gemma_lora_cpu.toml")
    assert config.policy.lora is not None
    assert config.name_of("engine") == "transformers"
    assert config.training.updates == 1
    assert (config.evaluation.at_start, config.evaluation.max_tasks) == (False, 1)

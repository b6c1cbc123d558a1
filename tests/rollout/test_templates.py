import pytest

from midcourse.errors import ConfigError
from midcourse.rollout.templates import SHIPPED, load_template


def test_a_template_is_shipped_or_a_file_or_the_models_own(tmp_path):
    (tmp_path / "own.jinja").write_text("{{ messages }}\u2603", encoding="utf-8")
    assert load_template("") is None
    assert load_template("gemma3") == SHIPPED["gemma3"].read_text(encoding="utf-8")
    assert load_template(str(tmp_path / "own.jinja")) == "{{ messages }}\u2603"


def test_a_template_that_is_not_there_is_named_with_those_that_are_shipped(tmp_path):
    (tmp_path / "bytes.jinja").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"policy.chat_template = 'gemma2'.*gemma3"):
        load_template("gemma2")
    with pytest.raises(ConfigError, match="bytes"):
        load_template(str(tmp_path / "bytes.jinja"))

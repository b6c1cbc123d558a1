"""Settings are strict: what is not used is an error that names what was meant."""

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from midcourse.config import (
    DEFAULT_METHOD,
    FOREIGN_NAMES,
    FREE_ON_RESUME,
    commented_toml,
    default_config,
    kept_settings,
    known_keys,
    load_config,
    reference_markdown,
    register_all,
    resolved_toml,
    section_classes,
)
from midcourse.engines.base import ENGINES
from midcourse.environments.base import ENVIRONMENTS
from midcourse.errors import ConfigError
from midcourse.methods.base import METHODS

register_all()
EVERY_CLASS = [
    pytest.param(registry[name], id=f"{registry.kind} {name}")
    for registry in (METHODS, ENGINES, ENVIRONMENTS)
    for name in registry.names()
]


def key_of(method: str, last: str) -> str:
    """Return the dotted key that ends in `last`, wherever its section keeps it."""
    keys = known_keys(section_classes({"method": method}))
    return next(key for key in keys if key.rpartition(".")[2] == last)


@pytest.mark.parametrize("method", METHODS.names())
def test_the_file_that_init_writes_gives_the_defaults(method, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(commented_toml(method), encoding="utf-8")
    assert load_config(path) == default_config(method)


@pytest.mark.parametrize("method", METHODS.names())
def test_the_resolved_settings_load_to_an_equal_config(method, tmp_path):
    config = default_config(method, ["seed=7", "rollout.max_turns=3", "training.learning_rate=2.5e-4"])
    path = tmp_path / "config.toml"
    path.write_text(resolved_toml(config), encoding="utf-8")
    assert load_config(path) == config


@pytest.mark.parametrize("method", METHODS.names())
def test_a_file_with_a_method_name_alone_is_that_method(method, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(f'[method]\nname = "{method}"\n', encoding="utf-8")
    assert load_config(path) == default_config(method)
    assert load_config(path).name_of("method") == method


@pytest.mark.parametrize("section_class", EVERY_CLASS)
def test_every_registered_config_is_strict_and_says_what_each_field_means(section_class):
    assert section_class.model_config["extra"] == "forbid"
    assert section_class.model_config["frozen"]
    assert section_class.__doc__
    for name, field in section_class.model_fields.items():
        assert field.description, f"{section_class.__name__}.{name} has no docstring"


def test_overrides_take_toml_values_and_bare_words():
    config = load_config(
        None, ["training.schedule=cosine", "rollout.temperature=0.5", "evaluation.max_tasks=none", 'output="a b"']
    )
    assert config.training.schedule == "cosine"
    assert config.rollout.temperature == 0.5
    assert config.evaluation.max_tasks is None
    assert config.output_folder == Path("a b")


def test_a_later_override_wins():
    assert load_config(None, ["seed=1", "seed=2"]).seed == 2


def test_the_gate_can_be_opened_with_inf():
    key = key_of("rti", "delta")
    text = resolved_toml(default_config("rti", [f"{key}=inf"]))
    assert "delta = inf" in text


def test_the_run_folder_is_named_after_method_and_seed():
    assert default_config("grpo", ["seed=3"]).output_folder == Path("runs/grpo-3")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("training.update=3", "training.updates"),
        ("trainng.updates=3", "training.updates"),
        ("training.max_steps=3", "training.updates"),
        ("training.lr=1e-3", "training.learning_rate"),
        ("method.num_generations=4", "method.group_size"),
        ("beta=0.1", "kl_coefficient"),
        ("method.epsilon=0.3", "clip_low"),
        ("rollout.temprature=1", "rollout.temperature"),
        ("policy.model=nano", "policy.path"),
        ("method=grpo", "method.name"),
        ("method.name=grop", "'grpo'"),
    ],
)
def test_a_wrong_name_is_an_error_that_names_the_right_one(override, expected):
    with pytest.raises(ConfigError) as caught:
        load_config(None, [override])
    assert expected in str(caught.value)
    assert override.partition("=")[0] in str(caught.value)


def test_a_setting_of_another_method_is_an_error_that_says_whose_it_is():
    key = key_of("rti", "delta")
    with pytest.raises(ConfigError, match=r"not used by method 'grpo' \(method rti.* uses? it\)"):
        load_config(None, ["method.name=grpo", f"{key}=3"])


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("training.updates=ten", "training.updates = 'ten': expected a valid integer"),
        ("training.updates=3.5", "training.updates = 3.5: expected a valid integer"),
        ("training.updates=true", "training.updates = True: expected a valid integer"),
        ("training.updates=0", "training.updates = 0: expected greater than or equal to 1"),
        ("training.learning_rate=nan", "training.learning_rate"),
        ("training.learning_rate=1e38", "training.learning_rate = 1e+38: expected less than or equal to 1"),
        ("engine.prefix_cache_tokens=99999999999", "engine.prefix_cache_tokens"),
        ("training.learning_rate=inf", "training.learning_rate = inf: expected a finite number"),
        ("training.weight_decay=inf", "training.weight_decay = inf: expected a finite number"),
        ("rollout.temperature=inf", "rollout.temperature = inf: expected a finite number"),
        ("evaluation.temperature=inf", "evaluation.temperature = inf: expected a finite number"),
        ("policy.device=tpu", "policy.device = 'tpu': expected 'auto', 'cpu' or 'cuda'"),
        ("evaluation.splits=eval", "evaluation.splits = 'eval': expected a valid array"),
        ("training=3", "training: got 3, expected a table of settings"),
        ("seed=one", "seed = 'one': expected an integer"),
        ("seed=-1", "seed = -1: expected greater than or equal to 0"),
        ("training.updates", "expected section.key=value"),
        ("training.updates=[1", "is not a TOML value"),
        ("seed=1\nx=2", "is not a TOML value"),
        ("engine.name=[]", "engine.name: got [], expected one of"),
        ("role_engines=3", "role_engines = 3: expected tables such as [role_engines.validator]"),
        (
            "policy.threads=99999999999999999999",
            "policy.threads = 99999999999999999999: expected an integer of at most",
        ),
        (f"policy.threads={'9' * 5000}", "is not a TOML value: an integer has too many digits"),
        (f"policy.threads=0x{'f' * 5000}", "policy.threads = an integer of 20000 bits: expected an integer of at most"),
        ("policy.threads=1000000000000", "policy.threads = 1000000000000: expected less than or equal to 1024"),
        ("method.std_ddof=true", "method.std_ddof = True: expected 0 or 1"),
        ("method.std_ddof=1.0", "method.std_ddof = 1.0: expected 0 or 1"),
        ("policy.path=2026-01-01", "policy.path = 2026-01-01: expected text in quotes"),
        ('output="a\\u0000"', "output = 'a\\x00': expected text without NUL"),
    ],
)
def test_a_wrong_value_is_an_error_with_key_value_and_what_was_expected(override, expected):
    with pytest.raises(ConfigError) as caught:
        load_config(None, [override])
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("environment", "key", "most"),
    [
        ("navigation", "train_tasks", 10_000),
        ("navigation", "test_tasks", 10_000),
        ("arithmetic", "train_tasks", 100_000),
        ("arithmetic", "test_tasks", 100_000),
        ("arithmetic", "max_steps", 64),
        ("mathematics", "reasoning_gym.train_size", 100_000),
        ("mathematics", "reasoning_gym.test_size", 100_000),
        ("toolqa", "train.made", 20_000),
    ],
)
def test_sizes_that_would_fill_the_memory_are_refused(environment, key, most):
    name = f"environment.{key}"
    with pytest.raises(ConfigError, match=f"{name} = 1000000000000: expected less than or equal to {most}"):
        load_config(None, [f"environment.name={environment}", f"{name}=1000000000000"])


@pytest.mark.parametrize(
    ("method", "key", "most"),
    [
        ("rail", "controller.window", 65_536),
        ("rail", "controller.hidden_units", 4096),
        ("arpo", "trigger.beam_size", 1024),
        ("aepo", "trigger.beam_size", 1024),
    ],
)
def test_sizes_of_a_method_that_would_never_end_are_refused(method, key, most):
    name = f"method.{key}"
    with pytest.raises(ConfigError, match=f"{name} = 1000000000000: expected less than or equal to {most}"):
        load_config(None, [f"method.name={method}", f"{name}=1000000000000"])


def test_an_error_in_a_file_names_the_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('[training]\nupdates = "many"\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"run\.toml: training\.updates = 'many'"):
        load_config(path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"[training\n", "is not TOML"),
        (b"[training]\nupdates = " + b"9" * 5000, "is not TOML: an integer has too many digits"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (None, "be read"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(content, expected, tmp_path):
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=expected):
        load_config(path)


def test_no_foreign_name_is_a_name_here():
    keys = known_keys(section_classes({"method": DEFAULT_METHOD}))
    names = {key.rpartition(".")[2] for key in keys if not key.startswith("role_engines.")}
    assert not names & FOREIGN_NAMES.keys()
    assert set(FOREIGN_NAMES.values()) <= names


def test_the_reference_in_the_docs_is_current():
    page = Path(__file__).parents[1] / "docs" / "configuration.md"
    assert page.read_text(encoding="utf-8") == reference_markdown(), "run: midcourse init --reference"


def test_a_text_engine_cannot_be_the_policys():
    with pytest.raises(ConfigError, match="gives text alone"):
        load_config(None, ["engine.name=openai"])


SERVER = ["role_engines.validator.base_url=http://127.0.0.1:8000/v1", "role_engines.validator.model=large"]


def test_a_role_engine_that_no_role_uses_is_an_error():
    with pytest.raises(ConfigError, match=r"role_engines\.validator: not used"):
        load_config(None, SERVER)


def test_a_role_left_to_an_engine_must_have_one():
    with pytest.raises(ConfigError, match=r"\[role_engines\.validator\] must say which"):
        load_config(None, [f"{key_of('rti', 'validator')}=engine"])


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("role_engines.validator=3", "role_engines.validator = 3: expected a table of settings"),
        ('role_engines.validator.model="large"', "role_engines.validator.base_url: required, and not given"),
        ("role_engines.validator.name=[]", "role_engines.validator.name = []: expected one of openai"),
        *(
            (f'role_engines.validator.base_url="{url}"', f"base_url = {url!r}: expected an address as in")
            for url in ("notaurl", "ftp://x/y", "", "http://[::1", "http://a b", "http://x:port")
        ),
    ],
)
def test_a_role_engine_of_the_wrong_form_is_an_error(override, expected):
    with pytest.raises(ConfigError) as caught:
        load_config(None, [f"{key_of('rti', 'validator')}=engine", override])
    assert expected in str(caught.value)


def test_role_engines_survive_the_resolved_file(tmp_path):
    config = load_config(None, [f"{key_of('rti', 'validator')}=engine", *SERVER])
    assert config.role_engines["validator"].model == "large"
    path = tmp_path / "config.toml"
    path.write_text(resolved_toml(config), encoding="utf-8")
    assert load_config(path) == config


REPAIR = ["method.name=rail", 'method.space.regimes=["mild", "repair"]', "method.repair.roles.played_by=scripted"]


def test_a_table_that_may_be_absent_is_written_compared_and_read_back(tmp_path):
    config = load_config(None, [*REPAIR, "method.repair.delta=inf", "method.repair.roles.verifier=none"])
    path = tmp_path / "config.toml"
    path.write_text(resolved_toml(config), encoding="utf-8")
    assert load_config(path) == config
    other = kept_settings(load_config(None, [*REPAIR, "method.repair.delta=2.5"]))
    assert [(key, value, other[key]) for key, value in kept_settings(config).items() if value != other[key]] == [
        ("method.repair.delta", "inf", "2.5")
    ]
    assert kept_settings(default_config("rail"))["method.repair"] == '"none"'


def test_a_table_that_a_file_leaves_out_can_be_begun_by_an_override(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(commented_toml("rail"), encoding="utf-8")
    assert load_config(path, REPAIR) == load_config(None, REPAIR)
    path.write_text(resolved_toml(default_config("rail")), encoding="utf-8")
    assert 'repair = "none"' in path.read_text(encoding="utf-8")
    assert load_config(path, REPAIR) == load_config(None, REPAIR)
    with pytest.raises(ConfigError, match=r"--set method\.online\.x: online is a value, not a section"):
        load_config(path, ["method.online.x=1"])


def test_a_wrong_name_in_a_table_that_may_be_absent_is_named():
    with pytest.raises(ConfigError, match=r"method\.repair\.delt = 3.*did you mean method\.repair\.delta"):
        load_config(None, [*REPAIR, "method.repair.delt=3"])


def test_a_role_in_a_table_within_the_method_can_be_left_to_an_engine():
    config = load_config(None, [*REPAIR, "method.repair.roles.validator=engine", *SERVER])
    assert config.role_engines["validator"].model == "large"
    with pytest.raises(ConfigError, match=r"\[role_engines\.validator\] must say which"):
        load_config(None, [*REPAIR, "method.repair.roles.validator=engine"])


def test_a_resumed_run_may_change_its_length_its_place_and_its_speed_and_nothing_that_its_numbers_follow_from():
    server = [f"{key_of('rti', 'validator')}=engine", *SERVER]
    kept = kept_settings(load_config(None, server))
    moved = ["output=other", "training.updates=999", "evaluation.attempts=1", "recording.tensorboard=false"]
    moved += ["policy.threads=4", "engine.max_batch_rows=2", 'role_engines.validator.base_url="http://10.0.0.1:1/v1"']
    assert kept_settings(load_config(None, [*server, *moved])) == kept
    for changed in (
        "seed=1",
        "environment.seed=1",
        "policy.dtype=bfloat16",
        "engine.context_length=64",
        "rollout.temperature=1.0",
        "method.roles.temperature=1.0",
        "method.objective.clip_high=0.3",
        "training.learning_rate=1e-3",
        "role_engines.validator.model=other",
    ):
        key = changed.partition("=")[0]
        other = kept_settings(load_config(None, [*server, changed]))
        assert [name for name in kept if kept[name] != other[name]] == [key]
    assert kept_settings(default_config("grpo"))["method.name"] != kept["method.name"]


def test_a_resumed_run_may_be_served_from_elsewhere():
    def kept(host, *more):
        urls = [f'engine.running.url="http://{host}:1"', f'engine.running_judge.url="http://{host}:2"']
        return kept_settings(load_config(None, ["engine.name=vllm", *urls, *more]))

    assert kept("127.0.0.1") == kept("10.0.0.1", "engine.max_retries=9")
    assert kept("127.0.0.1") != kept("127.0.0.1", "engine.logprobs=raw")


def test_every_setting_that_may_change_on_resume_is_one():
    keys = [key for engine in ENGINES.names() for key in known_keys(section_classes({"engine": engine}))]
    keys += {key.rpartition(".")[0] for key in keys}  # a table that may be absent is one value then
    assert [pattern for pattern in FREE_ON_RESUME if not any(fnmatchcase(key, pattern) for key in keys)] == []


@pytest.mark.parametrize(
    ("environment", "key"),
    [
        ("code", "sandbox.wall_seconds"),
        ("toolqa", "sandbox.wall_seconds"),
        ("agentbench_os", "machine.command_seconds"),
        ("agentbench_db", "statement_seconds"),
    ],
)
def test_what_a_turn_runs_must_end_before_the_environment_is_given_up(environment, key):
    times = [f"environment.{key}=20", "rollout.environment_timeout_seconds=20"]
    expected = rf"--set environment\.{key} = 20\.0: expected less than rollout\.environment_timeout_seconds = 20\.0"
    chat = ["policy.path=some", "policy.chat=chatml"]
    with pytest.raises(ConfigError, match=expected):
        load_config(None, [f"environment.name={environment}", *chat, *times])
    load_config(None, [f"environment.name={environment}", *chat, *times, f"environment.{key}=19.9"])


def test_the_compact_chat_goes_with_the_nano_profile_alone():
    with pytest.raises(ConfigError, match=r"environment\.profile = 'full'"):
        load_config(None, ["environment.profile=full"])
    assert load_config(None, ["environment.profile=full", "policy.chat=chatml", "policy.path=some/model"])


@pytest.mark.parametrize(
    ("table", "overrides"),
    [
        ("engine.server", ["engine.name=vllm"]),
        ("engine.running", ["engine.name=vllm"]),
        ("policy.lora", []),
        ("method.repair", ["method.name=rail", 'method.space.regimes=["mild", "repair"]']),
    ],
)
def test_a_table_that_may_be_absent_is_written_commented_out_and_loads_without_the_marks(table, overrides, tmp_path):
    chosen = [line for line in overrides if ".name=" in line]
    text = commented_toml(DEFAULT_METHOD, chosen)
    before, separator, rest = text.partition(f"# [{table}]\n")
    assert separator
    section, _, name = table.partition(".")
    assert not re.search(rf'^{name} = "none"', text, re.MULTILINE)
    block, gap, after = f"{separator}{rest}".partition("\n\n")
    assert all(line.startswith("#") for line in block.splitlines())
    assert "# # " in block  # what a setting means
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    assert getattr(getattr(load_config(path), section), name) is None
    path.write_text(before + re.sub("^# ?", "", block, flags=re.MULTILINE) + gap + after, encoding="utf-8")
    loaded = getattr(load_config(path, overrides), section)
    assert getattr(loaded, name) is not None
    every = {key.removeprefix(f"{table}.") for key in known_keys({section: type(loaded)}) if key.startswith(table)}
    assert {key for key in every if "." not in key} <= set(re.findall(r"^# (\w+) = ", block, re.MULTILINE))


OTHER_ENGINE = r"run\.toml: engine\.max_batch_rows = 4: the file's table \[engine\] is for 'transformers', .*"


@pytest.mark.parametrize("named", ["", 'name = "transformers"\n'])
def test_a_files_table_for_another_name_than_set_gives_is_an_error_that_says_to_replace_it(named, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(f"[engine]\n{named}max_batch_rows = 4\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=OTHER_ENGINE + r"`midcourse init --set engine\.name=vllm` shows") as caught:
        load_config(path, ["engine.name=vllm"])
    assert "did you mean" not in str(caught.value)
    # What --set itself gives to the wrong engine is another mistake, and so is a file's that names its engine.
    path.write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"--set engine\.max_batch_rows = 4: not used by engine 'vllm'"):
        load_config(path, ["engine.name=vllm", "engine.max_batch_rows=4"])
    path.write_text('[engine]\nname = "vllm"\nmax_batch_rows = 4\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"not used by engine 'vllm'"):
        load_config(path, ["engine.name=vllm"])

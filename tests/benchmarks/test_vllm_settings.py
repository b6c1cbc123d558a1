"""Settings of the benchmarks that need a vLLM server can be built without one."""

from pathlib import Path

import pytest

from benchmarks import vllm_training
from midcourse.assembly import _check_features
from midcourse.config import build_config


@pytest.mark.parametrize("method", vllm_training.METHODS)
def test_only_the_engine_differs(method):
    both = [
        vllm_training.arm_settings(method, engine, seed=1, updates=3, folder=Path("unused"), python="/some/python")
        for engine in vllm_training.ENGINES
    ]
    embedded, served = map(build_config, both)
    assert served.engine.server.python == "/some/python"
    _check_features(served)
    assert embedded.model_copy(update={"engine": served.engine}) == served

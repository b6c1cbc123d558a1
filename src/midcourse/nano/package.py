"""The built-in policies as they ship: weights from the package, vocabulary and turns from code."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from midcourse.errors import ConfigError
from midcourse.rollout.chat import ChatFormat

if TYPE_CHECKING:
    from midcourse.nano.documents import DocumentSource


class BuiltIn(ABC):
    """A policy of the package: `path` and `chat` are its names in the settings."""

    path: str
    chat: str
    environment: str  # the world whose words it knows, by its name in the settings
    package: str  # holds weights/
    training: Mapping[str, Any]  # what its warm start sets otherwise than by default

    @property
    @abstractmethod
    def vocabulary(self) -> Sequence[str]:
        """Its tokens; the first is padding."""

    @abstractmethod
    def chat_format(self) -> ChatFormat:
        """Return how it writes turns."""

    @abstractmethod
    def demonstrations(self, seed: int) -> "DocumentSource":
        """Return what its warm start learnt from."""

    def load(self) -> Any:
        """Return the model. Raises ConfigError: the package was installed without its weights."""
        from transformers import Qwen3ForCausalLM

        weights = resources.files(self.package) / "weights"
        if not (weights / "model.safetensors").is_file():
            folder = f"src/{self.package.replace('.', '/')}/weights"
            raise ConfigError(
                f"the weights of {self.path!r} are missing from this installation; "
                f"build them with: python -m midcourse.nano.warm_start {self.path} --output {folder}"
            )
        with resources.as_file(weights) as folder:
            return Qwen3ForCausalLM.from_pretrained(folder)


class NavigationPolicy(BuiltIn):
    """For Navigation's nano profile."""

    path, chat, environment, package = "nano", "compact", "navigation", "midcourse.nano.navigation"
    training: Mapping[str, Any] = {}

    @property
    def vocabulary(self) -> Sequence[str]:
        """Its tokens; the first is padding."""
        from midcourse.nano.navigation.tokenizer import VOCABULARY

        return VOCABULARY

    def chat_format(self) -> ChatFormat:
        """Return how it writes turns."""
        from midcourse.nano.navigation.chat import CompactChatFormat
        from midcourse.nano.navigation.tokenizer import NanoTokenizer

        return CompactChatFormat(NanoTokenizer())

    def demonstrations(self, seed: int) -> "DocumentSource":
        """Return what its warm start learnt from."""
        from midcourse.nano.navigation.chat import CompactChatFormat
        from midcourse.nano.navigation.demonstrations import DemonstrationConfig, Demonstrator
        from midcourse.nano.navigation.tokenizer import NanoTokenizer

        return Demonstrator(CompactChatFormat(NanoTokenizer()), DemonstrationConfig(), seed=seed)


class ArithmeticPolicy(BuiltIn):
    """For arithmetic with worked steps."""

    path, chat, environment = "nano-arithmetic", "digits", "arithmetic"
    package = "midcourse.nano.arithmetic"
    training: Mapping[str, Any] = {
        "context": 1024,
        "layers": 3,
        "intermediate_size": 256,
        "steps": 2000,
        "batch_tokens": 2048,
    }

    @property
    def vocabulary(self) -> Sequence[str]:
        """Its tokens; the first is padding."""
        from midcourse.nano.arithmetic.chat import VOCABULARY

        return VOCABULARY

    def chat_format(self) -> ChatFormat:
        """Return how it writes turns."""
        from midcourse.nano.arithmetic.chat import ArithmeticChatFormat

        return ArithmeticChatFormat()

    def demonstrations(self, seed: int) -> "DocumentSource":
        """Return what its warm start learnt from."""
        from midcourse.nano.arithmetic.chat import ArithmeticChatFormat
        from midcourse.nano.arithmetic.demonstrations import DemonstrationConfig, Demonstrator

        return Demonstrator(ArithmeticChatFormat(), DemonstrationConfig(), seed=seed)


class TableWorldPolicy(BuiltIn):
    """For the table world."""

    path, chat, environment = "nano-table-world", "tables", "table_world"
    package = "midcourse.nano.table_world"
    training: Mapping[str, Any] = {
        "context": 256,
        "layers": 3,
        "intermediate_size": 256,
        "steps": 1200,
        "batch_tokens": 1024,
    }

    @property
    def vocabulary(self) -> Sequence[str]:
        """Its tokens; the first is padding."""
        from midcourse.nano.table_world.chat import VOCABULARY

        return VOCABULARY

    def chat_format(self) -> ChatFormat:
        """Return how it writes turns."""
        from midcourse.nano.table_world.chat import TableChatFormat

        return TableChatFormat()

    def demonstrations(self, seed: int) -> "DocumentSource":
        """Return what its warm start learns from."""
        from midcourse.nano.table_world.chat import TableChatFormat
        from midcourse.nano.table_world.demonstrations import DemonstrationConfig, Demonstrator

        return Demonstrator(TableChatFormat(), DemonstrationConfig(), seed=seed)


BUILT_IN: Mapping[str, BuiltIn] = {
    policy.path: policy for policy in (NavigationPolicy(), ArithmeticPolicy(), TableWorldPolicy())
}
"""policy.path -> policy."""
BUILT_IN_CHAT: Mapping[str, BuiltIn] = {policy.chat: policy for policy in BUILT_IN.values()}
"""policy.chat -> policy."""

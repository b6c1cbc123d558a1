"""Retail tools: an environment of one's own, loaded by `plugins = ["retail_tools"]`. README.md explains each part."""

import random
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field
from retail_shop import RULES, TOOLS, Shop
from retail_tasks import draw_task, with_another_item

from midcourse.environments.base import ENVIRONMENTS, Observation, RoleGuide, Task
from midcourse.environments.calls import BadCall, Turns
from midcourse.errors import ConfigError
from midcourse.types import AssistantTurn, ToolCall, ToolResult

MAX_TURNS = 12
SPLITS = ("train", "test")

ROLE_GUIDE = RoleGuide(
    hard_rules=(
        "The customer is found by email address before an order is read or changed.",
        "Ids and other key arguments are copied from the request or from earlier tool answers, never made up.",
        "A write is done on the customer's own order alone, with the items and options that were asked for.",
        "What the rules forbid is declined, and all else that was asked for is done before the last message.",
        "A write cannot be undone: one too many, or on other items, is decisive.",
        "More reads than needed, another order of steps, and style are no errors.",
    ),
    error_types=("made_up_id", "wrong_item", "wrong_order", "rule_broken", "missing_step", "unneeded_write"),
    verifier_rejects=(
        "Speaks of expected calls or a known answer, or uses an id that nothing visible shows.",
        "Claims the result of a call that was not made or has not answered yet.",
    ),
    verifier_allows=("Reads an order or a product that is needed.", "Declines, with the rule as the reason."),
    forbidden_phrases=("ground truth", "expected calls", "reference answer"),
)


@ENVIRONMENTS.register("retail_tools")
class RetailToolsConfig(BaseModel):
    """Retail tools: a customer's request about orders, served with tools under written rules."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    seed: int = 0
    """Which shops and requests are drawn."""
    train_tasks: int = Field(default=24, ge=1, le=10_000)
    """Requests of the train split."""
    test_tasks: int = Field(default=12, ge=1, le=10_000)
    """Requests of the test split, from other shops."""

    def build(self) -> "RetailTools":
        """Return the environment."""
        return RetailTools(self)


class RetailTools:
    """Tasks and episodes of one config. Splits are drawn on first use and are the same on every platform."""

    name = "retail_tools"
    system_prompt = RULES
    tools = TOOLS
    max_turns = MAX_TURNS
    role_guide = ROLE_GUIDE

    def __init__(self, config: RetailToolsConfig) -> None:
        self.config = config
        self._splits: dict[str, tuple[Task, ...]] = {}

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split. Raises ConfigError: no such split."""
        if split not in SPLITS:
            raise ConfigError(f"unknown split {split!r} of retail_tools; known: {', '.join(SPLITS)}")
        if split not in self._splits:
            size = self.config.train_tasks if split == "train" else self.config.test_tasks
            rng = random.Random(f"retail/{self.config.seed}/{split}")
            self._splits[split] = tuple(draw_task(rng, split=split, index=index) for index in range(size))
        return self._splits[split]

    def start(self, task: Task, *, seed: int) -> "RetailEpisode":
        """Return a fresh episode; nothing in it is random, so `seed` changes nothing."""
        facts = task.evidence.facts
        return RetailEpisode(task, Shop(facts["database"], user_id=facts["user_id"]), Turns(MAX_TURNS))

    def counterfactual(self, task: Task) -> Task | None:
        """Return the task with evidence that names another item, for leak audits; None where nothing is exchanged."""
        return with_another_item(task)


class RetailEpisode:
    """One conversation. A turn without a call that could be read is the last message, and ends it."""

    def __init__(self, task: Task, shop: Shop, turns: Turns) -> None:
        self._task = task
        self._shop = shop
        self._turns = turns

    def act(self, turn: AssistantTurn) -> Observation:
        """Run the turn's calls in order; what is wrong with one is its answer."""
        return self._turns.run(turn, self._answer)

    def score(self) -> float:
        """Return 1.0 if the database is as the expected calls leave it and no write broke a rule, else 0.0."""
        facts = self._task.evidence.facts
        expected = Shop(facts["database"], user_id=facts["user_id"])
        for action in facts["actions"]:
            expected.call(ToolCall(action["name"], action["arguments"]))
        return float(self._shop.database == expected.database and self._shop.forbidden_writes == 0)

    def fork(self) -> "RetailEpisode":
        """Return an independent episode in the same state."""
        return RetailEpisode(self._task, self._shop.copy(), self._turns.copy())

    def close(self) -> None:
        """Free nothing: an episode holds no resource."""

    def _answer(self, call: ToolCall) -> ToolResult:
        try:
            return ToolResult(name=call.name, content=self._shop.call(call))
        except BadCall as error:
            return ToolResult(name=call.name, content=f"Error: {error}", is_error=True)

from collections import Counter

import pytest

from midcourse.environments.base import Evidence, Task
from midcourse.environments.navigation.oracle import PastTurn
from midcourse.interventions.reading import CorrectorReply, ValidatorReply, VerifierReply, read_reply
from midcourse.nano.navigation.chat import CompactChatFormat
from midcourse.nano.navigation.demonstrations import DemonstrationConfig, Demonstrator, direction_call, scan
from midcourse.nano.navigation.tokenizer import NanoTokenizer
from midcourse.types import AssistantTurn, ToolCall, ToolResult

CHAT = CompactChatFormat(NanoTokenizer())
TASK = Task(
    task_id="trip",
    split="train",
    query="visit Amber Birch",
    evidence=Evidence(
        text="Amber 10,10 Oslo;Birch 11,11 Oslo",
        private_values=("10,10", "11,11"),
        facts={
            "route": [
                {"name": "Amber", "coordinates": "10,10", "region": "Oslo"},
                {"name": "Birch", "coordinates": "11,11", "region": "Oslo"},
            ]
        },
    ),
)
TURNS = [
    PastTurn(
        message=AssistantTurn(),
        results=[
            ToolResult(name="poi_search", content="Amber 10,10 Oslo"),
            ToolResult(name="poi_search", content="Birch 20,20 Lima"),
        ],
    )
]
NOTHING = dict.fromkeys(("easy", "hard", "cued", "remark", "validator", "corrector", "verifier"), 0.0)


def draw(kind: str, number: int, **settings: float) -> list[str]:
    """Return documents of one kind, as text."""
    config = DemonstrationConfig(**{**NOTHING, kind: 1.0, "atlases": 3, **settings})
    demonstrator = Demonstrator(CHAT, config, seed=0)
    return [CHAT.decode(demonstrator.draw().token_ids) for _ in range(number)]


def test_the_same_seed_draws_the_same_documents():
    assert draw("easy", 5) == draw("easy", 5)


@pytest.mark.parametrize("kind", ["easy", "hard", "cued", "remark", "validator", "corrector", "verifier"])
def test_every_document_lies_in_the_vocabulary_and_learns_something(kind):
    config = DemonstrationConfig(**{**NOTHING, kind: 1.0, "atlases": 3})
    demonstrator = Demonstrator(CHAT, config, seed=1)
    unknown = CHAT.encode("<unk>")[0]
    for _ in range(10):
        document = demonstrator.draw()
        assert len(document.token_ids) == len(document.learnt)
        assert unknown not in document.token_ids
        assert any(document.learnt)
        assert not document.learnt[0]


def test_a_cued_episode_searches_again_where_the_regions_differ():
    seen = Counter()
    for text in draw("cued", 30):
        found = text.split("<|tool|>")[1].split("<|end|>")[0]
        differ = len({answer.split()[-1] for answer in found.split(";")}) > 1
        assert ("@" in text) == differ
        seen[differ] += 1
    assert min(seen[True], seen[False]) >= 5


def test_an_uncued_episode_searches_again_as_often_as_it_is_told_to():
    assert not any("@" in text for text in draw("hard", 10, uncued_skill=0.0))
    assert all("@" in text for text in draw("hard", 10, uncued_skill=1.0))


@pytest.mark.parametrize(
    ("role", "reply"), [("validator", ValidatorReply), ("corrector", CorrectorReply), ("verifier", VerifierReply)]
)
def test_a_role_answers_in_json_that_the_pipeline_reads(role, reply):
    for text in draw(role, 15):
        assert read_reply(text.split(f"<|{role}|>")[1].removesuffix("<|end|>"), reply) is not None


def test_validators_and_verifiers_are_shown_both_verdicts():
    verdicts = Counter('"is_valid":true' in text for text in draw("validator", 40))
    assert min(verdicts[True], verdicts[False]) >= 5
    verdicts = Counter('"ok":true' in text for text in draw("verifier", 40))
    assert min(verdicts[True], verdicts[False]) >= 5


@pytest.mark.parametrize(
    ("draft", "diagnosis"),
    [
        # found where the evidence has it; found elsewhere; coordinates of another stop; the evidence's, never shown
        ("Amber 10,10 Birch 20,20", "Amber 10,10 Oslo Birch 20,20 Lima?"),
        ("Amber 20,20 Birch 11,11", "Amber 20,20 none?Birch 11,11 none"),
    ],
)
def test_a_scan_names_each_stops_region_and_marks_what_the_evidence_has_elsewhere(draft, diagnosis):
    turn = AssistantTurn(reasoning=draft, tool_calls=(direction_call(draft.split()[1::2]),))
    assert scan(TASK, TURNS, turn) == diagnosis


@pytest.mark.parametrize(
    ("name", "diagnosis"), [("Birch", "Birch 20,20 Lima?"), ("Amber", "Amber 10,10 Oslo"), ("Cedar", "")]
)
def test_a_scan_of_a_second_search_says_whether_the_place_is_missing(name, diagnosis):
    search = AssistantTurn(tool_calls=(ToolCall("poi_search", {"address": name, "region": "Oslo"}),))
    assert scan(TASK, TURNS, search) == diagnosis

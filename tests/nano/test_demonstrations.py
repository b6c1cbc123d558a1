from collections import Counter

import pytest

from midcourse.interventions.reading import CorrectorReply, ValidatorReply, VerifierReply, read_reply
from midcourse.nano.chat import CompactChatFormat
from midcourse.nano.demonstrations import DemonstrationConfig, Demonstrator
from midcourse.nano.tokenizer import NanoTokenizer

CHAT = CompactChatFormat(NanoTokenizer())
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


def test_a_cued_episode_searches_again_and_an_uncued_one_by_habit_does_not():
    assert all("@" in text for text in draw("cued", 10))
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

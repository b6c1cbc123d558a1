from collections import Counter

import pytest

from midcourse.environments.table_world.schemas import COLUMN_WORDS, COLUMNS, TABLE_WORDS, TABLES
from midcourse.nano.package import BUILT_IN
from midcourse.nano.table_world.chat import CHECK, VOCABULARY, TableChatFormat
from midcourse.nano.table_world.demonstrations import DOCUMENT_KINDS, DemonstrationConfig, Demonstrator
from midcourse.nano.table_world.measure import sort_of, success
from midcourse.nano.tokenizer import UNKNOWN
from midcourse.nano.warm_start import recipe

CHAT = TableChatFormat()
WORDS = {*TABLE_WORDS, *COLUMN_WORDS}
LOOK = "SELECT means FROM guide WHERE word = '"


def demonstrator(**settings) -> Demonstrator:
    return Demonstrator(CHAT, DemonstrationConfig(**settings), seed=5)


def parts(document) -> tuple[list[str], list[str]]:
    """Return the words of the query and the texts of the turns."""
    start = document.learnt.index(True)
    turns = CHAT.decode(document.token_ids[start:]).split("<|assistant|>")
    return [VOCABULARY[token] for token in document.token_ids[1 : start - 2]], [
        text.split("<|end|>")[0] for text in turns
    ]


def test_the_same_seed_gives_the_same_documents_and_another_seed_others():
    first, second = (demonstrator() for _ in range(2))
    drawn = [first.draw() for _ in range(20)]
    assert drawn == [second.draw() for _ in range(20)]
    other = Demonstrator(CHAT, DemonstrationConfig(), seed=6)
    assert drawn != [other.draw() for _ in range(20)]


@pytest.mark.parametrize("kind", DOCUMENT_KINDS)
def test_documents_are_short_and_of_known_tokens_and_the_turns_alone_are_learnt(kind):
    source, unknown = demonstrator(), CHAT.tokenizer.ids[UNKNOWN]
    for _ in range(20):
        document = source.document(kind)
        assert len(document.token_ids) <= 128
        assert unknown not in document.token_ids
        learnt = [token for token, wanted in zip(document.token_ids, document.learnt, strict=True) if wanted]
        _, turns = parts(document)
        assert CHAT.decode(learnt).removesuffix("<|end|>").split("<|end|>") == turns


def test_easy_episodes_look_nothing_up_and_cued_ones_every_word():
    source = demonstrator()
    for _ in range(20):
        query, turns = parts(source.document("easy"))
        assert not WORDS & set(query)
        assert not any(turn.startswith(LOOK) for turn in turns)
        query, turns = parts(source.document("cued"))
        assert query[0] == CHECK
        looked_up = [turn.removeprefix(LOOK).removesuffix("'") for turn in turns if turn.startswith(LOOK)]
        assert sorted(looked_up) == sorted(WORDS & set(query))


def test_words_are_looked_up_without_the_cue_as_often_as_told_and_else_guessed():
    source, words, looks = demonstrator(uncued_skill=0.3), 0, 0
    tables = Counter()
    for _ in range(150):
        query, turns = parts(source.document("hard"))
        words += len(WORDS & set(query))
        looks += sum(turn.startswith(LOOK) for turn in turns)
        if set(TABLE_WORDS) & set(query) and not any(turn.startswith(LOOK) for turn in turns):
            guessed = next(turn for turn in turns if "pragma_table_info" in turn).split("'")[1]
            tables[query[1:4].index(guessed)] += 1
    assert looks / words == pytest.approx(0.3, abs=0.09)  # about 300 words: three deviations
    assert set(tables) == {0, 1, 2}  # any of the three


def test_no_document_has_a_schema_of_the_ood_split():
    source = demonstrator()
    for _ in range(30):
        query, _ = parts(source.draw())
        family = next(name for name, tables in TABLES.items() if set(tables) & set(query))
        others = {column for name, columns in COLUMNS.items() if name != family for column in columns}
        assert not others & set(query)


def test_the_policy_has_between_0_3_and_0_5_million_parameters():
    from midcourse.nano.warm_start import build_model

    config, _ = recipe(BUILT_IN["nano-table-world"])
    assert 3e5 <= sum(parameter.numel() for parameter in build_model(config).parameters()) <= 5e5


def test_turns_are_sorted_by_how_they_begin():
    assert sort_of(f"{LOOK}north'") == "look up"
    assert sort_of("SELECT name FROM pragma_table_info('stock')") == "columns"
    assert sort_of("SELECT name FROM stock ORDER BY size LIMIT 1") == sort_of("SELECT size FROM stock") == "find"
    assert sort_of("answer 12") == "answer"
    assert sort_of("DELETE FROM stock WHERE name = 'cup'") == "change"


def test_success_counts_rollouts_and_groups_whose_rewards_differ():
    found = success([[1.0, 0.0, None], [0.0, 0.0], [1.0, 1.0], [0.0, None], [None]])
    assert found == {"groups": 4, "failed": 3, "pass@1": 3 / 7, "pass@8": 1 / 2, "mixed_groups": 1 / 4}

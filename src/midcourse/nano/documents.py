"""What a warm start learns from: documents, and batches of documents of similar length."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch.utils.data import IterableDataset

SHUFFLED = 256
"""Documents that are sorted into batches together."""


@dataclass(frozen=True, slots=True)
class Document:
    """Tokens, and which of them are learnt."""

    token_ids: Sequence[int]  # [T]
    learnt: Sequence[bool]  # [T]


class DocumentSource(Protocol):
    """Draws documents, endlessly; the same seed gives the same documents."""

    def draw(self) -> Document:
        """Return one document."""
        ...


class Batches(IterableDataset[list[Document]]):
    """Documents of similar length together, to pad little, the batches in random order; endless."""

    def __init__(self, source: DocumentSource, *, batch_tokens: int, seed: int) -> None:
        self._source = source
        self._batch_tokens = batch_tokens
        self._seed = seed

    def __iter__(self) -> Iterator[list[Document]]:
        shuffle = random.Random(f"batches/{self._seed}").shuffle
        while True:
            documents = sorted(
                (self._source.draw() for _ in range(SHUFFLED)), key=lambda document: len(document.token_ids)
            )
            batches: list[list[Document]] = [[]]
            for document in documents:
                if batches[-1] and len(document.token_ids) * (len(batches[-1]) + 1) > self._batch_tokens:
                    batches.append([])
                batches[-1].append(document)
            shuffle(batches)
            yield from batches

"""What an arithmetic policy can do: `python -m midcourse.nano.arithmetic.measure [FOLDER]` prints one JSON object.

Success by difficulty, how often its verdicts on chunks agree with the scripted judge's, and how often it writes the
right solution of a hard chain, greedy: behind the cue, and when it has the solution in its prompt.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from midcourse.assembly import assembled
from midcourse.config import build_config
from midcourse.engines.base import Engine, SamplingParams
from midcourse.interventions.reading import ReviewReply, read_reply
from midcourse.nano.arithmetic.chat import ArithmeticChatFormat
from midcourse.nano.arithmetic.demonstrations import KINDS, DemonstrationConfig, Demonstrator
from midcourse.nano.settings import arithmetic_settings
from midcourse.runs import evaluate_parts

MEASURE_SEED = 999
"""Of the documents that the judge is examined on: the warm start draws with other seeds."""
LONGEST_RESPONSE = 260


async def answers(engine: Engine, kind: str, *, number: int) -> list[tuple[str, str]]:
    """Return (what the policy writes, what it was to write) for documents of one kind, greedy."""
    chat = ArithmeticChatFormat()
    shares = {name: float(name == kind) for name in KINDS}
    source = Demonstrator(chat, DemonstrationConfig.model_validate(shares), seed=MEASURE_SEED)
    documents = [source.draw() for _ in range(number)]
    starts = [document.learnt.index(True) for document in documents]
    sampling = SamplingParams(max_tokens=LONGEST_RESPONSE, temperature=0.0, stop_ids=chat.stop_ids)
    completions = await asyncio.gather(
        *(
            engine.sample(document.token_ids[:start], sampling)
            for document, start in zip(documents, starts, strict=True)
        )
    )
    return [
        (chat.decode(completion.token_ids), chat.decode(document.token_ids[start:]))
        for completion, document, start in zip(completions, documents, starts, strict=True)
    ]


def judge_agreement(pairs: list[tuple[str, str]]) -> dict[str, float]:
    """Return how often verdicts agree: all, where the chunk may stand, where not, and with the place as well."""
    read = [tuple(read_reply(text.removesuffix("<|end|>"), ReviewReply) for text in pair) for pair in pairs]
    right = [(found, wanted) for found, wanted in read if wanted is not None and wanted.verdict == "keep"]
    wrong = [(found, wanted) for found, wanted in read if wanted is not None and wanted.verdict == "revise"]
    return {
        "keeps_what_is_right": _share(found is not None and found.verdict == "keep" for found, _ in right),
        "revises_what_is_wrong": _share(found is not None and found.verdict == "revise" for found, _ in wrong),
        "names_the_place": _share(found == wanted for found, wanted in wrong),
        "unreadable": _share(found is None for found, _ in read),
    }


def _share(outcomes: Any) -> float:
    listed = list(outcomes)
    return sum(listed) / len(listed) if listed else float("nan")


async def measure(path: str, *, tasks: int = 150, documents: int = 200) -> dict[str, Any]:
    """Return what the module's docstring lists, for the policy at `path` ("nano-arithmetic": the one that ships)."""
    settings = arithmetic_settings("grpo", seed=0, updates=1, folder=Path("unused"))
    settings["policy"] = {"path": path, "chat": "digits"}
    settings["evaluation"]["max_tasks"] = tasks
    async with assembled(build_config(settings)) as parts:
        result = (await evaluate_parts(parts)).to_dict()
        sheets = {**result["tags"], **result["splits"]}
        engine = parts.tools.engine
        skills = {kind: await answers(engine, kind, number=documents) for kind in ("cued", "privileged")}
        return {
            "pass@1": {
                name: sheets[name]["pass_at"]["1"]["value"]
                for name in ("test/easy", "test/hard", "ood/easy", "ood/hard")
            },
            **{kind: _share(found == wanted for found, wanted in pairs) for kind, pairs in skills.items()},
            "judge": judge_agreement(await answers(engine, "judge", number=documents)),
        }


def main() -> None:
    """Measure and print."""
    path = sys.argv[1] if len(sys.argv) > 1 else "nano-arithmetic"
    print(json.dumps(asyncio.run(measure(path)), indent=1))


if __name__ == "__main__":
    main()

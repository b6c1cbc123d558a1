"""What a nano policy can do: `python -m midcourse.nano.navigation.measure [FOLDER]` prints one JSON object.

Success by difficulty on tasks of Navigation (no intervention), how often each role says what the scripted expert
says, and how likely the policy finds the missing second search (perplexity of the expert's step).
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, cast

from midcourse.assembly import assembled
from midcourse.config import build_config
from midcourse.engines.base import Engine, SamplingParams
from midcourse.interventions.gate import min_token_logprob, perplexity
from midcourse.interventions.reading import CorrectorReply, ValidatorReply, VerifierReply, read_reply
from midcourse.nano.navigation.chat import CompactChatFormat
from midcourse.nano.navigation.demonstrations import DemonstrationConfig, Demonstrator
from midcourse.nano.settings import navigation_settings
from midcourse.runs import evaluate_parts

REPLIES = {"validator": ValidatorReply, "corrector": CorrectorReply, "verifier": VerifierReply}
SHARES = ("easy", "hard", "cued", "remark", *REPLIES)
MEASURE_SEED = 999
"""Of the documents that roles are examined on: the warm start draws with other seeds."""


def demonstrator(chat: CompactChatFormat, kind: str) -> Demonstrator:
    """Return a source of documents of one kind, on maps of their own."""
    shares: dict[str, Any] = {name: float(name == kind) for name in SHARES}
    return Demonstrator(chat, DemonstrationConfig(**shares, uncued_skill=1.0), seed=MEASURE_SEED)


async def role_agreement(engine: Engine, chat: CompactChatFormat, role: str, *, number: int) -> dict[str, float]:
    """Return the share of verdicts (corrector: of whole corrections) that agree with the scripted expert, greedy."""
    source = demonstrator(chat, role)
    documents = [source.draw() for _ in range(number)]
    prompts, references = [], []
    for document in documents:
        start = document.learnt.index(True)
        prompts.append(document.token_ids[:start])
        references.append(read_reply(chat.decode(document.token_ids[start:-1]), REPLIES[role]))
    sampling = SamplingParams(max_tokens=64, temperature=0.0, stop_ids=chat.stop_ids)
    completions = await asyncio.gather(*(engine.sample(prompt, sampling) for prompt in prompts))
    replies = [read_reply(chat.decode(completion.token_ids), REPLIES[role]) for completion in completions]
    verdict = {"validator": "is_valid", "verifier": "ok", "corrector": "tool_calls"}[role]
    pairs = [
        (getattr(reply, verdict) if reply is not None else None, getattr(reference, verdict))
        for reply, reference in zip(replies, references, strict=True)
    ]
    scores = {"agreement": share(found == expected for found, expected in pairs)}
    scores["unreadable"] = share(reply is None for reply in replies)
    if role != "corrector":
        for value, name in ((True, "agreement_where_right"), (False, "agreement_where_wrong")):
            scores[name] = share(found == expected for found, expected in pairs if expected is value)
    return scores


async def second_search(engine: Engine, chat: CompactChatFormat, *, number: int) -> dict[str, float]:
    """Return perplexity and least token log-probability of the expert's second search, mean over hard episodes."""
    source = demonstrator(chat, "hard")
    perplexities, least = [], []
    for _ in range(number):
        document = source.draw()
        starts = [
            position
            for position in range(1, len(document.learnt))
            if document.learnt[position] and not document.learnt[position - 1]
        ]
        end = document.learnt.index(False, starts[1])
        scores = await engine.score(document.token_ids[: starts[1]], document.token_ids[starts[1] : end])
        perplexities.append(perplexity(scores.logprobs))
        least.append(min_token_logprob(scores.logprobs))
    return {"perplexity": sum(perplexities) / number, "min_token_logprob": sum(least) / number}


def share(outcomes: Any) -> float:
    """Return the share of true outcomes; nan for none."""
    listed = list(outcomes)
    return sum(listed) / len(listed) if listed else float("nan")


async def measure(path: str, *, tasks: int = 150, role_documents: int = 100) -> dict[str, Any]:
    """Return what the module's docstring lists, for the policy at `path` ("nano" for the one that ships)."""
    settings = navigation_settings("grpo", seed=0, updates=1, folder=Path("unused"))
    settings["policy"] = {"path": path}
    settings["evaluation"]["max_tasks"] = tasks
    async with assembled(build_config(settings)) as parts:
        result = (await evaluate_parts(parts)).to_dict()
        engine, chat = parts.tools.engine, cast(CompactChatFormat, parts.tools.chat)
        sheets = {**result["tags"], **result["splits"]}
        return {
            "pass@1": {
                name: sheets[name]["pass_at"]["1"]["value"]
                for name in ("test/easy", "test/hard", "ood/easy", "ood/hard")
            },
            "second_search": await second_search(engine, chat, number=min(50, role_documents)),
            "roles": {role: await role_agreement(engine, chat, role, number=role_documents) for role in REPLIES},
        }


def main() -> None:
    """Measure and print."""
    print(json.dumps(asyncio.run(measure(sys.argv[1] if len(sys.argv) > 1 else "nano")), indent=1))


if __name__ == "__main__":
    main()

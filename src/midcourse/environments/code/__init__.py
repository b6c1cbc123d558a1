"""Programming tasks whose answers run on tests in a sandbox (HumanEval, MBPP, LiveCodeBench; docs/code.md)."""

from midcourse.environments.code.environment import CodeConfig, CodeEnvironment, ProblemFile
from midcourse.environments.code.grading import Grade, Grader, Verdict

__all__ = ["CodeConfig", "CodeEnvironment", "Grade", "Grader", "ProblemFile", "Verdict"]

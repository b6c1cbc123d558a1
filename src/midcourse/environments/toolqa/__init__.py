"""Questions about a price table, answered with a Python interpreter (ToolQA-Coffee; docs/toolqa.md)."""

from midcourse.environments.toolqa.environment import QuestionSet, ToolQAConfig, ToolQAEnvironment

__all__ = ["QuestionSet", "ToolQAConfig", "ToolQAEnvironment"]

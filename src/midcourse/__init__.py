"""Corrects, branches and steers LLM rollouts while they are generated, and trains the policy on what comes out."""

__version__ = "0.1.0"

"""The tiny policy that makes everything runnable on a laptop CPU: tokenizer, turns, warm start, demo."""

"""vLLM as the engine: a server of its own or a given one, new weights for it, requests to it."""

"""The engine `vllm`: tokens come from a vLLM server, weights go there after every update.

config.py has the settings, client.py the requests, server.py the server's life, weights.py how weights reach it,
engine.py the whole. None of it imports vLLM, which lives in the server's own process and environment.
"""

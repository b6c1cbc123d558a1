"""Which arguments and variables of a server are midcourse's own to give: of two, vLLM would take the last unsaid."""

from collections.abc import Iterable

OURS = {
    "--help": "it ends the server",
    "-h": "it ends the server",
    "--host": "midcourse asks it on the loopback device",
    "--port": "set engine.server.port",
    "--uds": "midcourse asks it on the loopback device",
    "--root-path": "midcourse asks it at the root",
    "--api-key": "midcourse asks it without a key, on the loopback device",
    "--model": "it serves the policy's weights",
    "--served-model-name": "midcourse asks for its model by a name of its own",
    "--tokenizer": "it gets the policy's",
    "--skip-tokenizer-init": "it gets the policy's tokenizer",
    "--worker-extension-cls": "midcourse's brings new weights",
    "--dtype": "set engine.server.dtype",
    "--max-model-len": "set engine.server.context_length",
    "--enable-lora": "set engine.server.max_lora_rank",
    "--max-lora-rank": "set engine.server.max_lora_rank",
}
"""Argument -> why it is midcourse's to give, or which setting is meant."""
OUR_PREFIX = "--ssl-"
OUR_VARIABLES = {
    "VLLM_SERVER_DEV_MODE": "new weights come by the routes that it opens",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "set engine.server.max_lora_rank",
    "VLLM_API_KEY": OURS["--api-key"],
}


def check_arguments(arguments: Iterable[str]) -> None:
    """Raise ValueError for an argument that is midcourse's, as "--x y", "--x=y" or "--x_y"."""
    for argument in arguments:
        name = argument.partition("=")[0].replace("_", "-")
        reason = OURS.get(name.replace("--no-", "--", 1))
        if name.startswith(OUR_PREFIX):
            reason = "midcourse asks it without encryption, on the loopback device"
        if reason is not None:
            raise ValueError(f"{argument!r} is midcourse's to give: {reason}")


def check_variables(names: Iterable[str]) -> None:
    """Raise ValueError for a variable that no environment can hold or that is midcourse's."""
    for name in names:
        if not name or "=" in name:
            raise ValueError(f"{name!r}: expected names of variables, not empty and without '='")
        if name in OUR_VARIABLES:
            raise ValueError(f"{name!r} is midcourse's to give: {OUR_VARIABLES[name]}")

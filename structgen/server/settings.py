"""What the server allows and assumes; every limit has its own error."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Attributes (times in seconds, sizes in bytes):

    adapter_updates: whether clients may load and unload LoRA adapters; the paths they give are read on this machine.
    describe: tell the model the fields of a JSON schema in the prompt, as `LLM.generate` does.
    default_temperature: for requests that name none; 0 as in Python, so that a record is extracted the same everywhere.
    default_max_tokens: for requests that name none.
    max_pending: requests in flight, running and waiting; one more is answered 429.
    compiled_grammars, compiled_bytes: how many compiled grammars are kept for the next request, and how large together.
    validators: processes that validate and can be killed; 0 validates in the server's own, for schemas you trust.
    validate_timeout: how long such a process may take.
    keep_alive: a stream without news sends a comment after so long.
    grace: how long running requests may go on after the server was told to stop.
    """

    max_body: int = 8 * MIB
    max_body_depth: int = 128
    max_schema: int = MIB // 4
    max_regex: int = 8192
    max_choices: int = 4096
    max_choice: int = 4096
    max_messages: int = 4096
    max_n: int = 16
    max_stop: int = 16
    max_logit_bias: int = 1024
    max_pending: int = 256
    compile_timeout: float = 10.0
    compiled_grammars: int = 128
    compiled_bytes: int = 512 * MIB
    validators: int = 2
    validate_timeout: float = 5.0
    keep_alive: float = 15.0
    grace: float = 10.0
    adapter_updates: bool = False
    describe: bool = True
    default_temperature: float = 0.0
    default_max_tokens: int = 512

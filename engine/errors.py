"""What can go wrong in the engine, for the caller to tell apart."""

from __future__ import annotations


class EngineError(Exception):
    """Base of everything the engine raises on purpose. `hint` says what to change (it may be empty)."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ModelError(EngineError):
    """A model folder or file that cannot be used: missing, damaged, or of another architecture."""


class StepTimeoutError(EngineError):
    """The device did not finish a step in time: it hangs, and with it the engine."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the device did not finish a step within {seconds:g} s", hint="restart the process")


class ParameterError(EngineError, ValueError):
    """A sampling parameter that makes no sense. The message starts with the name of its `field`."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field} {reason}")
        self.field = field
        self.reason = reason


class BudgetError(EngineError, ValueError):
    """The request may generate fewer tokens than its grammar needs. `least` tokens (EOS included) would do."""

    def __init__(self, max_tokens: int, least: int) -> None:
        super().__init__(
            f"max_tokens={max_tokens} is too small: the shortest output takes {least} tokens",
            hint=f"set max_tokens to {least} or more",
        )
        self.max_tokens = max_tokens
        self.least = least


class ContextLengthError(EngineError, ValueError):
    """The prompt (with the least possible output) does not fit in `max_context` tokens."""

    def __init__(self, prompt_tokens: int, max_context: int, least: int = 1) -> None:
        super().__init__(
            f"the prompt has {prompt_tokens} tokens and at least {least} must follow; the context holds {max_context}",
            hint="shorten the prompt, or load the model with a larger max_context",
        )
        self.prompt_tokens = prompt_tokens
        self.max_context = max_context
        self.least = least


class AdapterError(EngineError, ValueError):
    """An adapter cannot be loaded, unloaded or used as asked; `unknown`: no adapter of that name is loaded."""

    def __init__(self, message: str, *, hint: str = "", unknown: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.unknown = unknown

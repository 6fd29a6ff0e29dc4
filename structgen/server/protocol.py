"""The shapes of OpenAI's chat API: what is read, and what is refused rather than ignored."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from structgen.server.errors import ApiError
from structgen.server.settings import ServerSettings

# Fields that change nothing about an answer of ours.
HARMLESS = frozenset(
    {"user", "store", "metadata", "service_tier", "reasoning_effort", "verbosity", "parallel_tool_calls"}
    | {"safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
)
# Fields that we do not have, with the values that ask for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "functions": (None, []),
    "function_call": (None, "none"),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
}


# What pydantic adds to the path of an error, which names no field.
UNION_MEMBERS = ("list[", "str", "function-", "bool", "literal[", "[key]")


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else value


Number = Annotated[float, BeforeValidator(_number)]


Bias = Annotated[float, BeforeValidator(_number), Field(ge=-100, le=100)]
TokenId = Annotated[str, Field(pattern="^[0-9]{1,9}$")]  # JSON's names are texts


class Message(BaseModel):
    """One turn; further fields (name, tool_calls ...) go to the chat template as they are."""

    model_config = ConfigDict(strict=True, extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    include_usage: bool = False


class ChatRequest(BaseModel):
    """`POST /v1/chat/completions`, without what HARMLESS and NEUTRAL name."""

    model_config = ConfigDict(strict=True, extra="forbid")

    messages: list[Message] = Field(min_length=1)
    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=1, le=1 << 31)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=1 << 31)
    temperature: Number | None = Field(default=None, ge=0, le=2)
    top_p: Number | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)  # -1 and 0: all
    min_p: Number | None = Field(default=None, ge=0, le=1)
    frequency_penalty: Number | None = Field(default=None, ge=-2, le=2)
    presence_penalty: Number | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: Number | None = Field(default=None, ge=0.01, le=100)
    logit_bias: dict[TokenId, Bias] | None = None
    logprobs: bool | Literal["masked", "raw"] | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    seed: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)
    n: int | None = Field(default=None, ge=1)
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # The spellings of a constraint; `constraints` reads them.
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None

    @property
    def budget(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def biases(self) -> dict[int, float]:
        return {int(token): bias for token, bias in (self.logit_bias or {}).items()}

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


def parse_chat_request(body: dict[str, Any], settings: ServerSettings) -> ChatRequest:
    """Raises ApiError that names the field: unknown, of the wrong type, out of range, or not supported."""
    fields = {name: value for name, value in body.items() if name not in HARMLESS}
    if fields.get("tool_choice") == "none":
        fields.pop("tools", None)
    for name, allowed in NEUTRAL.items():
        value = fields.pop(name, None)
        if not any(_same(value, neutral) for neutral in allowed):
            raise ApiError(f"`{name}` is not supported", code="unsupported_field", param=name)
    try:
        request = ChatRequest.model_validate(fields)
    except ValidationError as error:
        raise _field_error(error) from None
    _check_limits(request, settings)
    return request


def _same(value: Any, other: Any) -> bool:
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def _field_error(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_input=False)[0]
    path = [str(part) for part in first["loc"] if not str(part).startswith(UNION_MEMBERS)]
    param = ".".join(path) or None
    if first["type"] == "extra_forbidden":
        return ApiError(f"unknown field `{param}`", code="unknown_field", param=param)
    return ApiError(f"`{param}`: {first['msg']}", code="invalid_value", param=param)


def _check_limits(request: ChatRequest, settings: ServerSettings) -> None:
    if len(request.biases) > settings.max_logit_bias:
        message = f"`logit_bias` may name at most {settings.max_logit_bias} tokens"
        raise ApiError(message, code="logit_bias_too_large", param="logit_bias")
    if request.top_logprobs and not request.logprobs:
        raise ApiError("`top_logprobs` needs `logprobs`", code="conflicting_fields", param="top_logprobs")
    if len(request.messages) > settings.max_messages:
        raise ApiError(f"at most {settings.max_messages} messages", code="too_many_messages", param="messages")
    if (request.n or 1) > settings.max_n:
        raise ApiError(f"`n` may be at most {settings.max_n}", code="n_too_large", param="n")
    if len(request.stops) > settings.max_stop or any(not stop or len(stop) > 256 for stop in request.stops):
        message = f"`stop` takes at most {settings.max_stop} texts of 1 to 256 characters"
        raise ApiError(message, code="invalid_stop", param="stop")
    both = (request.max_tokens, request.max_completion_tokens)
    if None not in both and both[0] != both[1]:
        message = "`max_tokens` and `max_completion_tokens` mean the same, and differ"
        raise ApiError(message, code="conflicting_fields", param="max_completion_tokens")

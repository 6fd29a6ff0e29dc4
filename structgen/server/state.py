"""What all requests share."""

from __future__ import annotations

import asyncio
import gc
import time
from dataclasses import dataclass, field
from typing import cast

from fastapi import Request

from structgen.async_engine import AsyncEngine
from structgen.server.compiler import GrammarCompiler
from structgen.server.model import ModelLike
from structgen.server.settings import ServerSettings
from structgen.server.validation_pool import ValidationPool
from structgen.token_stream import EngineStoppedError


@dataclass
class ServerState:
    """One server's model, engine thread, compiler and counters.

    Attributes:
        started: seconds since the epoch.
        validated, validation_failures: finished structured outputs that were checked, and those that broke their
            constraint; the second must stay 0.
    """

    llm: ModelLike
    settings: ServerSettings
    validators: ValidationPool
    compiler: GrammarCompiler
    running: AsyncEngine | None = None
    started: int = field(default_factory=lambda: int(time.time()))
    validated: int = 0
    validation_failures: int = 0

    @property
    def engine(self) -> AsyncEngine:
        if self.running is None:
            raise EngineStoppedError("the engine is not running")
        return self.running

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the loaded LoRA adapters."""
        return () if self.running is None else self.running.adapters

    async def start(self) -> None:
        """Load the model and warm up, both off the event loop; then start the engine's thread."""
        engine, _ = await asyncio.gather(asyncio.to_thread(lambda: self.llm.engine), self.validators.start())
        await self.compiler.warm_up()
        # What is there now stays: each full collection would look through all of it, for tens of milliseconds.
        gc.collect()
        gc.freeze()
        self.running = AsyncEngine(engine, max_pending=self.settings.max_pending)
        self.running.start()

    async def stop(self) -> None:
        if self.running is not None:
            await self.running.stop(self.settings.grace)
        self.compiler.close()
        gc.unfreeze()
        await self.validators.close()


def state_of(request: Request) -> ServerState:
    return cast(ServerState, request.app.state.server)

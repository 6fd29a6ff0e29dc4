"""The HTTP server: OpenAI's chat API with constraints that hold."""

from __future__ import annotations

from structgen.server.app import create_app
from structgen.server.settings import ServerSettings

__all__ = ["ServerSettings", "create_app"]

"""Typed answers from a model: `python examples/quickstart.py`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

import structgen


class Landmark(BaseModel):
    name: str = Field(description="name of the landmark")
    city: str = Field(description="city it stands in")
    year: int = Field(description="year it was built")


def main() -> None:
    llm = structgen.LLM()

    landmark = llm.extract("The Brandenburg Gate in Berlin was built in 1791.", Landmark)
    print(repr(landmark))

    mood = llm.generate("Review: 'Broke after two days, never again.' Is it positive?", Literal["yes", "no"])
    print(mood)

    print(llm.generate("When does the shop open? Answer with a time.", structgen.Regex(r"([01]\d|2[0-3]):[0-5]\d")))

    for piece in llm.stream("Name three rivers.", list[str], max_tokens=60):
        print(piece, end="", flush=True)
    print()


if __name__ == "__main__":
    main()

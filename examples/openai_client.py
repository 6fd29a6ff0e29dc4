"""The official `openai` client against `structgen serve`.

structgen serve --port 8000
python examples/openai_client.py http://127.0.0.1:8000/v1
"""

from __future__ import annotations

import sys

from openai import OpenAI
from pydantic import BaseModel


class Landmark(BaseModel):
    name: str
    city: str
    year: int


def main(base_url: str) -> Landmark:
    client = OpenAI(base_url=base_url, api_key="not needed")
    model = client.models.list().data[0].id
    question = "The Brandenburg Gate in Berlin was built in 1791. Write name, city and year as JSON."
    completion = client.chat.completions.parse(
        model=model,
        messages=[{"role": "user", "content": question}],
        response_format=Landmark,
        max_tokens=100,
        temperature=0,
    )
    landmark = completion.choices[0].message.parsed
    assert landmark is not None
    print(repr(landmark))
    return landmark


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1")

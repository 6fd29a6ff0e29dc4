"""Schemas that say the same, as far as that is plain from their text."""

from __future__ import annotations

import json

from structgen.grammar.json_schema.document import Place, SchemaDocument
from structgen.grammar.json_schema.keywords import KEYWORDS
from structgen.grammar.json_schema.shapes import Conjunction

MAX_REFERENCES = 20  # followed one after the other

_ANNOTATIONS = frozenset(name for name, keyword in KEYWORDS.items() if keyword.status == "annotation")


class Sameness:
    """Knows the places of one document by their text."""

    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self._first: dict[tuple[str, tuple[str, ...], str], Place] = {}
        self._known: dict[Place, Place] = {}

    def contradict(self, schema: Conjunction) -> bool:
        """Whether some place and the negation of one with the same text are in a conjunction."""
        denied = [place for place in schema if place.negated]
        if not denied or len(denied) == len(schema):
            return False
        texts = {self.first(place).opposite for place in denied}
        return any(self.first(place) in texts for place in schema if not place.negated)

    def first(self, place: Place) -> Place:
        """The first place that was asked for with this text (and sign), which stands for all of them."""
        found = self._known.get(place)
        if found is None:
            plain = place.opposite if place.negated else place
            same = self._first.setdefault(self.text(plain), plain)
            found = self._known[place] = same.opposite if place.negated else same
        return found

    def text(self, place: Place) -> tuple[str, tuple[str, ...], str]:
        """Equal for places with the same text in the same resources; annotations left out, references followed."""
        schema = place.schema
        for _ in range(MAX_REFERENCES):
            schema = place.schema
            if isinstance(schema, dict):
                schema = {name: value for name, value in schema.items() if name not in _ANNOTATIONS}
                if schema.keys() == {"$ref"}:
                    place = self._document.resolve(place, schema["$ref"])
                    continue
            break
        return place.resource, place.scope, json.dumps(schema, sort_keys=True, default=str)

"""Which draft a schema says that it is written in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from structgen.grammar.errors import UnsupportedSchemaError

_DRAFTS = {
    "draft-03": 3, "draft-04": 4, "draft-06": 6, "draft-07": 7, "2019-09": 2019, "2020-12": 2020,
}  # fmt: skip
_VOCABULARIES = ("https://json-schema.org/draft/2019-09/vocab/", "https://json-schema.org/draft/2020-12/vocab/")


def declared_draft(schema: Any, pointer: str, document: Callable[[str], Any]) -> int | None:
    """The draft that `$schema` names, itself or through a metaschema of the caller's; None when it names none.

    Raises:
        UnsupportedSchemaError: draft-03, or a metaschema that takes vocabularies away or needs unknown ones.
    """
    uri = schema.get("$schema") if isinstance(schema, dict) else None
    if not isinstance(uri, str):
        return None
    here = f"{pointer}/$schema"
    metaschema = None if uri.partition("#")[0].endswith("/schema") else document(uri.partition("#")[0])
    if isinstance(metaschema, dict):
        _refuse_other_vocabularies(metaschema.get("$vocabulary"), here)
        uri = str(metaschema.get("$schema", uri))
    draft = next((number for name, number in _DRAFTS.items() if name in uri), None)
    if draft == 3:
        raise UnsupportedSchemaError("draft-03 is not supported", pointer=here, hint="move to a later draft")
    return draft


def _refuse_other_vocabularies(vocabularies: Any, here: str) -> None:
    if not isinstance(vocabularies, dict):
        return
    names = {uri.rpartition("/")[2] for uri in vocabularies if uri.startswith(_VOCABULARIES)}
    unknown = [uri for uri, needed in vocabularies.items() if needed and not uri.startswith(_VOCABULARIES)]
    if unknown or not {"applicator", "validation"} <= names:
        raise UnsupportedSchemaError(
            f"the metaschema needs the vocabulary {unknown[0]!r}" if unknown else "the metaschema lacks vocabularies",
            pointer=here,
            hint="name a standard draft",
        )

"""What URIs mean: identifiers and anchors of the schema, and the documents that the caller or a draft supplies.

An address names a place in any document: a JSON pointer in the schema itself, URI#pointer in another document. A
resource is a schema with an identifier of its own, named by its address. Nothing is ever fetched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin

RECURSIVE = "#"  # the name under which `$recursiveAnchor: true` is kept; no anchor is called so
_METASCHEMAS = ("http://json-schema.org/draft", "https://json-schema.org/draft")


class Resources:
    """Roots, identifiers and anchors of all documents that were read."""

    def __init__(self, root: Any, documents: Mapping[str, Any] | None) -> None:
        self.uri_of: dict[str, str] = {"": ""}  # resource -> absolute URI
        self._roots: dict[str, Any] = {"": root}  # what stands before the pointer of an address -> document
        self._address_of: dict[str, str] = {}
        self._anchors: dict[tuple[str, str], str] = {}
        self._dynamic: dict[str, dict[str, str]] = {}  # resource -> anchor name -> address
        self._documents = documents or {}

    def open_document(self, uri: str, root: Any) -> str:
        """Take a document in; its address."""
        address = f"{uri}#"
        self._roots[address] = root
        self.uri_of[address] = uri
        self._address_of.setdefault(uri, address)
        return address

    def open_resource(self, uri: str, address: str, outer: str) -> None:
        """Note that a resource begins at an address; its URI is read from within the one around it."""
        absolute = joined(self.uri_of[outer], uri).partition("#")[0]
        self.uri_of[address] = absolute
        self._address_of.setdefault(absolute, address)

    def note_anchor(self, resource: str, name: str, address: str) -> None:
        self._anchors[resource, name] = address

    def note_dynamic_anchor(self, resource: str, name: str, address: str) -> None:
        self._dynamic.setdefault(resource, {})[name] = address

    def anchor(self, resource: str, name: str) -> str | None:
        return self._anchors.get((resource, name))

    def dynamic_anchor(self, resource: str, name: str) -> str | None:
        return self._dynamic.get(resource, {}).get(name)

    def is_dynamic(self, resource: str) -> bool:
        """Whether a dynamic reference could lead here because this resource was entered before."""
        return resource in self._dynamic

    def absolute(self, resource: str, uri: str) -> str:
        """A reference without its fragment, as an absolute URI."""
        return joined(self.uri_of.get(resource, ""), uri)

    def address(self, absolute: str) -> str | None:
        """The resource of that URI, among those that were read."""
        return self._address_of.get(absolute)

    def document(self, absolute: str) -> Any:
        """A document by its URI, or by the identifier in it: one of the caller's, or a metaschema; else None."""
        for name in (absolute, f"{absolute}#"):
            if name in self._documents:
                return self._documents[name]
        for contents in self._documents.values():
            own = contents.get("$id", contents.get("id")) if isinstance(contents, dict) else None
            if isinstance(own, str) and own.removesuffix("#") == absolute:
                return contents
        return _metaschema(absolute) if absolute.startswith(_METASCHEMAS) else None

    def start_of(self, address: str) -> tuple[str, Any, list[str]]:
        """Where the walk to an address begins: address and content of the document, and the pointer's segments."""
        root, pointer = "", address
        if address and not address.startswith("/"):
            base, mark, pointer = address.partition("#")
            root = base + mark
        return root, self._roots[root], pointer.split("/")[1:]


def joined(base: str, uri: str) -> str:
    """A reference made absolute; as it is where it cannot be."""
    try:
        return urljoin(base, uri)
    except ValueError:
        return uri


def _metaschema(uri: str) -> Any:
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

    found = REGISTRY.get(uri)
    return None if found is None else found.contents

"""Many arrays as one address: how compiled code gets at the tables of automata and vocabularies.

numba passes a tuple of arrays by value, seven words for each array, from Python (0.1 us an array) and between compiled
functions (measured: half the time of a new configuration). A handle is one block of memory with the address and the
shape of each array; functions pass its address, and `tables.code` is read from it where it is used. Loops that matter
keep such a field in a variable of their own.

In compiled code a parameter annotated `Tables` or `MaskTables` is such a reference. Without compilation
(NUMBA_DISABLE_JIT) it is the tuple itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
from numba.core import cgutils as _cgutils
from numba.core import types
from numba.core.imputils import lower_getattr_generic as _lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import intrinsic, models, register_model
from numba.np.arrayobj import populate_array as _populate_array

from structgen.grammar.mask_tables import MaskTables, TokenGroups
from structgen.grammar.numba_cache import config
from structgen.grammar.repeated_keys import KeyText
from structgen.grammar.tables import VISITED, Tables

# numba has types for some of its functions only.
cgutils, populate_array = cast(Any, _cgutils), cast(Any, _populate_array)
lower_getattr_generic = cast(Any, _lower_getattr_generic)

COMPILES = not config.DISABLE_JIT
WORDS = 3  # address, length, width of each array


class Field(NamedTuple):
    """An array of a tuple: its element type, and how many columns it has (0: one dimension; -1: the array says)."""

    dtype: str
    columns: int = 0


_DTYPES = {name: np.dtype(name) for name in ("int32", "int64", "uint8")}  # their names take 2 us to compute
_NODES = Field("int32", 4)
_GROUPS = {"nodes": _NODES, "start": Field("int32"), "tokens": Field("int32"), "length": Field("int32")}
LAYOUTS: dict[type, dict[str, Any]] = {
    Tables: {
        "code": Field("int32", 4),
        "edges": Field("int32"),
        "distance": Field("int32", 2),
        "stack": Field("int32", 5),
        "stack_hash": Field("int32"),
        "config": Field("int32", 5),
        "config_hash": Field("int32"),
        "elements": Field("int64"),
        "transitions": Field("int32", 256),
        "loops": Field("int64", 2),
        "meta": Field("int64"),
        "seen": Field("int64"),
        "loop_mask": Field("int32"),
        "loop_seen": Field("int64"),
        "path": Field("int32"),
        "visited": Field("int64", 2),
        "work": Field("int64", 2 * VISITED),
    },
    MaskTables: {
        "nodes": _NODES,
        "root": Field("int32"),
        "same": Field("int32"),
        "atoms": Field("int64", 2),
        "token_atoms": Field("int64"),
        "atom": Field("int64"),
        "blob": Field("uint8"),
        "starts": Field("int64"),
        "eos": Field("int32"),
        "others": _NODES,
        "rest": _NODES,
        "free_leaving": _NODES,
        "canonical_leaving": _NODES,
        "masks": Field("int32", -1),
        "free_mask": Field("int32"),
        "canonical_mask": Field("int32"),
        "whole_keys": Field("int32", 3),
        "several_keys": Field("int32"),
        "exits": TokenGroups,
        "blanks": TokenGroups,
    },
    TokenGroups: _GROUPS,
    KeyText: {
        "text": Field("uint8"),
        "keys": Field("int64", 2),
        "levels": Field("int64"),
        "state": Field("int64"),
        "tried_keys": Field("int64", 2),
        "tried_levels": Field("int64"),
        "tried_state": Field("int64"),
    },
}


class Handle:
    """The place of some tables, which it keeps alive.

    Attributes:
        tables: the tuple of C-contiguous arrays.
        address: what compiled code takes for it.
    """

    __slots__ = ("_words", "address", "tables")

    def __init__(self, tables: Tables | MaskTables | KeyText) -> None:
        self.tables = tables
        self.address: Any = tables
        if COMPILES:
            self._words = np.array(_words(tables, LAYOUTS[type(tables)]), np.int64)
            self.address = self._words.__array_interface__["data"][0]


def _words(arrays: tuple[Any, ...], layout: dict[str, Any]) -> list[int]:
    """The words of each array, one after the other.

    Raises:
        TypeError: an array is not laid out as compiled code takes it to be.
    """
    words: list[int] = []
    for (name, field), array in zip(layout.items(), arrays, strict=True):
        if not isinstance(field, Field):
            words += _words(array, LAYOUTS[field])
            continue
        columns = array.shape[1] if array.ndim == 2 else 0
        if array.dtype != _DTYPES[field.dtype] or field.columns not in (columns, -1) or not array.flags.c_contiguous:
            raise TypeError(f"{name} is {array.dtype}{array.shape}, not {field}")
        words += (array.__array_interface__["data"][0], len(array), columns)
    return words


class Reference(types.Type):
    """The numba type of the address of some tables."""

    def __init__(self, kind: type) -> None:
        self.kind = kind
        super().__init__(name=f"Reference({kind.__name__})")

    def place(self, name: str) -> tuple[Any, int] | None:
        """A field, and how many words lie before it."""
        words = 0
        for other, field in LAYOUTS[self.kind].items():
            if other == name:
                return field, words
            words += WORDS * (1 if isinstance(field, Field) else len(LAYOUTS[field]))
        return None


@register_model(Reference)
class _ReferenceModel(models.PrimitiveModel):
    def __init__(self, manager: Any, reference: Reference) -> None:
        super().__init__(manager, reference, cgutils.ir.IntType(64))  # type: ignore[no-untyped-call]


def _type_of(field: Any) -> Any:
    if not isinstance(field, Field):
        return Reference(field)
    return types.Array(getattr(types, field.dtype), 2 if field.columns else 1, "C")


@infer_getattr
class _Fields(AttributeTemplate):
    key = Reference

    def generic_resolve(self, reference: Any, name: str) -> Any:  # type: ignore[override]
        found = reference.place(name)
        return _type_of(found[0]) if found else None


@lower_getattr_generic(Reference)  # type: ignore[untyped-decorator]
def _get_field(context: Any, builder: Any, reference: Reference, value: Any, name: str) -> Any:
    """The array, put together from its words; nothing counts references to it."""
    field, before = reference.place(name) or (None, 0)
    first = builder.add(value, cgutils.ir.Constant(value.type, 8 * before))
    if not isinstance(field, Field):
        return first
    words = builder.inttoptr(first, value.type.as_pointer())
    address, length, columns = (builder.load(cgutils.gep_inbounds(builder, words, i)) for i in range(WORDS))
    kind = _type_of(field)
    array = context.make_array(kind)(context, builder)
    size = context.get_constant(types.intp, np.dtype(field.dtype).itemsize)
    shape, strides = [length], [size]
    if field.columns:
        if field.columns > 0:
            columns = context.get_constant(types.intp, field.columns)
        shape, strides = [length, columns], [builder.mul(columns, size), size]
    populate_array(
        array,
        data=builder.inttoptr(address, context.get_data_type(kind.dtype).as_pointer()),
        shape=cgutils.pack_array(builder, shape),
        strides=cgutils.pack_array(builder, strides),
        itemsize=size,
        meminfo=None,
    )
    return array._getvalue()


def _at(kind: type) -> Any:
    """The function that takes the address of a handle, in compiled code, for the tables."""
    if not COMPILES:
        return lambda tables: tables

    def typed(_context: Any, address: Any) -> Any:
        return Reference(kind)(address), lambda _c, builder, _s, arguments: arguments[0]

    return intrinsic(typed)


tables_at = _at(Tables)
mask_tables_at = _at(MaskTables)
key_text_at = _at(KeyText)

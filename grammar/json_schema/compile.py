"""A JSON schema as a program."""

from __future__ import annotations

from typing import Any

from structgen.grammar.errors import GrammarError, GrammarLimitError, UnsatisfiableError
from structgen.grammar.json_schema.containers import Containers
from structgen.grammar.json_schema.document import Place, SchemaDocument
from structgen.grammar.json_schema.layout import MAX_PRETTY_DEPTH, Layout
from structgen.grammar.json_schema.normalise import Normaliser
from structgen.grammar.json_schema.options import JsonOptions
from structgen.grammar.json_schema.scalars import Scalars
from structgen.grammar.json_schema.shapes import ArrayShape, Conjunction, ObjectShape, OtherNames, Shape
from structgen.grammar.json_schema.values import scalar_spellings
from structgen.grammar.program import Program, ProgramBuilder
from structgen.grammar.tables import IN_BYTES, INFINITE


def compile_schema(schema: Any, options: JsonOptions) -> Program:
    """The program for all JSON texts that are valid under a schema.

    Raises:
        SchemaError, UnsupportedSchemaError, UnsatisfiableError, GrammarLimitError: each with a pointer.
    """
    return compile_document(SchemaDocument(schema, options))


def compile_document(document: SchemaDocument) -> Program:
    """The program of a document, which then knows which of its schemas are used."""
    try:
        return _SchemaCompiler(document).compile()
    except RecursionError:
        raise GrammarLimitError("the schema is nested too deeply", pointer="", hint="use $ref and $defs") from None


class _SchemaCompiler:
    """One rule a conjunction of places (and depth, in pretty layout). Rules are placed from a worklist."""

    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self._builder = builder = ProgramBuilder()
        self._normaliser = Normaliser(document)
        self._layout = Layout(builder, document.options)
        self._scalars = Scalars(builder)
        self._containers = Containers(
            builder,
            self._layout,
            self._scalars,
            self._rule,
            self._normaliser.shapes,
            lambda value: self._exactly(value, ""),
            any_order=document.options.property_order == "any",
        )
        self._rules: dict[tuple[frozenset[Place], int], int] = {}
        self._todo: list[tuple[int, Conjunction, int]] = []
        self._callers: dict[int, list[int]] = {}  # rule -> the rules it calls
        self._pointers: dict[int, str] = {}
        self._endless: dict[int, UnsatisfiableError] = {}  # rules of schemas that refer to themselves
        self._current = -1

    def compile(self) -> Program:
        root = self._document.place(self._document.root, "", "")
        start = self._rule((root,), 0)
        while self._todo:
            state, conjunction, depth = self._todo.pop()
            self._current = state
            self._builder.set_split(state, self._placed(state, conjunction, depth))
        program = self._builder.finish(start)
        self._refuse_unsatisfiable(program)
        return program

    def _rule(self, conjunction: Conjunction, depth: int) -> int:
        """The first state of a rule, to be placed later."""
        key = (frozenset(conjunction), depth if self._layout.pretty else 0)
        state = self._rules.get(key)
        if state is None:
            state = self._rules[key] = self._builder.reserve()
            self._pointers[state] = conjunction[-1].pointer if conjunction else ""
            self._todo.append((state, conjunction, depth))
        self._callers.setdefault(self._current, []).append(state)
        return state

    def _placed(self, state: int, conjunction: Conjunction, depth: int) -> list[int]:
        try:
            return self._alternatives(conjunction, depth)
        except UnsatisfiableError as error:
            # Nothing is valid here; that matters only where it must be.
            self._endless[state] = error
            return []
        except GrammarError as error:
            if error.pointer is None:
                error.pointer = self._pointers[state]
            raise

    def _alternatives(self, conjunction: Conjunction, depth: int) -> list[int]:
        places: dict[int, None] = {}
        arrays: dict[ArrayShape, None] = {}
        objects: dict[ObjectShape, None] = {}
        scalars: dict[bytes, None] = {}
        for shape in self._normaliser.shapes(conjunction):
            if shape.values is not None:
                self._take_values(shape, conjunction, scalars, arrays, objects)
                continue
            places |= dict.fromkeys(self._scalars.alternatives(shape))
            if shape.array is not None:
                arrays[shape.array] = None
            if shape.object is not None:
                objects[shape.object] = None
        if scalars:
            places[self._scalars.words(scalars)] = None
        if not self._layout.pretty or depth < MAX_PRETTY_DEPTH:
            places |= dict.fromkeys(self._containers.array(one, depth + 1) for one in arrays)
            places |= dict.fromkeys(self._containers.object(one, depth + 1) for one in objects)
        return list(places)

    def _take_values(
        self,
        shape: Shape,
        conjunction: Conjunction,
        scalars: dict[bytes, None],
        arrays: dict[ArrayShape, None],
        objects: dict[ObjectShape, None],
    ) -> None:
        """Sort finite values by what spells them; arrays and objects become shapes with constant parts."""
        pointer = conjunction[-1].pointer
        fraction = self._document.options.integers_as == "1 or 1.0"
        for value in shape.values or ():
            if isinstance(value, list):
                parts = tuple(self._exactly(one, pointer) for one in value)
                arrays[ArrayShape(len(value), len(value), parts)] = None
            elif isinstance(value, dict):
                members = tuple((name, self._exactly(one, pointer)) for name, one in value.items())
                nothing = OtherNames(rest=(Place(False, pointer, ""),))
                objects[ObjectShape(members, frozenset(value), (nothing,))] = None
            else:
                # Up to draft-04, 1.0 is no integer.
                whole = shape.number is not None and shape.number.integer and self._document.draft == 4
                scalars |= dict.fromkeys(scalar_spellings(value, whole=whole, fraction=fraction and not whole))

    @staticmethod
    def _exactly(value: Any, pointer: str) -> Conjunction:
        """A schema for one value, in the spelling that every draft knows."""
        return (Place({"enum": [value]}, pointer, ""),)

    def _refuse_unsatisfiable(self, program: Program) -> None:
        distance = program.byte_distance[:, IN_BYTES]
        if distance[program.start] < INFINITE:
            return
        # The culprit is a rule that fails by itself: all that it calls could be satisfied. In a circle of rules
        # that need each other there is none; then the first is as good as any.
        rule, seen = program.start, set()
        while rule not in seen:
            seen.add(rule)
            dead = [one for one in self._callers.get(rule, ()) if distance[one] >= INFINITE and one not in seen]
            if not dead:
                break
            rule = dead[0]
        if rule in self._endless:
            raise self._endless[rule]
        raise UnsatisfiableError(
            "nothing is valid against this schema",
            pointer=self._pointers[rule],
            hint="look for bounds, enums or types that exclude each other, and for recursion that cannot end",
        )

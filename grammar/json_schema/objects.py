"""States for objects. Members are calls of other rules.

Declared members come once by structure: in schema order they lie in a row, in any order the stack holds those seen.
How many members there are is carried along in the same way, only as far as it can still matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from structgen.grammar.errors import GrammarLimitError, UnsupportedSchemaError
from structgen.grammar.json_schema.any_order import Left, Parts, place_any_order
from structgen.grammar.json_schema.layout import Layout
from structgen.grammar.json_schema.members import Member, Members, OtherNames
from structgen.grammar.json_schema.scalars import Scalars
from structgen.grammar.json_schema.shapes import Conjunction
from structgen.grammar.json_string import quoted
from structgen.grammar.program import ProgramBuilder
from structgen.grammar.word_count import can_run_out, lengths_of_words

RuleOf = Callable[[Conjunction, int], int]  # (schema, depth) -> first state of its rule

MAX_PLACES = 20_000  # members in a row, each with how many must and may still come


@dataclass(frozen=True, slots=True)
class Objects:
    builder: ProgramBuilder
    layout: Layout
    scalars: Scalars
    rule: RuleOf
    any_order: bool

    def object(self, members: Members, depth: int) -> int:
        """A rule for an object; `depth` is that of its members."""
        required = members.required_from
        left = members.settled(0, (members.least, members.most), required[0])
        if left is None:
            return self.builder.fail
        if left[1] == 0 or not (members.listed or members.others):
            return self.builder.literal(b"{", self.layout.opened(depth, self.builder.fail, self._empty()))
        if self.any_order:
            return self._in_any_order(members, left, depth)
        if left == (0, None) and not members.some:
            return self._in_plain_order(members, depth)
        return self._in_order(members, required, left, depth)

    def _empty(self) -> int:
        return self.builder.literal(b"}", self.builder.accept)

    def _in_plain_order(self, members: Members, depth: int) -> int:
        """`_in_order` where nothing is counted, as in most objects."""
        builder, layout = self.builder, self.layout
        close = layout.close(depth, b"}", builder.accept)
        empty = self._empty()
        after, choose = close, builder.fail
        if members.others:
            after = builder.reserve()
            choose = self._other_member(members, depth, after)
            builder.set_split(after, [layout.comma(depth, choose), close])
        optional = True
        for number in range(len(members.listed) - 1, -1, -1):
            member = members.listed[number]
            taken = self._member(quoted(member.name), member.schema, depth, after)
            if member.required:
                choose, optional = taken, False
            else:
                choose = taken if choose == builder.fail else builder.split([taken, choose])
            if number:
                more = layout.comma(depth, choose)
                after = builder.split([more, close]) if optional else more
        return builder.literal(b"{", layout.opened(depth, choose, empty if optional else None))

    def _in_order(self, members: Members, required: list[int], left: Left, depth: int) -> int:
        """A row of places from the end on.

        At each place, for each `Left` that can be met there, `choose` offers the members from there on, behind one
        of which so many are left; `after` is where a member in front of the place has just ended.
        """
        builder, layout = self.builder, self.layout
        close = layout.close(depth, b"}", builder.accept)
        rows = _rows(members, required, left)
        empty = self._empty() if left[0] == 0 and required[0] == 0 else None
        choose, after = self._behind_all(members, rows[-1], close, depth)
        for place in range(len(members.listed) - 1, -1, -1):
            member, following = members.listed[place], after
            shared = self._shared_member(member, depth) if len(rows[place].choose) > 1 else None
            chosen: dict[Left, int] = {}
            for one in rows[place].choose:
                target = members.settled(place + 1, one, required[place + 1])
                taken = builder.fail
                if target is not None and shared is not None:
                    taken = builder.call(shared, following[target])
                elif target is not None:
                    taken = self._member(quoted(member.name), member.schema, depth, following[target])
                skipped = None if member.required else _settled_behind(members, place + 1, one, required)
                chosen[one] = taken if skipped is None else builder.split([taken, choose[skipped]])
            choose, after = chosen, {}
            for one in rows[place].after:
                going_on = _settled_behind(members, place, _less(one), required)
                ends = [close] if one[0] == 0 and required[place] == 0 else []
                more = [] if going_on is None else [layout.comma(depth, choose[going_on])]
                after[one] = builder.split(more + ends) if more or ends else builder.fail
        first = _settled_behind(members, 0, _less(left), required)
        assert first is not None  # `left` is settled: there is room for a member
        return builder.literal(b"{", layout.opened(depth, choose[first], empty))

    def _behind_all(
        self, members: Members, row: _Row, close: int, depth: int
    ) -> tuple[dict[Left, int], dict[Left, int]]:
        """Where all listed members are passed: the others."""
        builder, layout = self.builder, self.layout
        after: dict[Left, int] = {}
        choose: dict[Left, int] = {}
        if members.some:
            return self._some_of_others(members, row, close, depth)
        if not members.others:
            return {}, dict.fromkeys(row.after, close)  # settled: what is left is never more than can come
        for one in {**row.after, **row.choose}:
            least, most = one
            if one == (0, None):
                after[one] = builder.reserve()
                choose[one] = self._other_member(members, depth, after[one])
                builder.set_split(after[one], [layout.comma(depth, choose[one]), close])
            elif most == 0:
                after[one] = close
            else:
                after[one] = builder.reserve()
                body = layout.comma(depth, self._other_member(members, depth, builder.accept))
                builder.set_loop(after[one], body, close, least, most)
        for one in row.choose:
            if one not in choose:
                choose[one] = self._other_member(members, depth, after[one])
        return choose, after

    def _shared_member(self, member: Member, depth: int) -> int:
        return self._member(quoted(member.name), member.schema, depth, self.builder.accept)

    def _member(self, key: bytes, schema: Conjunction, depth: int, after: int) -> int:
        return self.layout.member(key, self.rule(schema, depth), after)

    def _some_of_others(
        self, members: Members, row: _Row, close: int, depth: int
    ) -> tuple[dict[Left, int], dict[Left, int]]:
        """The others, among them those that there must be: states for what is left, and which of them are missing.

        Raises:
            GrammarLimitError: too many states.
        """
        builder, layout = self.builder, self.layout
        after: dict[tuple[int, Left], int] = {}
        todo: list[tuple[int, Left]] = []

        def ended(missing: int, left: Left) -> int:
            if left[1] is not None and left[1] < missing.bit_count():
                return builder.fail
            if (missing, left) not in after:
                after[missing, left] = builder.reserve()
                todo.append((missing, left))
            return after[missing, left]

        def chosen(missing: int, left: Left) -> int:
            choices = [self._other_member(members, depth, ended(missing, left))]
            for number, parts in enumerate(members.some):
                if missing >> number & 1:
                    choices.append(self._member_of(parts, members, depth, ended(missing & ~(1 << number), left)))
            return builder.split(choices)

        everything = (1 << len(members.some)) - 1
        found = (
            {one: chosen(everything, one) for one in row.choose},
            {one: ended(everything, one) for one in row.after},
        )
        while todo:
            missing, left = todo.pop()
            ends = [] if missing or left[0] else [close]
            more = [layout.comma(depth, chosen(missing, _less(left)))] if left[1] != 0 else []
            builder.set_split(after[missing, left], more + ends)
            if len(after) > MAX_PLACES:
                raise _too_many()
        return found

    def _other_member(self, members: Members, depth: int, after: int) -> int:
        return self._member_of(members.others, members, depth, after)

    def _member_of(self, parts: Sequence[OtherNames], members: Members, depth: int, after: int) -> int:
        choices = []
        for other in parts:
            if other.language is None:
                key = self.scalars.other_key(frozenset(member.name for member in members.listed))
            else:
                self.builder.finite_names |= can_run_out(other.language)
                key = self.scalars.key_of(other.language)
            called = self.builder.call_key(key, self._member(b"", other.schema, depth, after))
            choices.append(self.builder.reserve_tokens(self._reserve(members, other), called))
        return self.builder.split(choices) if choices else self.builder.fail

    @staticmethod
    def _reserve(members: Members, other: OtherNames) -> int:
        """How many more tokens than the shortest a name may take, when as many as must come are there.

        Raises:
            UnsupportedSchemaError: it may be very many.
        """
        if members.least < 2 or other.language is None:
            return 0
        length = lengths_of_words(other.language, members.least, same=False)
        if length is None:
            raise UnsupportedSchemaError(
                f"it is not certain that {members.least} short names match this pattern", hint="leave out minProperties"
            )
        return length

    def _in_any_order(self, members: Members, left: Left, depth: int) -> int:
        if left not in ((0, None), (1, None)) and members.words is not None and 0 < members.words < left[0]:
            raise UnsupportedSchemaError(
                "minProperties is above the number of names that match patterns",
                hint="list the names under properties, or use property_order='schema'",
            )

        def parts(after: int) -> Parts:
            found = [
                (number, self._member(quoted(member.name), member.schema, depth, after))
                for number, member in enumerate(members.listed)
            ]
            for some in members.some:
                found.append((len(found), self._member_of(some, members, depth, after)))
            return [*found, (-1, self._other_member(members, depth, after))] if members.others else found

        required = [number for number, member in enumerate(members.listed) if member.required]
        required += range(len(members.listed), len(members.listed) + len(members.some))
        return place_any_order(self.builder, self.layout, depth, (b"{", b"}"), parts, required, left)


@dataclass(slots=True)
class _Row:
    """What can be left at one place: behind the member that is offered, and behind the one that has ended."""

    choose: dict[Left, None]
    after: dict[Left, None]


def _less(left: Left) -> Left:
    """One member later; (., -1) where none may come any more."""
    return max(left[0] - 1, 0), None if left[1] is None else left[1] - 1


def _settled_behind(members: Members, place: int, left: Left, required: Sequence[int]) -> Left | None:
    """What of `left` matters behind a member that is offered at a place or later; None: none can be."""
    least, most = left
    if most is not None and most < 0:
        return None
    settled = members.settled(place, (least + 1, None if most is None else most + 1), required[place])
    if settled is None:
        return None
    return _less(settled)


def _rows(members: Members, required: list[int], left: Left) -> list[_Row]:
    """What can be left at each place, and behind all.

    Raises:
        GrammarLimitError: too many combinations.
    """
    first = _settled_behind(members, 0, _less(left), required)
    rows = [_Row({first: None} if first is not None else {}, {})]
    count = 1
    for place, member in enumerate(members.listed):
        row, following = rows[-1], _Row({}, {})
        for one in row.after:
            going_on = _settled_behind(members, place, _less(one), required)
            if going_on is not None:
                row.choose[going_on] = None
        for one in row.choose:
            taken = members.settled(place + 1, one, required[place + 1])
            if taken is not None:
                following.after[taken] = None
            skipped = None if member.required else _settled_behind(members, place + 1, one, required)
            if skipped is not None:
                following.choose[skipped] = None
        rows.append(following)
        count += len(row.choose)
        if count > MAX_PLACES:
            raise _too_many()
    return rows


def _too_many() -> GrammarLimitError:
    return GrammarLimitError(
        f"more than {MAX_PLACES:,} combinations of members and how many of them there may be",
        hint="use smaller minProperties and maxProperties, or fewer properties",
    )

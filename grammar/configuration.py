"""The lazy configuration automaton: the transition function of a program, computed when first needed.

A configuration is the set of all (state, stack) pairs that the bytes read so far can have led to. Stacks are
hash-consed linked lists, configurations are interned to small integers, and `transitions[config, byte]` remembers
every step, so that a configuration that was seen before costs one table look-up a byte.

Pairs that no bytes can complete are dropped as they arise: what is in a configuration is alive.
"""

from __future__ import annotations

import numpy as np

from structgen.grammar.numba_cache import lean, lean_inline
from structgen.grammar.program import Interior, Op, TextField
from structgen.grammar.tables import (
    ALIVE,
    BLOCKED,
    CONFIGS,
    COST,
    COUNT,
    DEAD,
    ELEMENTS,
    ENDS_KEY,
    ERROR,
    FINAL,
    GROW,
    IN_BYTES,
    IN_TOKENS,
    INFINITE,
    KEY_ENDS,
    LENGTH,
    LIMIT,
    MAX_ELEMENTS,
    NEEDED,
    PARENT,
    RETURN_TO,
    STACKS,
    START,
    UNKNOWN,
    VISITED,
    WANTED,
    Array,
    Tables,
    config_slot,
    stack_slot,
)

BYTE, RANGES, SPLIT, CALL = int(Op.BYTE), int(Op.RANGES), int(Op.SPLIT), int(Op.CALL)
RETURN, LOOP, OBJECT, CHOOSE, CLOSE = int(Op.RETURN), int(Op.LOOP), int(Op.OBJECT), int(Op.CHOOSE), int(Op.CLOSE)
EXCEPT, TEXT, KEY_END = int(Op.EXCEPT), int(Op.TEXT), int(Op.KEY_END)
KEY = int(Interior.KEY)
# A key that has come before may not end where it is: one more character, up to two more tokens.
DETOUR = 2

EXIT, LEAST, MOST, WIDTH = int(TextField.EXIT), int(TextField.LEAST), int(TextField.MOST), int(TextField.WIDTH)
LENGTHS, PERIOD, TARGETS = int(TextField.LENGTHS), int(TextField.PERIOD), int(TextField.TARGETS)
FIRST = int(TextField.FIRST)

# The count of a frame that a CALL pushed: where it returns to may itself be a LOOP or an OBJECT.
CALLED = -2


@lean_inline
def saturate(value: int) -> int:
    return min(value, INFINITE)


@lean
def text_cost(code: Array, edges: Array, distance: Array, unit: int, state: int, count: int) -> int:
    """The distance from a TEXT state, reached after `count` characters, to the end of its exit."""
    at = code[state, 1]
    wanted = max(edges[at + LEAST] - count, 0)
    lengths, period = edges[at + LENGTHS], edges[at + PERIOD]
    shift = 0
    if wanted >= lengths:
        shift = (wanted - lengths + period) // period * period
    length = edges[at + FIRST + wanted - shift]
    if length >= INFINITE:
        return INFINITE
    most = edges[at + MOST]
    if most >= 0 and count + length + shift > most:
        return INFINITE
    return saturate(np.int64(length + shift) * edges[at + WIDTH] + distance[edges[at + EXIT], unit])


@lean
def member_cost(tables: Tables, unit: int, object_: int, index: int) -> int:
    """What the required member number `index` of an object adds to the distance to the object's end."""
    offset = tables.code[object_, 1]
    start = tables.edges[offset + 3 + 2 * index]
    after = tables.edges[offset + 1]
    whole, rest = tables.distance[start, unit], tables.distance[after, unit]
    if whole >= INFINITE or rest >= INFINITE:
        return INFINITE
    return max(whole - rest, 0) + 1


@lean
def _required_index(tables: Tables, object_: int, member: int) -> int:
    offset = tables.code[object_, 1]
    for index in range(tables.code[object_, 2]):
        if tables.edges[offset + 2 + 2 * index] == member:
            return index
    return -1


@lean
def _object_below(tables: Tables, stack: int) -> int:
    """The OBJECT state whose members are on top of the stack."""
    while tables.stack[stack, COUNT] != -1:
        stack = tables.stack[stack, PARENT]
    return tables.stack[stack, RETURN_TO]


@lean
def _frame_cost(tables: Tables, unit: int, ret: int, count: int) -> int:
    """The distance that a frame adds to what lies below it; INFINITE when it cannot be completed."""
    code, distance = tables.code, tables.distance
    if count == CALLED:
        return distance[ret, unit]
    if code[ret, 0] == TEXT:
        if unit == IN_TOKENS and distance[ret, unit] == BLOCKED:
            return INFINITE
        return text_cost(code, tables.edges, distance, unit, ret, count)
    if code[ret, 0] == LOOP:
        offset = code[ret, 1]
        missing = max(code[ret, 2] - count - 1, 0)
        cost = np.int64(distance[tables.edges[offset + 1], unit])
        if missing > 0:
            cost += np.int64(missing) * distance[tables.edges[offset], unit]
        return int(min(cost, INFINITE))
    cost = np.int64(0)
    if count == -1:
        for index in range(code[ret, 2]):
            cost += member_cost(tables, unit, ret, index)
    else:
        index = _required_index(tables, ret, count)
        if index >= 0:
            cost -= member_cost(tables, unit, ret, index)
    return int(min(cost, INFINITE))


@lean
def push(tables: Tables, ret: int, count: int, parent: int) -> int:
    """The stack node for frame (ret, count) above `parent`, interned."""
    slot = stack_slot(tables, ret, count, parent)
    mask = len(tables.stack_hash) - 1
    while tables.stack_hash[slot] >= 0:
        node = tables.stack_hash[slot]
        row = tables.stack[node]
        if row[RETURN_TO] == ret and row[COUNT] == count and row[PARENT] == parent:
            return node
        slot = (slot + 1) & mask
    node = tables.meta[STACKS]
    if node >= len(tables.stack):
        tables.meta[ERROR] = GROW
        return 0
    tables.meta[STACKS] = node + 1
    row, below = tables.stack[node], tables.stack[parent]
    row[RETURN_TO], row[COUNT], row[PARENT] = ret, count, parent
    row[ALIVE] = below[ALIVE] if _frame_cost(tables, IN_BYTES, ret, count) < INFINITE else 0
    tokens = _frame_cost(tables, IN_TOKENS, ret, count)
    if tokens >= INFINITE or below[COST] >= INFINITE:
        row[COST] = INFINITE
    else:
        row[COST] = saturate(below[COST] + tokens)
    tables.stack_hash[slot] = node
    return node


@lean
def _with_member(tables: Tables, stack: int, object_: int, member: int) -> int:
    """`stack` with `member` inserted into the descending run of seen members; -1 when it is there already.

    The order makes equal sets equal stacks, whatever order they were seen in.
    """
    below = stack
    moved = 0
    while tables.stack[below, COUNT] > member and tables.stack[below, RETURN_TO] == object_:
        below = tables.stack[below, PARENT]
        moved += 1
    if tables.stack[below, RETURN_TO] == object_ and tables.stack[below, COUNT] == member:
        return -1
    node = push(tables, object_, member, below)
    for step in range(moved):
        above = stack
        for _ in range(moved - 1 - step):
            above = tables.stack[above, PARENT]
        node = push(tables, object_, tables.stack[above, COUNT], node)
    return node


@lean
def _all_required_seen(tables: Tables, stack: int, object_: int) -> bool:
    seen = 0
    while tables.stack[stack, COUNT] != -1:
        if _required_index(tables, object_, tables.stack[stack, COUNT]) >= 0:
            seen += 1
        stack = tables.stack[stack, PARENT]
    return seen == tables.code[object_, 2]


@lean_inline
def _visit(tables: Tables, key: int) -> bool:
    """Whether the pair is new in the closure under way."""
    stamp = tables.visited[VISITED, 1]
    slot = (key ^ (key >> np.int64(17)) ^ (key >> np.int64(32)) * np.int64(2654435761)) & np.int64(VISITED - 1)
    while tables.visited[slot, 1] == stamp:
        if tables.visited[slot, 0] == key:
            return False
        slot = (slot + 1) & (VISITED - 1)
    tables.visited[slot, 1] = stamp
    tables.visited[slot, 0] = key
    return True


@lean_inline
def _offer(tables: Tables, top: int, state: int, stack: int) -> int:
    """Put a pair on the worklist, unless nothing can complete it."""
    if tables.distance[state, IN_BYTES] >= INFINITE or tables.stack[stack, ALIVE] == 0:
        return top
    if top >= tables.work.shape[1]:
        tables.meta[ERROR] = LIMIT
        return top
    tables.work[0, top] = np.int64(stack) << 32 | np.int64(state)
    return top + 1


@lean
def _text(tables: Tables, top: int, state: int, count: int, stack: int) -> int:
    """Go on from a TEXT state after `count` characters: end, or read one more."""
    edges, at = tables.edges, tables.code[state, 1]
    least, most = edges[at + LEAST], edges[at + MOST]
    if count >= least and edges[at + FIRST] == 0:  # the empty word ends here
        top = _offer(tables, top, edges[at + EXIT], stack)
    if most >= 0 and count >= most:
        return top
    following = count + 1 if most >= 0 else min(count + 1, least)
    first = at + FIRST + edges[at + LENGTHS]
    for pair in range(first, first + 2 * edges[at + TARGETS], 2):
        top = _offer(tables, top, edges[pair], push(tables, edges[pair + 1], following, stack))
    return top


@lean
def _return(tables: Tables, top: int, stack: int) -> int:
    """Pop a frame and go on where it says."""
    ret, count, parent = tables.stack[stack, RETURN_TO], tables.stack[stack, COUNT], tables.stack[stack, PARENT]
    if count == CALLED:
        return _offer(tables, top, ret, parent)
    if tables.code[ret, 0] == TEXT:
        return _text(tables, top, ret, count, parent)
    offset, least, most = tables.code[ret, 1], tables.code[ret, 2], tables.code[ret, 3]
    done = count + 1
    if done >= least:
        top = _offer(tables, top, tables.edges[offset + 1], parent)
    if most < 0 or done < most:
        if most < 0:
            done = min(done, least)  # further counting would only make equal things different
        top = _offer(tables, top, tables.edges[offset], push(tables, ret, done, parent))
    return top


@lean
def _choose(tables: Tables, top: int, state: int, stack: int) -> int:
    object_ = _object_below(tables, stack)
    offset = tables.code[state, 1]
    for index in range(tables.code[state, 2]):
        member, start = tables.edges[offset + 2 * index], tables.edges[offset + 2 * index + 1]
        if tables.distance[start, IN_BYTES] >= INFINITE:
            continue
        after = stack if member < 0 else _with_member(tables, stack, object_, member)
        if after >= 0:
            top = _offer(tables, top, start, after)
    return top


@lean
def _expand(tables: Tables, top: int, state: int, stack: int) -> int:
    """Follow a state that consumes nothing."""
    code, edges = tables.code, tables.edges
    op, a, b = code[state, 0], code[state, 1], code[state, 2]
    if op == SPLIT:
        for index in range(a, a + b):
            top = _offer(tables, top, edges[index], stack)
    elif op == CALL:
        # A call in tail position needs no frame: recursion at the end of a rule keeps the stack flat.
        top = _offer(tables, top, a, stack if code[b, 0] == RETURN else push(tables, b, CALLED, stack))
    elif op == RETURN:
        top = _return(tables, top, stack)
    elif op == LOOP:
        if b == 0:
            top = _offer(tables, top, edges[a + 1], stack)
        if code[state, 3] != 0:
            top = _offer(tables, top, edges[a], push(tables, state, 0, stack))
    elif op == TEXT:
        top = _text(tables, top, state, 0, stack)
    elif op == OBJECT:
        top = _offer(tables, top, edges[a], push(tables, state, -1, stack))
    elif op == CHOOSE:
        top = _choose(tables, top, state, stack)
    elif op == KEY_END:
        tables.meta[KEY_ENDS] += 1
        top = _offer(tables, top, b, stack)
    elif op == CLOSE and _all_required_seen(tables, stack, a):
        while tables.stack[stack, COUNT] != -1:
            stack = tables.stack[stack, PARENT]
        top = _offer(tables, top, b, tables.stack[stack, PARENT])
    return top


@lean
def _close(tables: Tables, top: int) -> int:
    """Follow the worklist to pairs that consume a byte or accept; they land in work[1]. Returns how many."""
    tables.visited[VISITED, 1] += 1
    found, steps = 0, 0
    while top > 0:
        top -= 1
        key = tables.work[0, top]
        if not _visit(tables, key):
            continue
        steps += 1
        if steps >= 2 * MAX_ELEMENTS or found >= MAX_ELEMENTS:
            tables.meta[ERROR] = LIMIT
        if tables.meta[ERROR] != 0:
            return 0
        state, stack = key & np.int64(0xFFFFFFFF), key >> np.int64(32)
        op = tables.code[state, 0]
        if op in (BYTE, RANGES, EXCEPT) or (op == RETURN and stack == 0):
            tables.work[1, found] = key
            found += 1
        else:
            top = _expand(tables, top, state, stack)
    return found


@lean
def _sort(values: Array) -> None:
    """Shell's sort: in place, with nothing but the array; most have a handful of values."""
    gap = 1
    while gap * 3 < len(values):
        gap = gap * 3 + 1
    while gap > 0:
        for index in range(gap, len(values)):
            value = values[index]
            place = index
            while place >= gap and values[place - gap] > value:
                values[place] = values[place - gap]
                place -= gap
            values[place] = value
        gap //= 3


@lean
def intern(tables: Tables, found: int) -> int:
    """The configuration with the pairs work[1, :found]."""
    pairs = tables.work[1, :found]
    _sort(pairs)
    slot = config_slot(tables, pairs)
    mask = len(tables.config_hash) - 1
    while tables.config_hash[slot] >= 0:
        config = tables.config_hash[slot]
        if tables.config[config, LENGTH] == found:
            start = tables.config[config, START]
            same = True
            for index in range(found):
                if tables.elements[start + index] != pairs[index]:
                    same = False
                    break
            if same:
                return config
        slot = (slot + 1) & mask
    config, start = tables.meta[CONFIGS], tables.meta[ELEMENTS]
    if config >= len(tables.config) or start + found > len(tables.elements):
        tables.meta[ERROR], tables.meta[WANTED] = GROW, found
        return GROW
    tables.meta[CONFIGS] = config + 1
    tables.meta[ELEMENTS] = start + found
    tables.config_hash[slot] = config
    row = tables.config[config]
    row[START], row[LENGTH], row[NEEDED], row[FINAL], row[ENDS_KEY] = start, found, INFINITE, 0, 0
    tables.transitions[config, :] = DEAD
    for index in range(found):
        key = pairs[index]
        tables.elements[start + index] = key
        state, stack = key & np.int64(0xFFFFFFFF), key >> np.int64(32)
        if tables.code[state, 0] == RETURN:
            row[FINAL] = 1
        needed = np.int64(tables.distance[state, IN_TOKENS]) + tables.stack[stack, COST] + 1
        if needed < row[NEEDED]:
            row[NEEDED] = needed
        _open_row(tables, config, state)
    return config


@lean_inline
def interior_kind(tables: Tables, state: int) -> int:
    """The `Interior` of a state that reads bytes."""
    if tables.code[state, 0] == EXCEPT:
        state = tables.code[state, 3]
    return tables.code[state, 3] if tables.code[state, 0] == RANGES else 0


@lean
def _open_row(tables: Tables, config: int, state: int) -> None:
    """Mark the bytes that a state may read as not known yet; all others stay dead."""
    row = tables.transitions[config]
    if tables.code[state, 0] == EXCEPT:
        offset = tables.code[state, 1]
        for pair in range(offset, offset + 2 * tables.code[state, 2], 2):
            row[tables.edges[pair]] = UNKNOWN
        state = tables.code[state, 3]
    op, a, b = tables.code[state, 0], tables.code[state, 1], tables.code[state, 2]
    if op == BYTE:
        row[a] = UNKNOWN
    elif op == RANGES:
        for edge in range(a, a + 3 * b, 3):
            row[tables.edges[edge] : tables.edges[edge + 1] + 1] = UNKNOWN


@lean
def start_config(tables: Tables, state: int) -> int:
    """The first configuration of a program; DEAD when nothing matches."""
    found = _close(tables, _offer(tables, 0, state, 0))
    if tables.meta[ERROR] != 0:
        return tables.meta[ERROR]
    return intern(tables, found) if found else DEAD


@lean_inline
def _read(tables: Tables, top: int, state: int, stack: int, byte: int, same: tuple[int, int]) -> tuple[int, int, int]:
    """Follow one pair on a byte; narrows `same`, the range of bytes around it that all pairs treat alike."""
    low, high = same
    if tables.code[state, 0] == EXCEPT:
        offset = tables.code[state, 1]
        for pair in range(offset, offset + 2 * tables.code[state, 2], 2):
            other = tables.edges[pair]
            if other == byte:
                return _offer(tables, top, tables.edges[pair + 1], stack), byte, byte
            if other < byte:
                low = max(low, other + 1)
            else:
                high = min(high, other - 1)
        state = tables.code[state, 3]
    op, a, b = tables.code[state, 0], tables.code[state, 1], tables.code[state, 2]
    if op == BYTE:
        if a == byte:
            return _offer(tables, top, b, stack), byte, byte
        if a < byte:
            low = max(low, a + 1)
        else:
            high = min(high, a - 1)
    elif op == RANGES:
        for edge in range(a, a + 3 * b, 3):
            first, last = tables.edges[edge], tables.edges[edge + 1]
            if last < byte:
                low = max(low, last + 1)
            elif first > byte:
                high = min(high, first - 1)
            else:
                low, high = max(low, first), min(high, last)
                top = _offer(tables, top, tables.edges[edge + 2], stack)
    return top, low, high


@lean
def transition(tables: Tables, config: int, byte: int) -> int:
    """The configuration after one more byte, computed and remembered for all bytes that lead to the same.

    DEAD, or GROW / LIMIT with nothing stored.
    """
    top, low, high = 0, 0, 255
    start = tables.config[config, START]
    for index in range(start, start + tables.config[config, LENGTH]):
        key = tables.elements[index]
        top, low, high = _read(tables, top, key & np.int64(0xFFFFFFFF), key >> np.int64(32), byte, (low, high))
    result = DEAD
    ends = tables.meta[KEY_ENDS]
    if top > 0:
        found = _close(tables, top)
        if tables.meta[ERROR] != 0:
            return tables.meta[ERROR]
        if found > 0:
            result = intern(tables, found)
            if result < 0:
                return result
            if tables.meta[KEY_ENDS] != ends:
                tables.config[result, ENDS_KEY] = 1
    tables.transitions[config, low : high + 1] = result
    return result


@lean
def advance(tables: Tables, config: int, text: Array, start: int, stop: int) -> int:
    """Read text[start:stop] (uint8) from a configuration on; `meta[KEY_ENDS]` is raised when a key ends on the way."""
    for index in range(start, stop):
        following = tables.transitions[config, text[index]]
        if following == UNKNOWN:
            following = transition(tables, config, text[index])
        if following < 0:
            return following
        config = following
        tables.meta[KEY_ENDS] += tables.config[config, ENDS_KEY]
    return config


@lean
def follow(transitions: Array, configs: Array, config: int, text: Array, start: int, stop: int) -> tuple[int, bool]:
    """As `advance` where every step is known already, else UNKNOWN; and whether a key ended. Changes nothing."""
    ends = False
    for index in range(start, stop):
        config = transitions[config, text[index]]
        if config < 0:
            break
        ends = ends or configs[config, ENDS_KEY] != 0
    return config, ends


@lean
def single_byte(tables: Tables, config: int) -> int:
    """The one byte that can follow when exactly one can; -1 otherwise. (Acceptance here is the caller's matter.)"""
    only = -1
    start = tables.config[config, START]
    for index in range(start, start + tables.config[config, LENGTH]):
        state = tables.elements[index] & np.int64(0xFFFFFFFF)
        op, a, b = tables.code[state, 0], tables.code[state, 1], tables.code[state, 2]
        if op == BYTE:
            if only >= 0 and only != a:
                return -1
            only = a
        elif op == RANGES:
            for edge in range(a, a + 3 * b, 3):
                if tables.distance[tables.edges[edge + 2], IN_BYTES] >= INFINITE:
                    continue
                low = tables.edges[edge]
                if low != tables.edges[edge + 1] or (only >= 0 and only != low):
                    return -1
                only = low
        elif op == EXCEPT:
            return -1
    return only

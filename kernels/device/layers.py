"""The layers of a decode step, as the consumer warps of one program run them: its instructions, in order."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from structgen.kernels.device.attention_heads import append, polled_heads
from structgen.kernels.device.attention_parts import part_record, put_heads, put_merged, put_merged_polled
from structgen.kernels.device.attention_phase import attend, attend_parts
from structgen.kernels.device.context_prefetch import prefetch_record
from structgen.kernels.device.context_tiles import kept_pages, layer_cache, load_tile, page_share, put_pages, put_tile
from structgen.kernels.device.flagged import put_flagged
from structgen.kernels.device.grid_sync import arrive, arrive_relaxed, wait
from structgen.kernels.device.layer_products import multiply_down, multiply_output, multiply_qkv
from structgen.kernels.device.nonzero import put_nonzero
from structgen.kernels.device.norm import (
    inverse_rms_of,
    put_input,
    put_neurons,
    put_relayed_input,
)
from structgen.kernels.device.products import activations_ready, row_product, stage_places, staged_product
from structgen.kernels.device.step_parts import FIRST_GROUP, FULL, clear, field, mark
from structgen.kernels.device.triton_names import block_barrier, reinterpret


@gluon.jit
def attend_and_merge(args, cfg: gl.constexpr):
    """This program's parts of the attention; then the group's heads that Output multiplies, merged from all parts."""
    (
        query, own_row, cache, partial, parts, partial_max, partial_sum, table_of, tables, max_pages,
        positions, cos, sin, row_table, group, member, row, part, position, page_begin, page_end,
        keys, values, more_keys, more_values, tiles, queries, weights, own_place, alone,
        output_place, out_k_begin, out_k_end, own, target, error, trace, pid, layer, layers,
    ) = args  # fmt: skip
    attend_parts(
        query, own_row, cache, parts, partial_max, partial_sum, table_of, tables, max_pages, positions, cos, sin,
        row_table, group, member, row, part, position, page_begin, page_end, keys, values,
        more_keys, more_values, tiles, queries, weights, own_place, alone, cfg,
    )  # fmt: skip
    mark(trace, pid, layer, layers, 6, cfg)
    if cfg.polled_parts:
        arrive_relaxed(own)
        put_merged_polled(parts, output_place, group, out_k_begin, error, cfg)
    else:
        arrive(own)
        wait(own, target, error)
        mark(trace, pid, layer, layers, 7, cfg)
        put_merged(partial, partial_max, partial_sum, output_place, group, out_k_begin, out_k_end, cfg)


@gluon.jit
def run_layers(
    ring, full, free, slot_trace, begun, staged, factors, index, activations, queries, weights, table, pid, layers,
    epoch, ran, heads,
    residuals, qkv, neurons, partial, partial_max, partial_sum, counters, error, trace,
    norms, embedding, cache_base, cache_offsets, cache_stride, cos, sin,
    ids, last_tokens, positions, table_of, tables, max_pages,
    cfg: gl.constexpr,
):  # fmt: skip
    """Layer pass number `epoch`, after `ran` layers and `heads` dense heads of earlier ones in this launch; its weights
    are in the ring from slot number `index` on. -> the next slot number."""
    B: gl.constexpr = cfg.batch
    BT: gl.constexpr = cfg.batch_tile
    H: gl.constexpr = cfg.schedule.shape.hidden
    KB: gl.constexpr = cfg.schedule.shape.hidden_blocks
    D: gl.constexpr = cfg.schedule.shape.head_dim
    KV: gl.constexpr = cfg.schedule.shape.kv_heads
    GR: gl.constexpr = cfg.schedule.shape.group_rows
    QS: gl.constexpr = cfg.qkv_stride
    M: gl.constexpr = cfg.schedule.members
    NP: gl.constexpr = cfg.schedule.programs
    P: gl.constexpr = cfg.schedule.parts
    INTER: gl.constexpr = cfg.schedule.shape.intermediate
    SIZE: gl.constexpr = cfg.batch_tile * cfg.schedule.shape.hidden
    qkv_place = stage_places(activations, cfg.qkv_blocks, cfg)
    output_place = stage_places(activations, cfg.output_blocks, cfg)
    down_place = stage_places(activations, cfg.down_blocks, cfg)
    whole_place = stage_places(activations, cfg.stage_blocks, cfg)
    STAGES: gl.constexpr = cfg.stages
    qkvs = qkv
    flagged_neurons = neurons.to(gl.pointer_type(gl.int64))
    relays = flagged_neurons + B * INTER
    TILES: gl.constexpr = cfg.tiles
    EARLY_TILES: gl.constexpr = cfg.tiles if cfg.batch_tile == 4 else 1  # registers for no more
    tiles = reinterpret(activations, gl.bfloat16, [2 * TILES, 64, D], cfg.weight_layout)
    group = field(table, "qkv_group", cfg)
    own = counters + FIRST_GROUP + group * 16
    full_base = epoch * (2 * NP) * layers
    own_base = epoch * (3 * M) * layers
    LS: gl.constexpr = cfg.sums_layout
    sums_row = gl.arange(0, 64, layout=gl.SliceLayout(1, LS))[:, None]
    batch_row = gl.arange(0, BT, layout=gl.SliceLayout(0, LS))[None, :]
    wanted = (batch_row < B) & (sums_row < 64)
    member = field(table, "attention_member", cfg)
    qkv_row_begin, qkv_row_end = field(table, "qkv_row_begin", cfg), field(table, "qkv_row_end", cfg)
    qkv_k_begin, qkv_k_end = field(table, "qkv_k_begin", cfg), field(table, "qkv_k_end", cfg)
    out_row_begin, out_row_end = field(table, "output_row_begin", cfg), field(table, "output_row_end", cfg)
    out_k_begin, out_k_end = field(table, "output_k_begin", cfg), field(table, "output_k_end", cfg)
    neuron_begin, neuron_end = field(table, "gateup_neuron_begin", cfg), field(table, "gateup_neuron_end", cfg)
    first_neuron = field(table, "down_first_neuron", cfg)
    down_row_begin, down_row_end = field(table, "down_row_begin", cfg), field(table, "down_row_end", cfg)
    down_k_begin, down_k_end = field(table, "down_k_begin", cfg), field(table, "down_k_end", cfg)
    if cfg.relayed:
        down_k_begin = 0
    row, part = member % B, member // B
    row_table = tables + gl.load(table_of + row).to(gl.int32) * max_pages
    position, page_begin, page_end = page_share(positions, row, part, cfg)
    short = False
    if cfg.whole_heads:
        short = position < cfg.short
        page_begin = gl.where(short, 0, page_begin)
        page_end = gl.where(short, position // 16 + 1, page_end)
    pages = gl.allocate_shared_memory(gl.int32, [4, 4], cfg.kept_layout)
    put_pages(pages, row_table, page_begin, page_end, cfg)
    block_barrier()
    long = page_end - page_begin > 4 * TILES
    alone = 1
    if B > 1:
        other = gl.arange(0, cfg.batch_padded, layout=cfg.clear_layout)
        tables_of_all = gl.load(table_of + other, mask=other < B, other=-1).to(gl.int32)
        same = (tables_of_all == gl.load(table_of + row).to(gl.int32)).to(gl.int32)
        alone = ((gl.sum(same, 0) == 1) & (field(table, "attention_members", cfg) >= P * B)).to(gl.int32)
    own_page = gl.load(row_table + position // 16).to(gl.int64)
    own_offset = (own_page * 16 + position % 16) * (2 * KV * D) + group * D
    for layer in range(layers):
        lowest = layer == 0
        parity = (epoch * layers + layer) & 1
        flag = epoch * layers + layer + 1
        if cfg.relayed:
            qkv = qkvs + parity * (cfg.qkv_parts * B * KV * QS)
        middle = residuals + parity * SIZE
        cleared = residuals + (parity ^ 1) * SIZE
        if cfg.relayed:
            turn = (epoch * layers + layer) & 3
            middle = residuals + (turn + (turn & 2)) * SIZE
            cleared = residuals + ((turn ^ 2) + ((turn ^ 2) & 2)) * SIZE
        after = residuals + (2 + parity) * SIZE
        before = residuals + (3 - parity) * SIZE
        norm = norms + layer * (2 * H)
        cache = layer_cache(cache_base, cache_offsets, cache_stride, layer)
        own_place = cache + own_offset
        mark(trace, pid, layer, layers, 0, cfg)
        # Qkv
        if cfg.polled_sums:
            part_of_sums = qkv + (group * cfg.qkv_parts + qkv_k_begin // cfg.fold) * QS
            prefetch_record(part_of_sums, QS, cfg)
        if cfg.relayed:
            mark(trace, pid, layer, layers, 1, cfg)
            squares = put_relayed_input(lowest, relays, middle, embedding, ids, last_tokens, norm, qkv_place,
                                        qkv_k_begin, group, qkv_row_begin == 0, flag - 1, error, cfg)  # fmt: skip
        else:
            if layer > 0:
                wait(counters + FULL, full_base + layer * (2 * NP), error)
            mark(trace, pid, layer, layers, 1, cfg)
            squares = put_input(lowest, before, embedding, ids, last_tokens, norm, qkv_place, qkv_k_begin, qkv_k_end,
                                cfg.qkv_blocks, cfg.qkv_stages, cfg)  # fmt: skip
        activations_ready()
        mark(trace, pid, layer, layers, 2, cfg)
        # The context is asked for now and stays in registers until its place in shared memory is free.
        keys, values = load_tile(cache, kept_pages(pages, 0, cfg), group, cfg)
        if EARLY_TILES > 1:
            more_keys, more_values = load_tile(cache, kept_pages(pages, 1, cfg), group, cfg)
        else:
            more_keys, more_values = keys, values
        if qkv_row_begin == 0:
            sums = gl.sum(squares, 2)  # of each block: to add them up here would take longer
            block = gl.arange(0, cfg.qkv_blocks, layout=gl.SliceLayout(1, sums.type.layout))[:, None]
            if cfg.fold > 1:
                sums = gl.sum(sums, 1)[:, None]
                block = gl.arange(0, cfg.qkv_blocks, layout=gl.SliceLayout(1, sums.type.layout))[:, None]
            batch = gl.arange(0, BT // cfg.fold, layout=gl.SliceLayout(0, sums.type.layout))[None, :] + block * 0
            if cfg.polled_sums:
                put_nonzero(part_of_sums + GR + batch, sums, batch < B)
            else:
                gl.atomic_add(qkv + (batch * KV + group) * QS + GR, sums, mask=batch < B, sem="relaxed")
        sums_place = qkv + (batch_row * KV + group) * QS + (qkv_row_begin * 64 + sums_row)
        if cfg.polled_sums:
            sums_place = part_of_sums + (qkv_row_begin * 64 + sums_row) + batch_row * 0
        index = multiply_qkv(
            ring, full, free, slot_trace, index, activations, sums_place, qkv_row_end - qkv_row_begin,
            qkv_k_end - qkv_k_begin, wanted, cfg,
        )  # fmt: skip
        mark(trace, pid, layer, layers, 3, cfg)
        if cfg.polled_sums:
            arrive_relaxed(own)
        else:
            arrive(own)
        # Attention
        parts = partial
        if cfg.polled_parts:
            # What was read in the layer before is cleared for the one after, ordered by GateUp's barrier.
            parts = partial + parity * cfg.layer_part_values
            through_parts = layer >= 0
            if cfg.whole_heads:
                through_parts = (short == 0) | (layer == 0)
            if through_parts:
                clear(partial + (parity ^ 1) * cfg.layer_part_values, pid, cfg.layer_part_values, NP, cfg)
                own_part = part_record(parts, group, gl.minimum(part, P - 1), row, 0, cfg)
                prefetch_record(own_part, cfg.schedule.shape.group * cfg.part_values, cfg)
        put_tile(keys, values, tiles, 0, cfg)
        if EARLY_TILES > 1:
            put_tile(more_keys, more_values, tiles, 1, cfg)
        elif TILES > 1:
            more_keys, more_values = load_tile(cache, kept_pages(pages, 1, cfg), group, cfg)
        if long:
            keys, values = load_tile(cache, kept_pages(pages, TILES, cfg), group, cfg)
            if cfg.paired:
                more_keys, more_values = load_tile(cache, kept_pages(pages, TILES + 1, cfg), group, cfg)
        query, own_row = qkv, qkv
        if cfg.polled_sums:
            query, own_row = polled_heads(qkv, cos, sin, position, group, error, cfg)
        else:
            wait(own, own_base + layer * (3 * M) + M, error)
        if EARLY_TILES < TILES:
            put_tile(more_keys, more_values, tiles, 1, cfg)
        if cfg.gated:
            mbarrier.arrive(begun.index(0), count=1)
        mark(trace, pid, layer, layers, 4, cfg)
        if B > 1:  # noqa: SIM102 (one is known at compile time, the other is not)
            if alone == 0:
                append(qkv, cache, positions, table_of, tables, max_pages, cos, sin, group, cfg)
                block_barrier()
                keys, values = load_tile(cache, kept_pages(pages, 0, cfg), group, cfg)
                if TILES > 1:
                    more_keys, more_values = load_tile(cache, kept_pages(pages, 1, cfg), group, cfg)
                    put_tile(more_keys, more_values, tiles, 1, cfg)
                put_tile(keys, values, tiles, 0, cfg)
                keys, values = load_tile(cache, kept_pages(pages, TILES, cfg), group, cfg)
        mark(trace, pid, layer, layers, 5, cfg)
        attention = (
            query, own_row, cache, partial, parts, partial_max, partial_sum, table_of, tables, max_pages,
            positions, cos, sin, row_table, group, member, row, part, position, page_begin, page_end,
            keys, values, more_keys, more_values, tiles, queries, weights, own_place, alone != 0,
            output_place, out_k_begin, out_k_end, own, own_base + layer * (3 * M) + 2 * M, error,
            trace, pid, layer, layers,
        )  # fmt: skip
        if cfg.whole_heads:
            if short:
                _, sums, out = attend(
                    query, own_row, cache, row_table, cos, sin, group, row, position, page_begin, page_end,
                    keys, values, more_keys, more_values, tiles, queries, weights, own_place, True, member == 0, cfg,
                )  # fmt: skip
                arrive_relaxed(own)
                mark(trace, pid, layer, layers, 6, cfg)
                put_heads(sums, out, output_place.index(0), cfg)
            else:
                attend_and_merge(attention, cfg)
        else:
            attend_and_merge(attention, cfg)
        # Output
        activations_ready()
        mark(trace, pid, layer, layers, 8, cfg)
        index = multiply_output(
            ring, full, free, slot_trace, index, activations, middle, lowest, before, embedding, ids, last_tokens,
            group, out_row_begin, out_row_end, out_k_begin, out_k_end, wanted, batch_row, sums_row, cfg,
        )  # fmt: skip
        mark(trace, pid, layer, layers, 9, cfg)
        arrive(counters + FULL)
        # GateUp
        odd = (ran + layer) & 1
        odd_input = odd ^ (heads & 1)  # whose mbarriers the head uses too
        if cfg.staged:
            mbarrier.wait(staged.index(0), odd_input)
        else:
            wait(counters + FULL, full_base + layer * (2 * NP) + NP, error)
            if cfg.gated:
                mbarrier.arrive(begun.index(1), count=1)
            mark(trace, pid, layer, layers, 10, cfg)
            squares = put_input(False, middle, embedding, ids, last_tokens, norm + H, whole_place, 0, KB,
                                cfg.stage_blocks, cfg.stages, cfg)  # fmt: skip
            activations_ready()
            mark(trace, pid, layer, layers, 11, cfg)
        for neuron in range(neuron_begin, neuron_end):
            if cfg.staged:
                index, g = staged_product(
                    ring, full, free, slot_trace, index, activations, KB, staged, 0, cfg.stage_blocks, odd_input, cfg,
                )  # fmt: skip
                mbarrier.wait(staged.index(STAGES), odd_input)
                factor = factors.load(gl.SliceLayout(0, LS))[None, :]
            else:
                index, g = row_product(ring, full, free, slot_trace, index, activations, KB, cfg)
                factor = inverse_rms_of(squares, LS, cfg)
            index, u = row_product(ring, full, free, slot_trace, index, activations, KB, cfg)
            g, u = g * factor, u * factor
            place = batch_row * INTER + (neuron * 64 + sums_row)
            h = g / (1.0 + gl.exp(-g)) * u
            if cfg.relayed:
                put_flagged(flagged_neurons + place, h, flag, wanted)
            else:
                gl.store(neurons + place, h, mask=wanted)
        mark(trace, pid, layer, layers, 12, cfg)
        if cfg.relayed:
            arrive_relaxed(own)
        else:
            arrive(own)
        if cfg.staged:
            block_barrier()
            mbarrier.arrive(staged.index(STAGES + 1 + cfg.down_stages), count=1)
        # Nobody reads these any more, and they are added to after the next FULL barrier.
        clear(qkv, pid, cfg.qkv_parts * B * KV * QS, NP, cfg)
        clear(cleared, pid, B * H, NP, cfg)
        clear(before, pid, B * H, NP, cfg)
        # Down
        if not cfg.staged:
            if not cfg.relayed:
                wait(own, own_base + layer * (3 * M) + 3 * M, error)
            put_neurons(neurons, down_place, first_neuron, down_k_begin, down_k_end, flag, error, cfg)
            activations_ready()
            mark(trace, pid, layer, layers, 13, cfg)
        index = multiply_down(
            ring, full, free, slot_trace, index, activations, staged, odd, middle, after, relays, flag,
            layer < layers - 1, group, down_row_begin, down_row_end, down_k_begin, down_k_end,
            wanted, batch_row, sums_row, cfg,
        )  # fmt: skip
        mark(trace, pid, layer, layers, 14, cfg)
        if cfg.staged:
            mbarrier.wait(staged.index(STAGES + cfg.down_stages), odd)  # the next input goes where the neurons lie
        if cfg.relayed:
            if layer < layers - 1:
                arrive_relaxed(counters + FULL)
            else:
                arrive(counters + FULL)
        else:
            arrive(counters + FULL)
    return index

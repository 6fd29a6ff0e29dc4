"""The stager, four warps beside the consumers: what GateUp and Down multiply, from device memory to shared memory.

The input of a product of several rows is long: 64 KB for eight rows of 2048, which every program reads from L2. While
the consumers staged it themselves nothing was multiplied, and the stream of weights stood still behind a full ring.
The stager waits for the other programs, converts a stage of a few blocks after the other and says so, and the
consumers multiply each stage as it comes.

`staged` are mbarriers that complete once a layer each: the stages of GateUp's input, the factor of the norm, the
stages of Down's neurons; and one that the consumers complete when GateUp's input is used up, which the stager waits
for. A dense head completes those of GateUp's input and the factor once more, so their phase also counts heads. In
every layer the consumers wait for the first one and for the last stage, in every dense head for the factor: so none
can complete twice unseen, and by waiting they see everything that the stager has seen of other programs.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from structgen.kernels.device.grid_sync import wait
from structgen.kernels.device.norm import load_input, norm_weights, row_factors, tile_places
from structgen.kernels.device.products import put_activations, stage_places
from structgen.kernels.device.step_parts import FIRST_GROUP, FULL, RUN_HEAD, RUN_LAYERS, field, mark
from structgen.kernels.device.triton_names import block_barrier


@gluon.jit
def put_stage(x, place, staged):
    """The fence that wgmma needs between these stores and its reads is the consumers', after their wait: here it would
    wait for the loads of the next stages too."""
    put_activations(x, place)
    block_barrier()
    mbarrier.arrive(staged, count=1)


@gluon.jit
def x_squares(x, cfg: gl.constexpr):
    """Squares of x [blocks, batch_tile, 64], a thread's eight adjoining ones added: [blocks, batch_tile, 8]."""
    return gl.sum(gl.reshape(x * x, (x.shape[0], cfg.batch_tile, 8, 8)), 3)


@gluon.jit
def stage_input(residual, norm, place, staged, factors, cfg: gl.constexpr):
    """The whole input of GateUp, [batch, hidden] at `residual`, times the norm's weights; then 1 / rms of each row.

    The next stages are asked for before one is converted. More under way at once, in an unrolled loop, took 1.2 us
    off these 6 and nothing off the step: its stream of weights is what counts from here on.
    """
    KB: gl.constexpr = cfg.schedule.shape.hidden_blocks
    BLOCKS: gl.constexpr = cfg.stage_blocks
    STAGES: gl.constexpr = cfg.stages
    k, row, within = tile_places(BLOCKS, cfg)
    x, weight = load_input(False, residual, norm, norm, norm, norm, k, row, within, 0, KB, cfg)
    next_x, next_weight = load_input(False, residual, norm, norm, norm, norm, k, row, within, BLOCKS, KB, cfg)
    zero = gl.full((BLOCKS, cfg.batch_tile, 64), 0.0, gl.float32, cfg.activation_layout)
    squares = x_squares(zero, cfg)
    for stage in range(STAGES):
        third_x, third_weight = load_input(
            False, residual, norm, norm, norm, norm, k, row, within, (stage + 2) * BLOCKS, KB, cfg
        )
        put_stage(x * norm_weights(weight, cfg), place.index(stage), staged.index(stage))
        squares += x_squares(x, cfg)
        x, weight, next_x, next_weight = next_x, next_weight, third_x, third_weight
    factors.store(row_factors(squares, cfg))
    block_barrier()
    mbarrier.arrive(staged.index(STAGES), count=1)


@gluon.jit
def stage_neurons(neurons, place, staged, odd, first, k_begin, k_end, cfg: gl.constexpr):
    """Blocks first + [k_begin, k_end) of the neurons [batch, intermediate]."""
    INTER: gl.constexpr = cfg.schedule.shape.intermediate
    BLOCKS: gl.constexpr = cfg.down_blocks
    STAGES: gl.constexpr = cfg.down_stages
    FIRST: gl.constexpr = cfg.stages + 1
    k, row, within = tile_places(BLOCKS, cfg)
    for stage in range(STAGES):
        block = k_begin + stage * BLOCKS + k
        wanted = (block < k_end) & (row < cfg.batch) & (within < 64)
        source = neurons + (row * INTER + (first + block) * 64 + within)
        h = gl.load(source, mask=wanted, other=0.0, cache_modifier=".cg")
        if stage == 0:
            mbarrier.wait(staged.index(FIRST + STAGES), odd)  # GateUp's input lies there until then
        put_stage(h, place.index(stage), staged.index(FIRST + stage))


@gluon.jit
def stage_layers(
    staged, begun, activations, factors, table, pid, layers, epoch, ran,
    residuals, neurons, counters, error, trace, norms, cfg: gl.constexpr,
):  # fmt: skip
    """For the layers of pass number `epoch`, after `ran` layers of earlier ones in this launch."""
    H: gl.constexpr = cfg.schedule.shape.hidden
    M: gl.constexpr = cfg.schedule.members
    NP: gl.constexpr = cfg.schedule.programs
    SIZE: gl.constexpr = cfg.batch_tile * cfg.schedule.shape.hidden
    down_place = stage_places(activations, cfg.down_blocks, cfg)
    whole_place = stage_places(activations, cfg.stage_blocks, cfg)
    own = counters + FIRST_GROUP + field(table, "qkv_group", cfg) * 16
    full_base = epoch * (2 * NP) * layers
    own_base = epoch * (3 * M) * layers
    first_neuron = field(table, "down_first_neuron", cfg)
    down_k_begin, down_k_end = field(table, "down_k_begin", cfg), field(table, "down_k_end", cfg)
    for layer in range(layers):
        middle = residuals + ((epoch * layers + layer) & 1) * SIZE
        # That all programs have arrived means that this one's consumers are done with the activations of Output.
        wait(counters + FULL, full_base + layer * (2 * NP) + NP, error)
        if cfg.gated:
            mbarrier.arrive(begun.index(1), count=1)
        mark(trace, pid, layer, layers, 10, cfg)
        stage_input(middle, norms + layer * (2 * H) + H, whole_place, staged, factors, cfg)
        mark(trace, pid, layer, layers, 11, cfg)
        wait(own, own_base + layer * (3 * M) + 3 * M, error)
        mark(trace, pid, layer, layers, 13, cfg)
        odd = (ran + layer) & 1
        stage_neurons(neurons, down_place, staged, odd, first_neuron, down_k_begin, down_k_end, cfg)


@gluon.jit
def stage_head(
    staged, activations, factors, passes, layers, residuals, counters, error, norms, cfg: gl.constexpr
):  # fmt: skip
    """For a dense head after layer pass number `passes` - 1."""
    H: gl.constexpr = cfg.schedule.shape.hidden
    NP: gl.constexpr = cfg.schedule.programs
    SIZE: gl.constexpr = cfg.batch_tile * cfg.schedule.shape.hidden
    place = stage_places(activations, cfg.stage_blocks, cfg)
    residual = residuals + (2 + ((passes * layers - 1) & 1)) * SIZE
    wait(counters + FULL, passes * (2 * NP) * layers, error)
    stage_input(residual, norms + layers * (2 * H), place, staged, factors, cfg)


@gluon.jit
def stager(args, cfg: gl.constexpr):
    (
        decided, staged, begun, decision, activations, factors, table, pid, layers, mode, epoch,
        residuals, neurons, counters, error, trace, norms,
    ) = args  # fmt: skip
    if (mode & RUN_LAYERS) != 0:
        stage_layers(
            staged, begun, activations, factors, table, pid, layers, epoch, 0,
            residuals, neurons, counters, error, trace, norms, cfg,
        )  # fmt: skip
    if (mode & RUN_HEAD) != 0:
        mbarrier.wait(decided, 0)
        if gl.load(decision, volatile=True) == 0:
            passes = epoch + (mode & RUN_LAYERS)
            stage_head(staged, activations, factors, passes, layers, residuals, counters, error, norms, cfg)

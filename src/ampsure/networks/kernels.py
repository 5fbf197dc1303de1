"""Hopper kernels of the stacked perceptron, in Gluon (Triton with explicit layouts); `fused` prepares what they read.

A program owns one member and a run of its rows, and takes them through all layers. What passes from layer to layer goes
through scratch memory that mostly stays in the L2 cache; weights are read once per program and layer.

Products are sums of three float16 products (H. Ootomo, R. Yokota, arXiv:2203.03341), as exact as float32 and with twice
the ceiling of tf32x3: see `_split`.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait


@gluon.constexpr_function
def _coalesced(columns, warps):
    """Layout of (rows, columns) in registers for global memory: 16 bytes a thread, neighbours side by side."""
    lanes = min(32, columns // 4)
    return gl.BlockedLayout([1, 4], [32 // lanes, lanes], [warps, 1], [1, 0])


@gluon.constexpr_function
def _product(rows, columns, warps):
    """Layout of a product (rows, columns) in registers; warps share its rows first, then its columns."""
    down = min(warps, rows // 16)
    return gl.NVMMADistributedLayout([3, 0], [down, warps // down], [16, columns * down // warps, 16])


@gluon.constexpr_function
def _group(rows, columns, warps):
    """Rows that all threads together hold at a time in the coalesced layout."""
    return min(rows, warps * 32 // min(32, columns // 4))


@gluon.jit
def _elements(matrix, row, n: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr, layout: gl.constexpr):
    """Rows, columns and addresses of the tile (ROWS, COLUMNS) from `row` on in a matrix (·, n)."""
    rows = row + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))[:, None]
    columns = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, layout))[None, :]
    return rows, columns, (matrix + rows * n) + columns  # in this order few addresses have to be kept in registers


@gluon.jit
def _load(matrix, row, n_rows, n: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr, MASKED: gl.constexpr):
    """Rows from `row` on of a (n_rows, n) matrix, padded with zeros to (ROWS, COLUMNS)."""
    rows, columns, elements = _elements(matrix, row, n, ROWS, COLUMNS, _coalesced(COLUMNS, gl.num_warps()))
    return gl.load(elements, mask=(rows < n_rows) & (columns < n), other=0.0) if MASKED else gl.load(elements)


@gluon.jit
def _store(matrix, value, row, n_rows, n: gl.constexpr, MASKED: gl.constexpr):
    """Inverse of `_load`, for any layout of the value."""
    layout: gl.constexpr = value.type.layout
    rows, columns, elements = _elements(matrix, row, n, value.shape[0], value.shape[1], layout)
    if MASKED:
        gl.store(elements, value, mask=(rows < n_rows) & (columns < n))
    else:
        gl.store(elements, value)


@gluon.jit
def _unit(peak):
    """The power of two in which to count numbers up to `peak`, and its inverse: the largest becomes 2^13."""
    exponent = gl.maximum(peak.to(gl.int32, bitcast=True) >> 23, 14)
    return ((exponent - 13) << 23).to(gl.float32, bitcast=True), ((267 - exponent) << 23).to(gl.float32, bitcast=True)


@gluon.jit
def _split(x, peak, high, low):
    """Store float32 as the sum of two float16 numbers, 22 bits: x = (high + low) * unit; gives the unit.

    What float16 cannot hold is below 2^-38 of the peak. Up to four times the peak fits.
    """
    unit, inverse = _unit(peak)
    x *= inverse
    rounded = x.to(gl.float16)
    high.store(rounded)
    low.store((x - rounded.to(gl.float32)).to(gl.float16))
    return unit


@gluon.jit
def _peaks(x, ACROSS: gl.constexpr):
    """Largest absolute values of a product (ROWS, COLUMNS), as far as a thread knows them: ACROSS warps share a row."""
    ROWS: gl.constexpr = x.shape[0]
    COLUMNS: gl.constexpr = x.shape[1]
    x = gl.reshape(gl.abs(x), (ROWS // 16, 2, 8, ACROSS, COLUMNS // 8 // ACROSS, 4, 2))
    return gl.max(gl.max(gl.max(x, 6), 4), 1)


@gluon.jit
def _sums(x):
    """Sums over rows of a coalesced (ROWS, COLUMNS), as far as a thread knows them."""
    ROWS: gl.constexpr = x.shape[0]
    COLUMNS: gl.constexpr = x.shape[1]
    GROUP: gl.constexpr = _group(ROWS, COLUMNS, gl.num_warps())
    return gl.sum(gl.reshape(x, (ROWS // GROUP, GROUP, COLUMNS)), 0)


@gluon.jit
def _shared(ROWS: gl.constexpr, COLUMNS: gl.constexpr, TRANSPOSED: gl.constexpr = False):
    """Shared memory for the two halves of a split matrix."""
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, COLUMNS], gl.float16, TRANSPOSED)
    high = gl.allocate_shared_memory(gl.float16, [ROWS, COLUMNS], layout)
    low = gl.allocate_shared_memory(gl.float16, [ROWS, COLUMNS], layout)
    return high, low


@gluon.jit
def _tile(ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """Shared memory for float32, swizzled for reading it as products are laid out."""
    return gl.allocate_shared_memory(gl.float32, [ROWS, COLUMNS], gl.SwizzledSharedLayout(4, 1, 8, [1, 0]))


@gluon.jit
def _fetch(tile, matrix, row, COLUMNS: gl.constexpr, ROWS: gl.constexpr):
    """Start to copy rows from `row` on of a (·, COLUMNS) matrix."""
    _, _, elements = _elements(matrix, row, COLUMNS, ROWS, COLUMNS, _coalesced(COLUMNS, gl.num_warps()))
    async_copy.async_copy_global_to_shared(tile, elements)


@gluon.jit
def _dot(a_high, a_low, b_high, b_low):
    """Start the product of split matrices, small terms first; low times low is below the rounding of float32."""
    ROWS: gl.constexpr = a_high.shape[0]
    COLUMNS: gl.constexpr = b_high.shape[1]
    acc = gl.zeros((ROWS, COLUMNS), gl.float32, _product(ROWS, COLUMNS, gl.num_warps()))
    acc = warpgroup_mma(a_low, b_high, acc, use_acc=False, is_async=True)
    acc = warpgroup_mma(a_high, b_low, acc, is_async=True)
    return warpgroup_mma(a_high, b_high, acc, is_async=True)


@gluon.jit
def _approximately(instruction: gl.constexpr, x):
    """One instruction of the special function units, exact to an ulp or two."""
    return gl.inline_asm_elementwise(instruction + ".approx.ftz.f32 $0, $1;", "=f,f", [x], gl.float32, True, 1)


@gluon.jit
def _gelu(z):
    """GELU and its slope.

    The normal distribution's tail over its density is a polynomial in t = 1 / (1 + 0.32 |z|), as in Abramowitz and
    Stegun 7.1.26; this one, fitted by us, is off by 1.3e-8 at most, and is half as long as erf.
    """
    t = _approximately("rcp", 1.0 + 0.32 * gl.abs(z))
    density = _approximately("ex2", -0.7213475204444817 * z * z)  # times sqrt(2 pi)
    tail = 0.04016667604446411 * t - 0.21467794477939606
    tail = tail * t + 0.35804927349090576
    tail = tail * t - 0.11524064838886261
    tail = tail * t + 0.18965694308280945
    tail = tail * t + 0.11329285055398941
    tail = tail * t + 0.12875282764434814
    tail *= t * density
    cdf = gl.where(z > 0, 1.0 - tail, tail)
    return z * cdf, cdf + 0.3989422804014327 * z * density


@gluon.jit
def _pick(pointers, index):
    """Element of a tuple of pointers at an index known only at run time."""
    chosen = pointers[0]
    for i in gl.static_range(1, len(pointers)):
        chosen = gl.where(index == i, pointers[i], chosen)
    return chosen


@gluon.jit
def _forward(
    source,  # (rows, n_in): inputs of the first layer; otherwise activations if residual, preactivations if not
    weight,  # (n_in, n_out)
    bias,  # (n_out)
    target,  # (rows, n_out): source of the next layer
    z,  # (rows, n_out): preactivations, if they are not the target
    peak,  # of the source
    n_rows,
    start,
    stop,
    n_in: gl.constexpr,
    n_out: gl.constexpr,
    IN: gl.constexpr,
    OUT: gl.constexpr,
    FIRST: gl.constexpr,
    LAST: gl.constexpr,
    RESIDUAL: gl.constexpr,
    KEEP: gl.constexpr,
    BLOCK: gl.constexpr,
):
    """One layer; gives the peak of its target."""
    layout: gl.constexpr = _product(BLOCK, OUT, gl.num_warps())
    w_high, w_low = _shared(IN, OUT, LAST)
    h_high, h_low = _shared(BLOCK, IN)
    w = _load(weight, 0, n_in, n_out, IN, OUT, FIRST or LAST)
    w_unit = _split(w, gl.max(gl.abs(w)), w_high, w_low)
    columns = gl.arange(0, OUT, layout=gl.SliceLayout(0, layout))
    b = gl.load(bias + columns, mask=columns < n_out, other=0.0)[None, :]
    ACROSS: gl.constexpr = gl.num_warps() * 16 // BLOCK
    peaks = _peaks(gl.zeros((BLOCK, OUT), gl.float32, layout), ACROSS)
    h = _load(source, start, n_rows, n_in, BLOCK, IN, FIRST)
    for row in range(start, stop, BLOCK):
        if not FIRST and not RESIDUAL:
            h, _ = _gelu(h)
        unit = _split(h, gl.max(gl.abs(h)) if FIRST else peak, h_high, h_low)
        fence_async_shared()
        acc = _dot(h_high, h_low, w_high, w_low)
        h = _load(source, gl.minimum(row + BLOCK, stop - BLOCK), n_rows, n_in, BLOCK, IN, FIRST)
        new = warpgroup_mma_wait(0, (acc,)) * (unit * w_unit) + b
        if RESIDUAL and not LAST:
            if KEEP:
                _store(z, new, row, n_rows, n_out, False)
            new, _ = _gelu(new)
            if not FIRST:
                _, _, elements = _elements(source, row, n_in, BLOCK, IN, layout)
                new += gl.load(elements)
        _store(target, new, row, n_rows, n_out, LAST)
        gl.thread_barrier()  # the tensor cores have read the operands
        if not LAST:
            peaks = gl.maximum(peaks, _peaks(new, ACROSS))
    return gl.max(peaks)


@gluon.jit
def _offset(member, stride, size, SIDE_BY_SIDE: gl.constexpr):
    """Where the parameters of a member start."""
    return member * stride if SIDE_BY_SIDE else member * size


@gluon.jit
def forward_kernel(
    x,  # (B, F) or (E, B, F)
    x_stride,  # between members, 0 if they share x
    weights,  # tuple of (E, in, out)
    biases,  # tuple of (E, 1, out)
    stride,  # between members, of all weights and biases if they are side by side in one memory
    hidden,  # (DEPTH, E, padded, WIDTH): activations if residual, otherwise z
    z,  # (DEPTH, E, padded, WIDTH): preactivations
    layer_stride,  # of both, 0 if nothing is kept
    peaks,  # (DEPTH, E): largest absolute values of `hidden`, as the integers with their bits; zero at first
    out,  # (E, B, n_outputs)
    n_rows,  # B
    padded,  # B rounded up to whole blocks
    run,  # rows of a program
    n_inputs: gl.constexpr,
    n_outputs: gl.constexpr,
    INPUTS: gl.constexpr,
    OUTPUTS: gl.constexpr,
    WIDTH: gl.constexpr,
    DEPTH: gl.constexpr,
    RESIDUAL: gl.constexpr,
    KEEP: gl.constexpr,
    SIDE_BY_SIDE: gl.constexpr,
    BLOCK: gl.constexpr,
):
    """All layers for the rows of a program."""
    start = gl.program_id(0) * run
    stop = gl.minimum(start + run, padded)
    member = gl.program_id(1).to(gl.int64)
    hidden += member * padded * WIDTH
    z += member * padded * WIDTH
    peaks += member
    peak = _forward(
        x + member * x_stride,
        weights[0] + _offset(member, stride, n_inputs * WIDTH, SIDE_BY_SIDE),
        biases[0] + _offset(member, stride, WIDTH, SIDE_BY_SIDE),
        hidden, z, 0.0, n_rows, start, stop,
        n_inputs, WIDTH, INPUTS, WIDTH, True, False, RESIDUAL, KEEP, BLOCK,
    )  # fmt: skip
    for k in range(1, DEPTH):
        gl.atomic_max(peaks, peak.to(gl.int32, bitcast=True))
        gl.thread_barrier()  # other threads wrote what is read now
        peak = _forward(
            hidden,
            _pick(weights, k) + _offset(member, stride, WIDTH * WIDTH, SIDE_BY_SIDE),
            _pick(biases, k) + _offset(member, stride, WIDTH, SIDE_BY_SIDE),
            hidden + layer_stride, z + layer_stride, peak, n_rows, start, stop,
            WIDTH, WIDTH, WIDTH, WIDTH, False, False, RESIDUAL, KEEP, BLOCK,
        )  # fmt: skip
        hidden += layer_stride
        z += layer_stride
        peaks += gl.num_programs(1)
    gl.atomic_max(peaks, peak.to(gl.int32, bitcast=True))
    gl.thread_barrier()
    _forward(
        hidden,
        weights[DEPTH] + _offset(member, stride, WIDTH * n_outputs, SIDE_BY_SIDE),
        biases[DEPTH] + _offset(member, stride, n_outputs, SIDE_BY_SIDE),
        out + member * n_rows * n_outputs, z, peak, n_rows, start, stop,
        WIDTH, n_outputs, WIDTH, OUTPUTS, False, True, RESIDUAL, KEEP, BLOCK,
    )  # fmt: skip


@gluon.jit
def _backward(
    source,  # (rows, n_in): as in `_forward`
    weight,  # (n_in, n_out)
    above,  # (rows, n_out): gradient of this layer's activations if residual, of its preactivations if not
    z,  # (rows, n_out): preactivations, read if residual
    below,  # (rows, n_in): gradient of the source; may be the memory of `above`
    peak,  # of the source
    above_peak,
    weight_grad,  # (n_in, n_out)
    bias_grad,  # (n_out)
    n_rows,
    start,
    stop,
    detached_start,
    detached_stop,
    n_in: gl.constexpr,
    n_out: gl.constexpr,
    IN: gl.constexpr,
    OUT: gl.constexpr,
    FIRST: gl.constexpr,
    LAST: gl.constexpr,
    RESIDUAL: gl.constexpr,
    BLOCK: gl.constexpr,
):
    """One layer: gradients of its parameters, and of its source unless it is the first, of which it gives the peak."""
    g_high, g_low = _shared(BLOCK, OUT)
    h_high, h_low = _shared(BLOCK, IN)
    if not FIRST:
        w = _load(weight, 0, n_in, n_out, IN, OUT, LAST)
        if LAST:
            column = gl.arange(0, OUT, layout=gl.SliceLayout(0, _coalesced(OUT, gl.num_warps())))[None, :]
            w = gl.where((column >= detached_start) & (column < detached_stop), 0.0, w)
        w_high, w_low = _shared(IN, OUT)
        w_unit = _split(w, gl.max(gl.abs(w)), w_high, w_low)
    # The tensor cores want many rows: the few inputs of the first layer are columns.
    ROWS: gl.constexpr = OUT if FIRST else IN
    COLUMNS: gl.constexpr = IN if FIRST else OUT
    ACROSS: gl.constexpr = gl.num_warps() * 16 // BLOCK
    WIDTH: gl.constexpr = OUT if FIRST else IN
    layout: gl.constexpr = _product(BLOCK, WIDTH, gl.num_warps())
    dw = gl.zeros((ROWS, COLUMNS), gl.float32, _product(ROWS, COLUMNS, gl.num_warps()))
    db = _sums(gl.zeros((BLOCK, OUT), gl.float32, _coalesced(OUT, gl.num_warps())))
    peaks = _peaks(gl.zeros((BLOCK, WIDTH), gl.float32, layout), ACROSS)
    # Wide tiles arrive in shared memory ahead of use: the source early in the block before, the others late, for their
    # memory holds the slopes until then. Two groups of copies are under way, so all but one must have arrived.
    wide_layout: gl.constexpr = _coalesced(WIDTH, gl.num_warps())
    tile = _tile(BLOCK, WIDTH)
    if not FIRST:
        source_tile = _tile(BLOCK, WIDTH)
        _fetch(source_tile, source, start, WIDTH, BLOCK)
    async_copy.commit_group()
    if not LAST:
        _fetch(tile, above, start, WIDTH, BLOCK)
        if RESIDUAL:
            z_tile = _tile(BLOCK, WIDTH)
            _fetch(z_tile, z, start, WIDTH, BLOCK)
    async_copy.commit_group()
    for row in range(start, stop, BLOCK):
        ahead = gl.minimum(row + BLOCK, stop - BLOCK)
        async_copy.wait_group(1)
        if FIRST:
            h = _load(source, row, n_rows, n_in, BLOCK, IN, True)
        else:
            h = source_tile.load(wide_layout)
            _fetch(source_tile, source, ahead, WIDTH, BLOCK)
        async_copy.commit_group()
        if not RESIDUAL and not FIRST:
            h, slope = _gelu(h)
        h_unit = _split(h, gl.max(gl.abs(h)) if FIRST else peak, h_high, h_low)
        async_copy.wait_group(1)
        if LAST:
            g = _load(above, row, n_rows, n_out, BLOCK, OUT, True)
        else:
            g = tile.load(wide_layout)
            if RESIDUAL:
                _, slope = _gelu(z_tile.load(wide_layout))
                g *= slope
        if not RESIDUAL and not FIRST:
            tile.store(slope)
        db += _sums(g)
        g_unit = _split(g, gl.max(gl.abs(g)) if LAST else above_peak, g_high, g_low)
        fence_async_shared()
        if FIRST:
            dw_part = _dot(g_high.permute((1, 0)), g_low.permute((1, 0)), h_high, h_low)
        else:
            new_part = _dot(g_high, g_low, w_high.permute((1, 0)), w_low.permute((1, 0)))
            dw_part = _dot(h_high.permute((1, 0)), h_low.permute((1, 0)), g_high, g_low)
            new = warpgroup_mma_wait(3, (new_part,)) * (g_unit * w_unit)
            if not RESIDUAL or not LAST:
                slope_or_above = tile.load(layout)
        if not LAST:
            _fetch(tile, above, ahead, WIDTH, BLOCK)
            if RESIDUAL:
                _fetch(z_tile, z, ahead, WIDTH, BLOCK)
        async_copy.commit_group()
        if not FIRST:
            if not RESIDUAL:
                new *= slope_or_above
            elif not LAST:
                new += slope_or_above
            _store(below, new, row, n_rows, n_in, False)
            peaks = gl.maximum(peaks, _peaks(new, ACROSS))
        dw += warpgroup_mma_wait(0, (dw_part,)) * (h_unit * g_unit)
        gl.thread_barrier()  # the tensor cores have read the operands
    async_copy.wait_group(0)
    if FIRST:
        dw = dw.permute((1, 0))
    _store(weight_grad, dw, 0, n_in, n_out, FIRST or LAST)
    columns = gl.arange(0, OUT, layout=gl.SliceLayout(0, _coalesced(OUT, gl.num_warps())))
    db = gl.convert_layout(gl.sum(db, 0), gl.SliceLayout(0, _coalesced(OUT, gl.num_warps())))
    gl.store(bias_grad + columns, db, mask=columns < n_out)
    return gl.max(peaks)


@gluon.jit
def backward_kernel(
    x,  # (B, F) or (E, B, F)
    x_stride,  # between members, 0 if they share x
    weights,  # tuple of (E, in, out)
    stride,  # as in `forward_kernel`
    hidden,  # (DEPTH, E, padded, WIDTH): as in `forward_kernel`
    z,  # (DEPTH, E, padded, WIDTH)
    layer_stride,
    peaks,  # (DEPTH, E)
    grad_out,  # (E, B, n_outputs)
    carried,  # (E, padded, WIDTH): gradients from layer to layer
    weight_grads,  # tuple of (programs of a member, E, in, out)
    bias_grads,  # tuple of (programs of a member, E, 1, out)
    program_stride,  # of both
    n_rows,
    padded,
    run,  # rows of a program
    detached_start,
    detached_stop,
    n_inputs: gl.constexpr,
    n_outputs: gl.constexpr,
    INPUTS: gl.constexpr,
    OUTPUTS: gl.constexpr,
    WIDTH: gl.constexpr,
    DEPTH: gl.constexpr,
    RESIDUAL: gl.constexpr,
    SIDE_BY_SIDE: gl.constexpr,
    BLOCK: gl.constexpr,
):
    """Gradients of all parameters from the rows of a program."""
    start = gl.program_id(0) * run
    stop = gl.minimum(start + run, padded)
    member = gl.program_id(1).to(gl.int64)
    layer_stride = layer_stride.to(gl.int64)
    hidden += member * padded * WIDTH + (DEPTH - 1) * layer_stride
    z += member * padded * WIDTH + (DEPTH - 1) * layer_stride
    carried += member * padded * WIDTH
    peaks += member + (DEPTH - 1) * gl.num_programs(1)
    program = gl.program_id(0).to(gl.int64) * program_stride
    above_peak = _backward(
        hidden,
        weights[DEPTH] + _offset(member, stride, WIDTH * n_outputs, SIDE_BY_SIDE),
        grad_out + member * n_rows * n_outputs,
        z, carried, gl.load(peaks).to(gl.float32, bitcast=True), 0.0,
        weight_grads[DEPTH] + program + member * WIDTH * n_outputs,
        bias_grads[DEPTH] + program + member * n_outputs,
        n_rows, start, stop, detached_start, detached_stop,
        WIDTH, n_outputs, WIDTH, OUTPUTS, False, True, RESIDUAL, BLOCK,
    )  # fmt: skip
    for i in range(1, DEPTH):
        gl.thread_barrier()  # other threads wrote what is read now
        k = DEPTH - i
        hidden -= layer_stride
        peaks -= gl.num_programs(1)
        above_peak = _backward(
            hidden,
            _pick(weights, k) + _offset(member, stride, WIDTH * WIDTH, SIDE_BY_SIDE),
            carried, z, carried, gl.load(peaks).to(gl.float32, bitcast=True), above_peak,
            _pick(weight_grads, k) + program + member * WIDTH * WIDTH,
            _pick(bias_grads, k) + program + member * WIDTH,
            n_rows, start, stop, detached_start, detached_stop,
            WIDTH, WIDTH, WIDTH, WIDTH, False, False, RESIDUAL, BLOCK,
        )  # fmt: skip
        z -= layer_stride
    gl.thread_barrier()
    _backward(
        x + member * x_stride,
        weights[0],
        carried, z, carried, 0.0, above_peak,
        weight_grads[0] + program + member * n_inputs * WIDTH,
        bias_grads[0] + program + member * WIDTH,
        n_rows, start, stop, detached_start, detached_stop,
        n_inputs, WIDTH, INPUTS, WIDTH, True, False, RESIDUAL, BLOCK,
    )  # fmt: skip

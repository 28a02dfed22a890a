"""JAX's fused attention of GPUs, with the kernels' place taken by plain attention: what JAX declares and demands of layouts is
its own."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax._src.cudnn import fused_attention_stablehlo as fused
from jax.interpreters import mlir
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from tests.share import examples

MESH = spmd.create_mesh([("a", 4), ("b", 2)])
B, T, S, N, H = 8, 16, 24, 8, 16


def plain(q, k, v, bias, q_length, k_length, *_, scale, variadic_args, mask_type, layout, **__):
    """Attention and the logarithm of its sums, as the kernel gives them."""
    if layout == fused.AttentionLayout.BNTH.value:
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], 2) for x in (k, v))
    assert q.shape[0] == k.shape[0] and q.shape[2] == k.shape[2]
    scores = scale * jnp.einsum("btnh,bsnh->bnts", q, k, preferred_element_type=jnp.float32)
    if variadic_args[0]:
        assert bias.shape[0] in (1, q.shape[0]) and bias.shape[1] in (1, q.shape[2])
        scores += bias
    t, s = jnp.arange(q.shape[1])[:, None], jnp.arange(k.shape[1])
    if "CAUSAL" in mask_type.name:
        scores = jnp.where(s <= t, scores, -1e30)
    if "PADDING" in mask_type.name:
        scores = jnp.where(s < k_length[:, None, None, None], scores, -1e30)
    out = jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores), v, preferred_element_type=jnp.float32)
    if "PADDING" in mask_type.name:
        out = jnp.where((t < q_length[:, None, None])[..., None], out, 0)
    if layout == fused.AttentionLayout.BNTH.value:
        out = out.swapaxes(1, 2)
    return out.astype(q.dtype), jax.nn.logsumexp(scores, -1)


def forward(*args, is_training, **how):
    return plain(*args, **how)[: 1 + is_training]


def backward(*args, variadic_args, **how):
    kept, (softmax, out, grad) = args[4:10], args[10:13]
    again, pull = jax.vjp(lambda *x: plain(*x, *kept, variadic_args=variadic_args, **how)[0], *args[:4])
    assert softmax.shape[0] == args[0].shape[0] and out.shape == grad.shape == again.shape
    return pull(grad)[: 3 + variadic_args[1]]


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    for p, run in (
        (fused._dot_product_attention_fwd_p, forward),
        (fused._dot_product_attention_bwd_p, backward),
    ):
        mlir.register_lowering(p, mlir.lower_fun(run, multiple_results=True), platform="cpu")
    monkeypatch.setattr(fused, "check_cudnn_version", lambda: 91100)
    monkeypatch.setattr(fused, "check_compute_capability", lambda least: True)
    monkeypatch.setattr(fused, "is_cuda_compute_capability_equal", lambda version: False)


attention = functools.partial(jax.nn.dot_product_attention, implementation="cudnn")


def operands(heads=N):
    rng = np.random.RandomState(0)
    shapes = [(B, T, N, H), (B, S, heads, H), (B, S, heads, H)]
    return [jnp.asarray(rng.randn(*shape), jnp.bfloat16) for shape in shapes]


def gradients(of=attention, **how):
    """Of all operands; positional ones beyond the third are biases."""

    def run(q, k, v, *bias):
        def loss(q, k, v, *bias):
            options = {"bias": bias[0], **how} if bias else how
            return jnp.sum(jnp.sin(of(q, k, v, **options).astype(jnp.float32)))

        return jax.value_and_grad(loss, argnums=tuple(range(3 + len(bias))))(q, k, v, *bias)

    return run


def check(run, args, layouts, **options):
    """The program's lowering, once its results are those of one device."""
    step = spmd.spmd_jit(run, mesh=MESH, in_layouts=layouts, **options)
    for got, want in zip(jax.tree.leaves(step(*args)), jax.tree.leaves(jax.jit(run)(*args)), strict=True):
        got, want = np.asarray(got, np.float32), np.asarray(want, np.float32)
        np.testing.assert_allclose(got, want, rtol=2e-2, atol=2e-2 * np.abs(want).max())
    return step.lower(*args)


@pytest.mark.parametrize("heads", [N, 4], ids=["heads", "grouped"])
@pytest.mark.parametrize("layout", [P("a"), P(None, None, "a"), P("b", None, "a"), P(("a", "b"))], ids=str)
def test_batches_and_heads_stay_where_they_are(layout, heads):
    lowered = check(
        gradients(is_causal=True), operands(heads), (layout,) * 3, out_layouts=(P(), (layout,) * 3)
    )
    assert [c.kind for c in lowered.collectives()] == ["all_reduce"]  # of the loss
    assert "fallback" not in lowered.explain()


@pytest.mark.parametrize("shape", [(B, N, T, S), (1, N, T, S), (B, 1, T, S), (1, 1, T, S)], ids=str)
def test_biases_and_their_gradients(shape):
    q, k, v = operands()
    bias = jnp.asarray(np.random.RandomState(1).randn(*shape), jnp.bfloat16)
    lowered = check(gradients(), (q, k, v, bias), (*(P("b", None, "a"),) * 3, P()), out_layouts=P())
    assert "fallback" not in lowered.explain()


def test_lengths():
    lengths = jnp.arange(1, B + 1, dtype=jnp.int32) * 2
    for layout in (P("a"), P("b", None, "a"), P(None, "a")):
        run = gradients(query_seq_lengths=lengths, key_value_seq_lengths=lengths)
        lowered = check(run, operands(), (layout,) * 3)
        assert "fallback" not in lowered.explain()


def test_heads_before_sequences():
    of = functools.partial(fused.dot_product_attention, qkv_layout="BNTH")
    args = [x.swapaxes(1, 2) for x in operands()]
    lowered = check(gradients(of), args, (P("b", "a"),) * 3, out_layouts=(P(), (P("b", "a"),) * 3))
    assert [c.kind for c in lowered.collectives()] == ["all_reduce"]


@given(st.lists(st.permutations(["a", "b", None, None]), min_size=3, max_size=3), st.sampled_from([N, 4, 1]))
@examples(10)
def test_any_layout(specs, heads):
    """Also sequences and features, and each operand otherwise: XLA's partitioners end the process where JAX's callback refuses."""
    fit = [P(*(None if i == 2 and heads == 1 else a for i, a in enumerate(spec))) for spec in specs]
    lowered = check(gradients(), operands(heads), tuple(fit))
    assert "fallback" not in lowered.explain()


def test_sequences_change_places_with_heads():
    """All-to-all, not gathers."""
    layouts = {"in_layouts": (P(None, ("a", "b")),) * 3, "out_layouts": P(None, ("a", "b"))}
    lowered = spmd.spmd_jit(lambda *x: attention(*x), mesh=MESH, **layouts).lower(*operands())
    assert {c.kind for c in lowered.collectives()} == {"all_to_all"}


def test_one_head_of_keys():
    """Queries' heads can't be cut beside it: JAX asks for the same of both."""
    layouts = (P("b", None, "a"), P("b"), P("b"))
    lowered = check(gradients(), operands(1), layouts, out_layouts=(P(), layouts))
    assert "fallback" not in lowered.explain()
    assert "all_to_all" in {c.kind for c in lowered.collectives()}


def test_pages():
    """Of keys that any batch may be in only heads are cut."""
    q = operands()[0]
    pages = jnp.zeros((B * 3, 8, N, H), jnp.bfloat16)
    table = jnp.arange(B * 3, dtype=jnp.int32).reshape(B, 1, 3, 1)
    lengths = jnp.full((B,), T, jnp.int32)

    def run(q, k, v):
        how = {"mask_type": fused.MaskType.PADDING}
        return fused.paged_attention(q, k, v, lengths, lengths, table, table, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            fused, "_dot_product_attention_fwd_impl", lambda q, *_, **how: forward(q, q, q, *_[2:], **how)
        )
        mesh = spmd.create_mesh([("a", 4), ("b", 2)], abstract=True)
        layouts = (P("b", None, "a"),) * 3
        lowered = spmd.spmd_jit(run, mesh=mesh, in_layouts=layouts).lower(q, pages, pages)
    assert {c.axes for c in lowered.collectives()} <= {("b",)}
    assert "fallback" not in lowered.explain()

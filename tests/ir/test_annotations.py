"""Annotations of Shardy and XLA: what the parsers read, and which layouts come of it."""

import numpy as np
import pytest

from spmd_compiler.errors import LayoutError, MeshError, ParseError
from spmd_compiler.ir.annotations import (
    DimText,
    MeshText,
    ShardyText,
    parse_manual_axes,
    parse_mesh,
    parse_sharding,
    parse_shardings,
)
from spmd_compiler.ir.device_order import axes_of, common_mesh, decompose, ordered_mesh, tile_atoms
from spmd_compiler.ir.hlo_sharding import NamedText, TileText, parse_hlo_sharding
from spmd_compiler.ir.layout import Layout
from spmd_compiler.ir.mesh import Mesh
from spmd_compiler.ir.resolve import ShardingResolver, find_mesh
from spmd_compiler.ir.types import TensorType

MESH = Mesh([("a", 4), ("b", 2)])
AB = MeshText((("a", 2), ("b", 4)))
MATRIX = TensorType((16, 16), "f32")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("#sdy.sharding<@mesh, []>", ShardyText("mesh", ())),
        (
            '#sdy.sharding<@mesh, [{"a":(2)2, "b"}, {?}p2], replicated={"a":(1)2}>',
            ShardyText("mesh", (DimText(("a:(2)2", "b")), DimText((), True, 2)), ("a:(1)2",)),
        ),
        (
            '#sdy.sharding<@mesh, [{"a", ?}p1, {}], unreduced={"b"}>',
            ShardyText("mesh", (DimText(("a",), True, 1), DimText(())), (), ("b",)),
        ),
        ('#sdy.sharding<mesh<["x"=8]>, [{"x"}]>', ShardyText(MeshText((("x", 8),)), (DimText(("x",)),))),
    ],
)
def test_shardy_text(text, want):
    assert parse_sharding(text) == want
    assert parse_shardings(text) == (want,)


def test_shardings_per_value_meshes_and_manual_axes():
    found = parse_shardings('#sdy.sharding_per_value<[<@m, [{"a"}]>, <@m, [{?}]>]>')
    assert [s.dims for s in found] == [(DimText(("a",)),), (DimText((), True),)]
    assert parse_mesh('#sdy.mesh<["a"=4, "b"=2]>') == MeshText((("a", 4), ("b", 2)))
    assert parse_mesh("#sdy.mesh<[], device_ids=[3]>") == MeshText((), (3,))
    assert parse_manual_axes('#sdy<manual_axes{"a", "b"}>') == ("a", "b")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("{replicated}", [TileText("replicated")]),
        ("{maximal device=3}", [TileText("maximal", ids=(3,))]),
        ("{manual}", [TileText("manual")]),
        ("{devices=[2,1]0,1}", [TileText("tiled", (2, 1), ids=(0, 1))]),
        ("{devices=[2,4]<=[8]}", [TileText("tiled", (2, 4), (), (), (8,), (0,))]),
        (
            "{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}",
            [TileText("tiled", (2, 1, 4), ("replicated",), (), (4, 2), (1, 0))],
        ),
        (
            "{devices=[1,1,2,4]<=[8] last_tile_dims={manual, replicated}}",
            [TileText("tiled", (1, 1, 2, 4), ("manual", "replicated"), (), (8,), (0,))],
        ),
        (
            '{devices=[2]<=[2] metadata={op_name="x" n={1}} shard_as 3}',
            [TileText("tiled", (2,), (), (), (2,), (0,))],
        ),
        ("{maximal_mesh[device_id=3]}", [TileText("maximal", ids=(3,))]),
        ("{{replicated}, /*index=5*/{unknown}}", [TileText("replicated"), TileText("unknown")]),
        ("{mesh[], replicated}", [NamedText(ShardyText(MeshText(()), ()))]),
        (
            "{mesh[a=2,b=4], [{b,?}, {'a'}p1], replicated={}, metadata={{op_name=\"x\"}}}",
            [NamedText(ShardyText(AB, (DimText(("b",), True), DimText(("a",), False, 1))))],
        ),
        (
            "{mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)), [{'b':(2)2}], unreduced=max{'a'}}",
            [
                NamedText(
                    ShardyText(
                        MeshText(AB.axes, (0, 2, 4, 6, 1, 3, 5, 7)), (DimText(("b:(2)2",)),), (), ("a",)
                    )
                )
            ],
        ),
        ("{mesh['a'=2,'b'=4], manual}", [NamedText(ShardyText(AB, ()), ("a", "b"))]),
        (
            "{mesh[x=2], device_ids=(1,0), [], manual={x}}",
            [NamedText(ShardyText(MeshText((("x", 2),), (1, 0)), ()), ("x",))],
        ),
        ("{{replicated}, {maximal device=0}}", [TileText("replicated"), TileText("maximal", ids=(0,))]),
    ],
)
def test_hlo_sharding_text(text, want):
    assert parse_hlo_sharding(text) == tuple(want)


@pytest.mark.parametrize(
    ("parse", "text", "column"),
    [
        (parse_hlo_sharding, "{devices=[2,2]<=[8]}", 2),
        (parse_hlo_sharding, "{devices=[2,x]<=[8]}", 13),
        (parse_hlo_sharding, "{replicated", 12),
        (parse_hlo_sharding, "{}", 2),
        (parse_hlo_sharding, "{sharded}", 2),
        (parse_hlo_sharding, "{mesh[a=2,a=2], [{a}]}", 11),
        (parse_hlo_sharding, "{mesh[a=2], device_ids=([2]T(1)), [{a}]}", 25),
        (parse_hlo_sharding, "{mesh[a=2], {a}}", 13),
        (parse_sharding, '#sdy.sharding<@mesh, [{"a"]>', 27),
        (parse_sharding, "#sdy.sharding<@mesh, [], what={}>", 26),
    ],
)
def test_malformed_annotations_name_the_column(parse, text, column):
    with pytest.raises(ParseError) as error:
        parse(text)
    assert error.value.column == column
    assert text in str(error.value)


def test_orders_of_devices():
    assert decompose(np.arange(8).reshape(2, 4)) == [((4, 2),), ((1, 4),)]
    assert decompose(np.arange(8).reshape(4, 2).T) == [((1, 2),), ((2, 4),)]
    # Devices 0 2 1 3 4 6 5 7 on one dim: three digits, of strides 4, 1 and 2.
    assert decompose(np.array([0, 2, 1, 3, 4, 6, 5, 7])) == [((4, 2), (1, 2), (2, 2))]
    assert decompose(np.array([0, 1, 3, 2])) is None
    assert decompose(np.array([1, 0])) is None
    assert decompose(np.arange(6).reshape(2, 3)) == [((3, 2),), ((1, 3),)]


def test_axes_of_digits():
    assert axes_of([(2, 4)], MESH) == ("a",)
    assert axes_of([(1, 8)], MESH) == ("a", "b")
    assert axes_of([(1, 2), (2, 4)], MESH) == ("b", "a")
    assert axes_of([(4, 2)], MESH) == ("a:(1)2",)
    assert axes_of([(2, 2)], MESH) == ("a:(2)2",)
    assert axes_of([(1, 4)], MESH) == ("a:(2)2", "b")
    assert axes_of([(1, 2)], Mesh([("x", 2), ("y", 3)])) is None
    assert axes_of([], MESH) == ()


def test_replicas_have_no_order():
    (tiles,) = parse_hlo_sharding("{devices=[2,1,4]3,1,0,2,7,6,5,4 last_tile_dim_replicate}")
    atoms = tile_atoms(tiles)
    assert atoms is not None
    assert atoms[:2] == [((4, 2),), ()]


def test_a_common_mesh_is_as_coarse_as_it_can_be():
    assert common_mesh(8, [(1, 8)]).axes == (("d0", 8),)
    assert common_mesh(8, [(4, 2), (1, 8)]).axes == (("d0", 2), ("d1", 4))
    assert common_mesh(6, [(3, 2), (2, 3)]).axes == (("d0", 2), ("d1", 3))  # the second contradicts the first
    assert common_mesh(1, []).axes == (("d0", 1),)


def test_a_mesh_with_device_ids_is_a_mesh_in_another_order():
    ids = [0, 4, 1, 5, 2, 6, 3, 7]
    assert ordered_mesh([("a", 4), ("b", 2)], ids) == Mesh([("b", 2), ("a", 4)])
    assert ordered_mesh([("a", 4)], [0, 1, 3, 2]) is None


def resolver(mesh=MESH, **meshes):
    return ShardingResolver(mesh, {"mesh": MeshText((("a", 4), ("b", 2))), **meshes})


def shardy(text, type=MATRIX, **options):
    return resolver(**options).shardy(f"#sdy.sharding<{text}>", [type], "here")[0]


def hlo(text, type=MATRIX, mesh=MESH):
    return resolver(mesh).hlo(text, [type], "here")[0]


def test_shardy_layouts():
    assert shardy('@mesh, [{"a", "b"}, {}]').layout is Layout((("a", "b"), ()))
    assert shardy('@mesh, [{"a":(1)2}, {"a":(2)2}]').layout is Layout((("a:(1)2",), ("a:(2)2",)))
    assert shardy('@mesh, [{"a":(1)2, "a":(2)2}, {}]').layout is Layout((("a",), ()))
    assert shardy('@mesh, [{"a"}, {}], unreduced={"b"}').layout is Layout((("a",), ()), (("b", "sum"),))
    assert shardy('@mesh, [{"a", ?}, {?}]').open == (0, 1)
    assert not shardy('@mesh, [{"a", ?}, {?}]').fully_open
    assert shardy("@mesh, [{?}, {?}]").fully_open
    assert not shardy("@mesh, [{}, {?}]").fully_open
    assert shardy("@one, []", one=MeshText((), (3,))).layout is Layout.replicated(2)


def test_a_mesh_of_other_axes_is_translated():
    other = MeshText((("x", 8),))
    assert shardy('@other, [{"x"}, {}]', other=other).layout is Layout((("a", "b"), ()))
    assert shardy('mesh<["x"=2, "y"=4]>, [{"x"}, {"y"}]').layout is Layout((("a:(1)2",), ("a:(2)2", "b")))
    assert shardy('@other, [{"x":(4)2}, {}]', other=other).layout is Layout((("b",), ()))
    turned = MeshText((("a", 4), ("b", 2)), (0, 4, 1, 5, 2, 6, 3, 7))
    assert shardy('@turned, [{"b"}, {"a"}]', turned=turned).layout is Layout((("a:(1)2",), ("a:(2)2", "b")))


def test_axes_of_size_one_shard_nothing():
    mesh = Mesh([("a", 4), ("one", 1)])
    found = ShardingResolver(mesh, {"m": MeshText((("a", 4), ("one", 1)))})
    text = '#sdy.sharding<@m, [{"a", "one"}, {"one"}]>'
    assert found.shardy(text, [MATRIX], "here")[0].layout is Layout((("a",), ()))


def test_hlo_layouts():
    assert hlo("{replicated}").layout is Layout.replicated(2)
    assert hlo("{maximal device=0}").layout is Layout.replicated(2)
    assert hlo("{devices=[8,1]<=[8]}").layout is Layout((("a", "b"), ()))
    assert hlo("{devices=[2,4]<=[4,2]T(1,0)}").layout is Layout((("b",), ("a",)))
    assert hlo("{devices=[2,1,4]<=[8] last_tile_dim_replicate}").layout is Layout((("a:(1)2",), ()))
    assert hlo("{devices=[1,2,4]0,2,4,6,1,3,5,7 last_tile_dim_replicate}").layout is Layout(((), ("b",)))
    found = hlo("{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dims={unreduced}}")
    assert found.layout is Layout(((), ("b",)), (("a", "sum"),))
    assert hlo("{devices=[1,1,4,2]<=[8] last_tile_dims={manual, replicated}}").manual == ("a",)
    assert hlo("{manual}").manual == ("a", "b")
    assert hlo("{unknown}").layout is None
    assert hlo("{mesh['a'=4,'b'=2], [{'b'}, {'a'}]}").layout is Layout((("b",), ("a",)))
    assert hlo("{mesh[x=8], [{x}]}").layout is Layout((("a", "b"), ()))
    assert hlo("{mesh[a=4,b=2], [{?}, {?}]}").fully_open
    assert hlo("{mesh[a=4,b=2], replicated}").layout is Layout.replicated(2)
    assert hlo("{mesh[a=4,b=2], manual}").manual == ("a", "b")
    found = hlo("{mesh[a=4,b=2], [{b}], manual={a}}")
    assert (found.layout, found.manual) == (Layout((("b",), ())), ("a",))


def test_an_irregular_order_of_devices_is_replicated_with_a_note():
    found = resolver(Mesh([("a", 4)]))
    assert found.hlo("{devices=[4,1]0,1,3,2}", [MATRIX], "here")[0].layout is Layout.replicated(2)
    (note,) = found.notes
    assert "0,1,3,2" in note


def test_a_mesh_of_another_number_of_devices_says_nothing_and_is_reported():
    found = resolver()
    (got,) = found.shardy('#sdy.sharding<mesh<["x"=3]>, [{"x"}, {}]>', [MATRIX], "here")
    assert got.layout is Layout.replicated(2)
    (note,) = found.notes
    assert "here: mesh {x=3}" in note


def test_misfits_are_errors():
    with pytest.raises(LayoutError, match=r"here.*'z' does not exist; the mesh has a, b"):
        shardy('@mesh, [{"z"}, {}]')
    with pytest.raises(LayoutError, match="twice"):
        shardy('@mesh, [{"a"}, {"a"}]')
    with pytest.raises(LayoutError, match="1 dims for f32"):
        shardy('@mesh, [{"a"}]')
    with pytest.raises(MeshError, match="no mesh @nope"):
        shardy('@nope, [{"a"}, {}]')
    with pytest.raises(MeshError, match="for 4 devices"):
        hlo("{devices=[4,1]<=[4]}")
    with pytest.raises(LayoutError, match="3 dims"):
        hlo("{devices=[8,1,1]<=[8]}")
    with pytest.raises(LayoutError, match="2 shardings for 1 values"):
        hlo("{{replicated}, {replicated}}")


def test_the_mesh_of_a_program():
    shardy_mesh = MeshText((("a", 4), ("b", 2)))
    assert find_mesh([MeshText((), (0,)), shardy_mesh], [], 1) == MESH
    assert find_mesh([], ["{devices=[4,1,2]<=[8] last_tile_dim_replicate}"], 1).axes == (("d0", 4), ("d1", 2))
    assert find_mesh([], ["{replicated}"], 8).axes == (("d0", 8),)
    assert find_mesh([MeshText((("my axis", 2), ("0", 4)))], [], 1).axis_names == ("my_axis", "_0")
    with pytest.raises(MeshError, match="4 and 8 devices"):
        find_mesh([], ["{devices=[4]<=[4]}", "{devices=[8]<=[8]}"], 1)

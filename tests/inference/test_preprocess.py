"""Pre-processing: what reaches the network, and the way back to the picture."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, get_args

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from PIL import Image

from edge_agent.core.errors import ModelError, SampleError
from edge_agent.core.types import TensorSpec
from edge_agent.inference.preprocess.inputs import fixed_shapes
from edge_agent.inference.preprocess.placement import Placement
from edge_agent.inference.preprocess.preprocessor import Preprocessor, build_preprocessor
from edge_agent.models.manifest import InputSpec, parse

Picture = NDArray[np.uint8]
Resize = Literal["stretch", "letterbox", "crop"]


def picture(width: int, height: int, seed: int = 0) -> Picture:
    """Make a picture (height, width, 3) of noise."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def picture_preprocessor(dtype: str, shape: tuple[int | None, ...], **spec: Any) -> Preprocessor:
    """Preprocessor for a network with one picture input called images."""
    return build_preprocessor(InputSpec(**spec), (TensorSpec("images", shape, dtype),), "picture")


def signal_preprocessor(dtype: str, shape: tuple[int | None, ...], **spec: Any) -> Preprocessor:
    """Preprocessor for a network with one signal input called window."""
    return build_preprocessor(InputSpec(**spec), (TensorSpec("window", shape, dtype),), "signal")


def placed(made: Preprocessor, data: Picture) -> Placement:
    """Prepare a picture and tell where it lies."""
    placement = made(data)[1]
    assert placement is not None
    return placement


def reference(
    data: Picture, dtype: str, *, mean: list[float], scale: list[float], color: str, layout: str
) -> NDArray[Any]:
    """Do pixel by pixel what the manifest promises, for a picture that needs no resize."""
    height, width = data.shape[:2]
    out = np.zeros((3, height, width) if layout == "nchw" else (height, width, 3), dtype)
    for y in range(height):
        for x in range(width):
            for channel in range(3):
                pixel = float(data[y, x, 2 - channel if color == "rgb" else channel])
                value: float = (pixel - mean[channel]) / scale[channel]
                if np.dtype(dtype).kind in "iu":
                    limits = np.iinfo(dtype)
                    value = min(max(round(value), limits.min), limits.max)
                out[(channel, y, x) if layout == "nchw" else (y, x, channel)] = value
    return out[None]


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("color", ["rgb", "bgr"])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "float16", "float32"])
@pytest.mark.parametrize(
    ("mean", "scale"),
    [
        ([0.0, 0.0, 0.0], [1.0, 1.0, 1.0]),
        ([127.0, 128.0, 100.5], [128.0, 1.0, 0.5]),
        ([123.675, 116.28, 103.53], [58.395, 57.12, 57.375]),
    ],
)
def test_tensor_is_the_reference(
    dtype: str, color: str, layout: str, mean: list[float], scale: list[float]
) -> None:
    """Every type, color order and layout holds exactly (pixel - mean) / scale, as promised."""
    data = picture(7, 5)
    shape = (1, 3, 5, 7) if layout == "nchw" else (1, 5, 7, 3)
    made = picture_preprocessor(
        dtype, shape, color=color, layout=layout, mean=tuple(mean), scale=tuple(scale)
    )
    tensor = made(data)[0]["images"]
    assert tensor.dtype == np.dtype(dtype)
    assert tensor.flags.c_contiguous
    assert_array_equal(
        tensor, reference(data, dtype, mean=mean, scale=scale, color=color, layout=layout)
    )


@pytest.mark.parametrize("shape", [(1, 1, 6, 9), (1, 6, 9), (1, 6, 9, 1), (6, 9, 1)])
def test_gray_fits_every_layout_of_one_channel(shape: tuple[int, ...]) -> None:
    """A gray network gets the luma of ITU-R BT.601, with or without a batch axis."""
    data = picture(9, 6)
    layout = "nhwc" if shape[-1] == 1 else "nchw"
    made = picture_preprocessor("float32", shape, color="gray", layout=layout, mean=10.0, scale=2.0)
    tensor = made(data)[0]["images"]
    luma = data @ np.array([0.114, 0.587, 0.299])
    assert tensor.shape == shape
    assert_allclose(tensor.reshape(6, 9), (luma - 10) / 2, atol=0.51)


def test_a_network_without_batch_axis_gets_none() -> None:
    """Three dimensions in the network are three dimensions in the tensor."""
    data = picture(7, 5)
    tensor = picture_preprocessor("uint8", (3, 5, 7), color="bgr")(data)[0]["images"]
    assert_array_equal(tensor, data.transpose(2, 0, 1))


def bilinear(data: Picture, width: int, height: int) -> NDArray[np.float64]:
    """Resize by sampling between pixel centers, one output pixel at a time."""
    rows, columns = data.shape[:2]
    out = np.zeros((height, width, 3))
    for y in range(height):
        for x in range(width):
            sy = min(max((y + 0.5) * rows / height - 0.5, 0), rows - 1)
            sx = min(max((x + 0.5) * columns / width - 0.5, 0), columns - 1)
            y0, x0 = int(sy), int(sx)
            y1, x1 = min(y0 + 1, rows - 1), min(x0 + 1, columns - 1)
            top = data[y0, x0] * (1 - sx + x0) + data[y0, x1] * (sx - x0)
            bottom = data[y1, x0] * (1 - sx + x0) + data[y1, x1] * (sx - x0)
            out[y, x] = top * (1 - sy + y0) + bottom * (sy - y0)
    return out


def test_stretch_is_bilinear_to_the_corners() -> None:
    """Stretch fills the whole input, bilinearly, within OpenCV's fixed-point rounding."""
    data = picture(40, 30)
    tensor = picture_preprocessor("uint8", (1, 12, 16, 3), color="bgr", layout="nhwc")(data)[0][
        "images"
    ]
    assert_allclose(tensor[0], bilinear(data, 16, 12), atol=1.0)


@pytest.mark.parametrize(("anchor", "left"), [("center", 4), ("top-left", 0)])
def test_letterbox_keeps_the_aspect_and_pads(anchor: str, left: int) -> None:
    """A 20x40 picture in a 16x16 input is 8x16, at its anchor, between columns of the pad value."""
    data = picture(20, 40)
    made = picture_preprocessor(
        "uint8",
        (1, 16, 16, 3),
        color="bgr",
        layout="nhwc",
        resize="letterbox",
        anchor=anchor,
        pad=77,
    )
    tensor, placement = made(data)
    canvas = np.full((16, 16, 3), 77.0)
    canvas[:, left : left + 8] = bilinear(data, 8, 16)
    assert_allclose(tensor["images"][0], canvas, atol=1.0)
    assert placement == Placement(16, 16, 0.4, 0.4, left, 0, 20, 40)


@pytest.mark.parametrize(("anchor", "rows", "top"), [("center", 313, 51), ("top-left", 312, 0)])
def test_letterbox_measures_the_size_it_made(anchor: str, rows: int, top: int) -> None:
    """312.54 rows become 312 as in YOLOX, or 313 as in Ultralytics; the placement says which."""
    made = picture_preprocessor("uint8", (1, 3, 416, 416), resize="letterbox", anchor=anchor)
    placement = placed(made, picture(768, 577))
    assert (placement.scale_x, placement.scale_y) == (416 / 768, rows / 577)
    assert (placement.offset_x, placement.offset_y) == (0, top)


@pytest.mark.parametrize(
    ("rounding", "anchor", "rows"),
    [
        ("half-even", "center", 194),
        ("half-up", "center", 195),
        ("down", "center", 194),
        ("up", "center", 195),
        ("half-even", "top-left", 194),
        (None, "center", 194),
        (None, "top-left", 194),
    ],
)
def test_letterbox_rounds_as_its_family(rounding: Any, anchor: Any, rows: int) -> None:
    """Of 640x389 at 320 wide there are 194.5 rows: Ultralytics and Model API have 194."""
    made = picture_preprocessor(
        "uint8", (1, 3, 320, 320), resize="letterbox", anchor=anchor, rounding=rounding
    )
    assert placed(made, picture(640, 389)).scale_y == rows / 389


@pytest.mark.parametrize(
    ("anchor", "decoder", "rows"),
    [("center", "yolov8", 196), ("top-left", "yolox", 195), ("top-left", "yunet", 196)],
)
def test_a_family_rounds_as_its_own_code(anchor: Any, decoder: str, rows: int) -> None:
    """195.5 rows: YOLOX cuts, Ultralytics and YuNet take the even one, with nothing said."""
    manifest = parse(
        {
            "name": "m",
            "version": "1",
            "task": "detection",
            "file": "m.onnx",
            "input": {"resize": "letterbox", "anchor": anchor},
            "output": {"decoder": decoder},
        },
        "model.toml",
    )
    tensor = TensorSpec("images", (1, 3, 320, 320), "uint8")
    made = build_preprocessor(manifest.input, (tensor,), "picture")
    assert placed(made, picture(640, 391)).scale_y == rows / 391


def test_letterbox_fills_the_longer_side() -> None:
    """Floating point never costs the last column, where the family's own code has it."""
    made = picture_preprocessor("uint8", (1, 3, 83, 83), resize="letterbox")
    squares = {side: np.zeros((side, side, 3), np.uint8) for side in range(1, 200)}
    scales = {side: placed(made, square).scale_x for side, square in squares.items()}
    assert scales == {side: 83 / side for side in squares}


def test_crop_takes_the_middle() -> None:
    """A ratio of 0.5 of a 40x20 picture is its middle 10x10."""
    data = picture(40, 20)
    made = picture_preprocessor(
        "uint8",
        (1, 10, 10, 3),
        color="bgr",
        layout="nhwc",
        resize="crop",
        crop_ratio=0.5,
    )
    tensor, placement = made(data)
    assert_array_equal(tensor["images"][0], data[5:15, 15:25])
    assert placement == Placement(10, 10, 1, 1, -15, -5, 40, 20)


def test_crop_has_the_shape_of_the_network() -> None:
    """Of an input twice as wide as high, the cut is too: nothing is distorted."""
    placement = placed(
        picture_preprocessor("uint8", (1, 3, 10, 20), resize="crop"), picture(60, 60)
    )
    assert placement == Placement(20, 10, 1 / 3, 1 / 3, 0, -5, 60, 60)


def test_interpolations_are_opencvs() -> None:
    """Nearest takes a pixel, area the mean of its block, linear and cubic what is in between."""
    data = picture(33, 33)
    made = {
        name: picture_preprocessor(
            "uint8", (1, 11, 11, 3), color="bgr", layout="nhwc", interpolation=name
        )(data)[0]["images"][0].astype(np.float64)
        for name in ("nearest", "area", "linear", "cubic")
    }
    assert_array_equal(made["nearest"], data[::3, ::3])
    assert_allclose(made["area"], data.reshape(11, 3, 11, 3, 3).mean(axis=(1, 3)), atol=1.0)
    assert_allclose(made["linear"], bilinear(data, 11, 11), atol=1.0)
    # Of an odd ratio the cubic's weights fall on one pixel; any other picture tells them apart.
    other = picture(20, 20)
    smooth, sharp = (
        picture_preprocessor("uint8", (1, 3, 15, 15), interpolation=name)(other)[0]["images"]
        for name in ("linear", "cubic")
    )
    assert np.abs(smooth.astype(int) - sharp).max() > 1


FILTERS = {"linear": Image.Resampling.BILINEAR, "cubic": Image.Resampling.BICUBIC}


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize(
    ("source", "into"),
    [((640, 480), (224, 224)), ((389, 640), (64, 48)), ((50, 40), (96, 128)), ((33, 20), (33, 20))],
)
def test_antialias_is_pils(
    source: tuple[int, int], into: tuple[int, int], interpolation: str
) -> None:
    """Smaller or larger, each pixel is PIL's to one level of 255; OpenCV's are not."""
    data = picture(*source)
    shape, how = (1, into[1], into[0], 3), {"color": "bgr", "layout": "nhwc"}
    wanted = np.asarray(Image.fromarray(data).resize(into, FILTERS[interpolation]))
    made = picture_preprocessor("uint8", shape, interpolation=interpolation, antialias=True, **how)
    tensor, placement = made(data)
    assert_allclose(tensor["images"][0].astype(int), wanted, atol=1)
    assert placement == Placement(*into, into[0] / source[0], into[1] / source[1], 0, 0, *source)
    if source[0] > into[0]:
        plain = picture_preprocessor("uint8", shape, interpolation=interpolation, **how)
        assert np.abs(plain(data)[0]["images"][0].astype(int) - wanted).max() > 20


@pytest.mark.parametrize("into", [(224, 160), (80, 100), (190, 250)])
def test_antialias_rounds_as_pil_does(into: tuple[int, int]) -> None:
    """Also between the passes, and what lies in the middle of two levels: of flat areas much."""
    data = picture(97, 203) // 64 * 64
    wanted = np.asarray(Image.fromarray(data).resize(into, Image.Resampling.BILINEAR))
    made = picture_preprocessor(
        "uint8", (1, into[1], into[0], 3), color="bgr", layout="nhwc", antialias=True
    )
    assert (made(data)[0]["images"][0] != wanted).mean() < 0.001


def test_antialias_fills_a_letterbox() -> None:
    """The picture in a letterbox is PIL's too, and the border is left as it is."""
    data = picture(200, 100)
    made = picture_preprocessor(
        "uint8",
        (1, 64, 64, 3),
        color="bgr",
        layout="nhwc",
        resize="letterbox",
        antialias=True,
        pad=9,
    )
    tensor = made(data)[0]["images"][0]
    wanted = np.asarray(Image.fromarray(data).resize((64, 32), Image.Resampling.BILINEAR))
    assert_allclose(tensor[16:48].astype(int), wanted, atol=1)
    assert (tensor[:16] == 9).all()
    assert (tensor[48:] == 9).all()


@pytest.mark.parametrize("source", [(640, 480), (427, 640), (300, 300), (57, 41)])
@pytest.mark.parametrize("ratio", [1.0, 0.875, 224 / 232, 0.9])
def test_an_antialiased_crop_is_torchvisions(source: tuple[int, int], ratio: float) -> None:
    """The shorter side is resized to size / ratio, then the middle is cut, each rounded alike."""
    size = 56
    data = picture(*source)
    short = int(size / ratio + 1e-6)
    scale = short / min(source)
    whole = [short if side == min(source) else int(short * side / min(source)) for side in source]
    left, top = (round((side - size) / 2) for side in whole)
    resized = Image.fromarray(data).resize((whole[0], whole[1]), Image.Resampling.BICUBIC)
    wanted = np.asarray(resized.crop((left, top, left + size, top + size)))
    made = picture_preprocessor(
        "uint8",
        (1, size, size, 3),
        color="bgr",
        layout="nhwc",
        resize="crop",
        crop_ratio=ratio,
        interpolation="cubic",
        antialias=True,
    )
    tensor, placement = made(data)
    assert placement is not None
    assert_allclose(tensor["images"][0].astype(int), wanted, atol=1)
    assert placement.scale_x == pytest.approx(scale, rel=0.03)
    box = np.array([[left / scale, top / scale, source[0] / 2, source[1] / 2]], np.float32)
    assert_allclose(placement.forward(box)[0, :2], (0, 0), atol=0.6)
    assert_allclose(placement.forward(box)[0, 2:], (size / 2, size / 2), atol=0.6)


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("source", [(100, 60), (333, 500), (64, 64)])
def test_the_middle_of_a_stretched_picture(source: tuple[int, int], *, antialias: bool) -> None:
    """`Resize((256, 256))` and `CenterCrop(224)`, as PyTorch's tutorials have it."""
    grown = cv2.resize(picture(9, 7), source, interpolation=cv2.INTER_CUBIC)
    image = Image.fromarray(grown).resize((64, 64), Image.Resampling.BILINEAR)
    wanted = np.asarray(image.crop((4, 4, 60, 60))).astype(int)
    made = picture_preprocessor(
        "uint8",
        (1, 56, 56, 3),
        color="bgr",
        layout="nhwc",
        crop_ratio=0.875,
        antialias=antialias,
    )
    tensor, placement = made(grown)
    assert placement is not None
    difference = np.abs(tensor["images"][0].astype(int) - wanted)
    assert difference.max() <= 1 if antialias else difference.mean() < 4
    middle = np.array([[0, 0, source[0] / 2, source[1] / 2]], np.float32)
    assert_allclose(placement.forward(middle), [[-4, -4, 28, 28]], atol=0.6)


def test_rounding_down_is_the_familys() -> None:
    """720 pixels by 416 / 720 are 415.99…, and YOLOX's `preproc` takes 415 of them."""
    made = picture_preprocessor(
        "uint8", (1, 416, 416, 3), layout="nhwc", resize="letterbox", anchor="top-left"
    )
    placement = placed(made, np.zeros((640, 720, 3), np.uint8))
    assert placement.scale_x == int(720 * (416 / 720)) / 720 == 415 / 720


@pytest.mark.parametrize("interpolation", ["area", "nearest"])
def test_antialias_of_another_interpolation_is_refused(interpolation: str) -> None:
    """There is no such thing, and it would be left out in silence."""
    data = {
        "name": "m",
        "version": "1",
        "task": "raw",
        "file": "m.onnx",
        "input": {"antialias": True, "interpolation": interpolation},
    }
    with pytest.raises(
        ModelError, match=r"input\.antialias: goes with interpolation cubic or linear"
    ):
        parse(data, "model.toml")


@settings(max_examples=60, deadline=None)
@given(
    antialias=st.booleans(),
    resize=st.sampled_from(["stretch", "letterbox", "crop"]),
    anchor=st.sampled_from(["center", "top-left"]),
    ratio=st.floats(0.05, 1),
    source=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    into=st.tuples(st.integers(1, 200), st.integers(1, 200)),
    corners=st.tuples(*[st.floats(0, 1)] * 4),
)
def test_boxes_come_back(
    *,
    antialias: bool,
    resize: Resize,
    anchor: str,
    ratio: float,
    source: tuple[int, int],
    into: tuple[int, int],
    corners: tuple[float, float, float, float],
) -> None:
    """A box carried into the network's input and back is itself, for every resize."""
    made = picture_preprocessor(
        "uint8",
        (1, 3, into[1], into[0]),
        resize=resize,
        antialias=antialias,
        anchor=anchor,
        crop_ratio=ratio,
    )
    placement = placed(made, np.zeros((source[1], source[0], 3), np.uint8))
    boxes = (np.array([corners]) * [*source, *source]).astype(np.float32)
    tolerance = 1e-4 * max(source)  # of float32 in between
    assert_allclose(placement.back(placement.forward(boxes)), boxes, atol=tolerance)
    points = boxes.reshape(1, 2, 2)
    moved = placement.forward(boxes).reshape(1, 2, 2)
    assert_allclose(placement.back_points(moved), points, atol=tolerance)


def test_boxes_are_clipped_to_the_frame() -> None:
    """What a network says outside the picture, in the letterbox's border, ends at the edge."""
    placement = Placement(100, 100, 0.5, 0.5, 0, 25, 200, 100)
    boxes = np.array([[-10, 0, 50, 200]], np.float32)
    assert_array_equal(placement.back(boxes), [[0, 0, 100, 100]])


def test_one_plan_serves_several_threads() -> None:
    """Two threads that share a preprocessor get what each would have got alone."""
    made = picture_preprocessor("float32", (1, 3, 64, 64), mean=(1.0, 2.0, 3.0), scale=5.0)
    pictures = [picture(90, 70, seed) for seed in range(40)]
    alone = [made(data)[0]["images"] for data in pictures]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda data: made(data)[0]["images"], pictures))
    assert_array_equal(np.stack(together), np.stack(alone))


@pytest.mark.parametrize(
    "data",
    [
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((4, 4, 3), np.float32),
        np.zeros((0, 4, 3), np.uint8),
    ],
)
def test_what_is_no_picture_is_a_bad_sample(data: NDArray[Any]) -> None:
    """A frame of another kind is dropped with expected and found, not fed to native code."""
    made = picture_preprocessor("uint8", (1, 3, 8, 8))
    with pytest.raises(SampleError, match=r"expected uint8 \[height, width, 3\], found"):
        made(data)


SQUARE = (1, 3, 8, 8)


@pytest.mark.parametrize(
    ("shape", "dtype", "spec", "message"),
    [
        ((1, 8, 8, 3), "uint8", {}, r"expected 3 channels .*, found 8; layout 'nhwc' would fit"),
        ((1, 1, 8, 8), "uint8", {}, r"expected 3 channels .*'nchw'\), found 1$"),
        (SQUARE, "uint8", {"color": "gray"}, r"expected 1 channels .*, found 3$"),
        ((4, 3, 8, 8), "uint8", {}, "expected a batch of 1, found 4"),
        ((1, 3), "uint8", {}, "expected a picture of 3 dimensions, or 4 .*, found 2"),
        (SQUARE, "int64", {}, "expected one of uint8, .*, found int64"),
        (SQUARE, "uint8", {"width": 16}, r"input.width: expected 8 \(input .*\), found 16"),
        (SQUARE, "uint8", {"window": 5}, "describes windows of a signal"),
        (SQUARE, "uint8", {"mean": (1.0, 2.0)}, "input.mean: expected 1 or 3 numbers, found 2"),
        (SQUARE, "uint8", {"scale": 0.0}, "input.scale: must not be 0"),
        (SQUARE, "float16", {"scale": 1e-9}, "beyond what float16 can hold"),
        (SQUARE, "uint8", {"tensor": "x"}, "no input 'x'; its inputs: images uint8"),
        (SQUARE, "uint8", {"fixed": {"y": 1}}, "no input 'y'; its inputs: images uint8"),
        (SQUARE, "uint8", {"fixed": {"images": 1}}, "expected 1 input .*, found 0: none"),
        ((1, 3, None, 8), "uint8", {}, "input.height: missing"),
    ],
)
def test_a_wrong_picture_manifest_is_refused(
    shape: tuple[int | None, ...], dtype: str, spec: dict[str, Any], message: str
) -> None:
    """A manifest that does not fit the network is one line with expected and found."""
    with pytest.raises(ModelError, match=message) as caught:
        picture_preprocessor(dtype, shape, **spec)
    assert "\n" not in str(caught.value)


BOTH = (TensorSpec("images", (1, 3, 8, 8), "uint8"), TensorSpec("size", (1, 2), "int64"))


def test_other_inputs_get_their_constants() -> None:
    """An input of `fixed` gets its value in its own shape and type."""
    made = build_preprocessor(InputSpec(fixed={"size": [[640, 480]]}), BOTH, "picture")
    tensor = made(picture(8, 8))[0]["size"]
    assert tensor.dtype == np.int64
    assert_array_equal(tensor, [[640, 480]])


def test_a_constant_without_dimensions_stays_one() -> None:
    """As the rate of Silero's voice detector: the engines refuse an array of one instead."""
    inputs = (TensorSpec("images", (1, 3, 8, 8), "uint8"), TensorSpec("sr", (), "int64"))
    for rate in (16000, [16000]):
        made = build_preprocessor(InputSpec(fixed={"sr": rate}), inputs, "picture")
        assert made(picture(8, 8))[0]["sr"].shape == ()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {},
            r"input size int64\[1, 2\] needs a constant value; .* \[\[8, 8\]\] \}, the network's",
        ),
        ({"tensor": "images"}, r"input.fixed: input size .* write fixed = \{ size = \[\[8, 8\]\]"),
        ({"tensor": "size"}, r"input.fixed: input images uint8.* needs a constant value$"),
        ({"fixed": {"size": [1, 2, 3]}}, r"size: expected .*\[1, 2\], found an array \[3\]"),
        ({"fixed": {"size": [1.5, 2]}}, "does not fit int64"),
        ({"fixed": {"size": [[1], [2, 3]]}}, "nested lists of equal length"),
        ({"fixed": {"size": "big"}}, "expected numbers, found 'big'"),
    ],
)
def test_wrong_constants_are_refused(spec: dict[str, Any], message: str) -> None:
    """Several inputs need `tensor` or `fixed`, of the right size and type."""
    with pytest.raises(ModelError, match=message):
        build_preprocessor(InputSpec(**spec), BOTH, "picture")


SIZED = {"width": 96, "height": 64}
OPEN = (
    TensorSpec("images", (None, 3, None, None), "float32"),
    TensorSpec("a.b", (None, 2), "int64"),
)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (SIZED, r"write fixed = \{ \"a.b\" = \[\[96, 64\]\] \}"),
        ({}, r"give .* input.width and input.height, and as fixed = .* \[\[width, height\]\]"),
        ({**SIZED, "fixed": {"a.b": [96, 64]}}, r"input a.b .* of 2 dimensions, found one of 1"),
        ({**SIZED, "fixed": {"a.b": 640}}, r"input a.b .* of 2 dimensions, found a single number"),
    ],
)
def test_what_to_write_for_the_size_of_the_picture_is_said(
    spec: dict[str, Any], message: str
) -> None:
    """A second input for the picture's size is recognized, and its value given in TOML's form."""
    with pytest.raises(ModelError, match=message) as caught:
        fixed_shapes(InputSpec(**spec), "picture")(OPEN)
    assert "\n" not in str(caught.value)


def test_inputs_that_could_both_take_the_sample_are_named() -> None:
    """Two inputs of which neither is a size: which one takes the sample has to be said."""
    two = (BOTH[0], TensorSpec("mask", (1, 1, 8, 8), "float32"))
    with pytest.raises(
        ModelError, match=r"input.tensor: expected 1 input .* found 2: images .*, mask"
    ):
        build_preprocessor(InputSpec(), two, "picture")


def shapes(shape: tuple[int | None, ...], kind: Literal["picture", "signal"], **spec: Any) -> Any:
    """Settle the open sizes of one input called x."""
    return fixed_shapes(InputSpec(**spec), kind)((TensorSpec("x", shape, "float32"),)).get("x")


def test_open_sizes_are_settled_by_the_manifest() -> None:
    """The batch becomes 1; height, width and window come from the manifest; the rest stays."""
    assert shapes((1, 3, 8, 8), "picture") is None
    assert shapes((None, 3, 8, 8), "picture") == (1, 3, 8, 8)
    assert shapes((None, None, None, None), "picture", width=6, height=4) == (1, 3, 4, 6)
    nhwc = {"layout": "nhwc", "color": "gray", "width": 6, "height": 4}
    assert shapes((None, None, None, None), "picture", **nhwc) == (1, 4, 6, 1)
    assert shapes((None, 150, 8), "signal", window=150, layout="tc") == (1, 150, 8)
    assert shapes((None, 49, 10, 1), "signal") == (1, 49, 10, 1)
    abc = {"window": 50, "channels": ("a", "b", "c")}
    assert shapes((None, None, None), "signal", **abc) == (1, 3, 50)
    assert shapes((None, None, None), "signal", layout="tc", **abc) == (1, 50, 3)
    assert shapes((None, None), "signal", layout="flat-tc", **abc) == (1, 150)


@pytest.mark.parametrize(
    ("shape", "kind", "spec", "message"),
    [
        ((1, 3, None, None), "picture", {}, "^input.height and input.width: missing"),
        ((1, 3, None, None), "picture", {"height": 4}, "^input.width: missing"),
        ((None, None), "picture", {"height": 4}, "3 or 4 dimensions, found 2"),
        ((None, None, None), "signal", {"window": 5}, "input.window and input.channels: missing"),
        ((None, None, None), "signal", {}, "input.window and input.channels: missing"),
    ],
)
def test_sizes_that_nobody_gives_are_named(
    shape: tuple[int | None, ...],
    kind: Literal["picture", "signal"],
    spec: dict[str, Any],
    message: str,
) -> None:
    """A size that neither network nor manifest knows is an error that names the key."""
    with pytest.raises(ModelError, match=message):
        shapes(shape, kind, **spec)


def test_constants_settle_the_shape_of_their_input() -> None:
    """An open input of `fixed` takes the shape of its value."""
    specs = (TensorSpec("x", (1, 3, 8, 8), "float32"), TensorSpec("s", (None, 2), "int64"))
    settle = fixed_shapes(InputSpec(fixed={"s": [[1, 2]]}), "picture")
    assert settle(specs) == {"s": (1, 2)}


ROWS = np.arange(8, dtype=np.float32).reshape(4, 2)  # 4 readings of 2 channels


@pytest.mark.parametrize(
    ("layout", "shape", "expected"),
    [
        ("ct", (1, 2, 4), [[[0, 2, 4, 6], [1, 3, 5, 7]]]),
        ("ct", (2, 4), [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ("tc", (1, 4, 2), [[[0, 1], [2, 3], [4, 5], [6, 7]]]),
        ("tc", (1, 4, 2, 1), [[[[0], [1]], [[2], [3]], [[4], [5]], [[6], [7]]]]),
        ("flat-ct", (1, 8), [[0, 2, 4, 6, 1, 3, 5, 7]]),
        ("flat-tc", (8,), [0, 1, 2, 3, 4, 5, 6, 7]),
        (None, (None, 2, 4), [[[0, 2, 4, 6], [1, 3, 5, 7]]]),
    ],
)
def test_windows_are_laid_out(
    layout: str | None, shape: tuple[int | None, ...], expected: list[Any]
) -> None:
    """Time and channels lie as the layout says, whatever axes of one the network adds."""
    made = signal_preprocessor("float32", shape, window=4, layout=layout)
    tensors, placement = made(ROWS)
    assert_array_equal(tensors["window"], np.array(expected, np.float32))
    assert tensors["window"].flags.c_contiguous
    assert placement is None
    assert made.size is None


def test_channels_have_their_own_scale() -> None:
    """Mean and scale go with the channel, not with the place in the tensor."""
    made = signal_preprocessor("float32", (1, 2, 4), window=4, mean=(0.0, 1.0), scale=(1.0, 2.0))
    assert_array_equal(made(ROWS)[0]["window"], [[[0, 2, 4, 6], [0, 1, 2, 3]]])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_integers_are_rounded_and_saturated(dtype: str) -> None:
    """Quantized inputs round to the nearest whole number and stop at the type's ends."""
    made = signal_preprocessor(dtype, (1, 5), mean=-83 * 0.5, scale=0.5)
    data = np.array([-1e10, -41.5, 0.3, 0.5, 1e10], np.float32)
    limits = np.iinfo(dtype)
    expected = np.clip([-2e10, 0, 84, 84, 2e10], limits.min, limits.max)
    assert_array_equal(made(data)[0]["window"], [expected])


def test_ready_inputs_scale_along_the_last_axis() -> None:
    """Of a ready input several means and scales go along the network's last axis."""
    made = signal_preprocessor("float32", (None, 2, 2), mean=(0.0, 10.0), scale=(1.0, 10.0))
    ready = np.array([[1, 20], [3, 40]], np.float32)
    assert_array_equal(made(ready)[0]["window"], [[[1, 1], [3, 3]]])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (ROWS[:3], r"expected 4 rows of 2 channels, found \[3, 2\]"),
        (ROWS[:, :1], r"expected 4 rows of 2 channels, found \[4, 1\]"),
        (ROWS + np.float32(np.nan), "not finite"),
        (np.full_like(ROWS, -np.inf), "not finite"),
    ],
)
def test_a_bad_window_is_a_bad_sample(data: NDArray[np.float32], message: str) -> None:
    """A window of the wrong size, or with NaN or infinity in it, is dropped and said."""
    made = signal_preprocessor("float32", (1, 2, 4), window=4)
    with pytest.raises(SampleError, match=message):
        made(data)


def test_a_ready_input_of_another_size_is_a_bad_sample() -> None:
    """Without a window the sample must have as many numbers as the network takes."""
    made = signal_preprocessor("float32", (1, 6))
    with pytest.raises(SampleError, match=r"expected 6 numbers for input .*, found \[4, 2\]"):
        made(ROWS)


@pytest.mark.parametrize(
    ("dtype", "spec"),
    [
        ("float32", {}),
        ("float32", {"mean": 127.0, "scale": 128.0}),
        ("uint8", {"scale": 0.5}),
        ("int8", {"mean": 128.0, "scale": 0.4}),
        ("int16", {}),
    ],
)
def test_a_stream_is_as_exact_where_a_level_is_more_than_a_step(
    dtype: str, spec: dict[str, Any]
) -> None:
    """Only networks of bytes, and of no more than one step for a level, may be a level off."""
    made = picture_preprocessor(dtype, (1, 3, 48, 64), **spec)
    data = picture(200, 150)
    assert_array_equal(made(data, stream=True)[0]["images"], made(data)[0]["images"])


@pytest.mark.parametrize("resize", get_args(Resize))
@pytest.mark.parametrize(
    ("dtype", "spec"),
    [("uint8", {}), ("int8", {"mean": 128.0}), ("uint8", {"scale": 3.0, "mean": (9, 1, 5)})],
)
def test_a_stream_is_exact_to_one_step(dtype: str, spec: dict[str, Any], resize: Resize) -> None:
    """However it is brought to the network's size."""
    made = picture_preprocessor(dtype, (1, 3, 48, 64), resize=resize, **spec)
    data = picture(200, 150)
    stream, still = (made(data, stream=stream)[0]["images"] for stream in (True, False))
    apart = np.abs(stream.astype(int) - still)
    assert apart.max() == (1 if cv2.ipp.useIPP() else 0)


def test_half_floats_do_not_overflow_silently() -> None:
    """A value beyond float16 is an error, not an infinity in the network."""
    with pytest.raises(SampleError, match="beyond what float16 can hold"):
        signal_preprocessor("float16", (1, 1))(np.array([1e6], np.float32))


@pytest.mark.parametrize(
    ("shape", "dtype", "spec", "message"),
    [
        ((1, 4, 2), "float32", {"window": 4}, r"'ct' makes \[2, 4\] .*; layout 'tc' would fit"),
        ((1, 8), "float32", {"window": 4, "layout": "tc"}, "'flat-ct' or 'flat-tc' would fit"),
        ((1, 9), "float32", {"window": 4}, "4 rows of whole channels do not fit .*expected 9"),
        (
            (1, 2, 4),
            "float32",
            {"window": 4, "channels": ("a", "b", "c")},
            "expected 8 numbers, found 12",
        ),
        ((1, 8), "bool", {}, "expected one of uint8, .*, found bool"),
        ((1, None), "float32", {}, "leaves sizes open"),
        (
            (1, 8),
            "float32",
            {"transform": "logmel"},
            "input.rate_hz: is missing; transform 'logmel' needs",
        ),
        ((1, 4), "float32", {"mean": (1.0, 2.0)}, "input.mean: expected 1 or 4 numbers, found 2"),
        (
            (1, 3, 240, 320),
            "float32",
            {"mean": (127, 127, 127)},
            "the source gives rows of numbers, but the manifest describes pictures .mean of 3 col",
        ),
    ],
)
def test_a_wrong_signal_manifest_is_refused(
    shape: tuple[int | None, ...], dtype: str, spec: dict[str, Any], message: str
) -> None:
    """A window that does not fit the network is one line with expected and found."""
    with pytest.raises(ModelError, match=message) as caught:
        signal_preprocessor(dtype, shape, **spec)
    assert "\n" not in str(caught.value)

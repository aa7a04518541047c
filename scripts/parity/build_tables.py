"""Parity cases of tables: scikit-learn, LightGBM and XGBoost, beside their own `predict_proba`.

    python build_tables.py FOLDER

Runs in the exporters' environment. Forests, lines and machines are trained on random rows, from one
seed, and exported as their converters do by default: with a ZipMap, with texts for classes, with an
input for each column.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from lightgbm import LGBMClassifier
from onnxmltools import convert_lightgbm, convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType as ToolsFloats
from skl2onnx import convert_sklearn
from skl2onnx.common.data_types import FloatTensorType, Int64TensorType
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from workshop import Workshop
from xgboost import XGBClassifier

COLUMNS = ["temperature", "current", "speed", "starts"]
NAMES = np.array(["broken", "ok", "worn"])
ROWS = 40


def main() -> None:
    """Build all."""
    shop = Workshop(Path(sys.argv[1]))
    random = np.random.default_rng(23)
    rows = random.normal(0, 2, (400, len(COLUMNS))).round(3).astype(np.float32)
    rows[:, 3] = np.rint(rows[:, 3] * 5)
    kinds = (rows[:, 0] + rows[:, 1] * rows[:, 2] + random.normal(0, 0.5, 400) > 0).astype(int)
    kinds += rows[:, 3] > 8
    whole = [("X", FloatTensorType([None, len(COLUMNS)]))]
    texts = NAMES[kinds]
    exporter = f"skl2onnx {version('skl2onnx')}"
    for name, made, classes, options in (
        ("line", LogisticRegression(max_iter=500), kinds, {}),
        ("forest", RandomForestClassifier(30, random_state=0), texts, {}),
        ("scaled-machine", make_pipeline(StandardScaler(), SVC(probability=True)), texts, {}),
        ("forest-no-zipmap", RandomForestClassifier(20, random_state=1), texts, {"zipmap": False}),
        ("twelve", RandomForestClassifier(20, random_state=2), 100 + 7 * (kinds * 4), {}),
    ):
        made.fit(rows, classes)
        network = convert_sklearn(made, initial_types=whole, options={id(made): options})
        scores = "probabilities" if options else "output_probability"
        build(shop, f"sklearn-{name}", exporter, network, made, rows, scores)
    columns(shop, exporter, rows, texts)
    whole = [("X", ToolsFloats([None, len(COLUMNS)]))]
    boosted = LGBMClassifier(n_estimators=25, random_state=0, verbose=-1).fit(rows, texts)
    network = convert_lightgbm(boosted, initial_types=whole)
    build(shop, "lightgbm", f"LightGBM {version('lightgbm')}", network, boosted, rows)
    boosted = LGBMClassifier(n_estimators=25, random_state=0, verbose=-1).fit(
        rows, (kinds > 0).astype(int)
    )
    network = convert_lightgbm(boosted, initial_types=whole)
    build(shop, "lightgbm-two", f"LightGBM {version('lightgbm')}", network, boosted, rows)
    trees = XGBClassifier(n_estimators=25, random_state=0).fit(rows, kinds)
    network = convert_xgboost(trees, initial_types=whole)
    build(shop, "xgboost", f"XGBoost {version('xgboost')}", network, trees, rows)


def columns(shop: Workshop, exporter: str, rows: Any, texts: Any) -> None:
    """Build a pipeline whose network has an input for each column, as of a DataFrame."""
    parts = [("scaled", StandardScaler(), [0, 1, 2]), ("as it is", "passthrough", [3])]
    made = make_pipeline(ColumnTransformer(parts), LogisticRegression(max_iter=500))
    made.fit(rows, texts)
    types: list[Any] = [(name, FloatTensorType([None, 1])) for name in COLUMNS[:3]]
    types.append((COLUMNS[3], Int64TensorType([None, 1])))
    network = convert_sklearn(made, initial_types=types)
    build(shop, "sklearn-columns", exporter, network, made, rows, "output_probability")


def build(
    shop: Workshop,
    name: str,
    exporter: str,
    network: Any,
    made: Any,
    rows: Any,
    scores: str = "probabilities",
) -> None:
    """Write a case of the first rows."""
    folder = shop.scrap / name
    folder.mkdir(exist_ok=True)
    onnx.save(network, folder / "model.onnx")
    lines = [",".join(COLUMNS), *(",".join(f"{one:g}" for one in row) for row in rows[:ROWS])]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    labels = [str(label) for label in made.classes_]
    (folder / "model.toml").write_text(f"""\
name = "{name}"
version = "1"
task = "classification"
file = "model.onnx"
[input]
channels = {COLUMNS}
window = 1
layout = "flat-tc"
[output]
decoder = "softmax"
labels = {labels}
top_k = 3
names = {{ scores = "{scores}" }}
""")
    expected = {
        str(place): sorted(
            (
                {"label": label, "score": float(score)}
                for label, score in zip(labels, chances, strict=True)
            ),
            key=lambda one: -one["score"],
        )
        for place, chances in enumerate(made.predict_proba(rows[:ROWS]))
    }
    facts = {"family": name, "exporter": exporter, "precision": "FP32", "note": ""}
    facts |= {"engines": ["onnxruntime"], "rows": f"{name}/rows.csv"}
    shop.add(name, [folder], name, expected, threshold=0.0, iou=None, most=3, **facts)


if __name__ == "__main__":
    main()

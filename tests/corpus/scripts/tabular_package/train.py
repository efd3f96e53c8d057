# backends: jax tensorflow torch
# agrees: rounding
# arguments: --epochs 3 --units 24 --out results
"""A script with arguments, a config beside it and a module for the data: `python train.py --epochs 3`."""

import argparse
import json
import logging
from pathlib import Path

import keras
from data import load_split
from model import build_model

HERE = Path(__file__).resolve().parent
logging.basicConfig(level=logging.INFO)
log = logging.getLogger("train")


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--units", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--dry-run", action="store_true")
    return parser.parse_args()


def main():
    args = parse_args()
    config = json.loads((HERE / "config.json").read_text())
    keras.utils.set_random_seed(config["seed"])
    args.out.mkdir(parents=True, exist_ok=True)
    (x_train, y_train), test = load_split(config["seed"])
    model = build_model(x_train.shape[1], args.units, config["learning_rate"])
    if args.dry_run:
        return
    log.info("training %d epochs", args.epochs)
    history = model.fit(
        x_train,
        y_train,
        epochs=args.epochs,
        batch_size=config["batch_size"],
        shuffle=False,
        validation_data=test,
        verbose=0,
    )
    scores = model.evaluate(*test, verbose=0, return_dict=True)
    (args.out / "history.json").write_text(json.dumps(history.history, indent=1))
    (args.out / "scores.json").write_text(json.dumps(scores, indent=1))
    model.save(args.out / "model.keras")
    print("scores:", json.dumps(scores))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Draws docs/pictures/report.png and report_cpu.png.

The first is GoogLeNet, planned for a GPU with the measured profile under docs/results/. The second
is MobileNetV2, tuned on this machine's CPU. Needs Chromium (on Debian: apt-get install chromium).
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODEL = "python.models.googlenet:googlenet"


def run(words: str, folder: pathlib.Path) -> None:
    """Runs a command of tf-interop in a folder."""
    subprocess.run(
        [sys.executable, "-m", "tf_interop", *words.split()],
        check=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def take_picture(page: pathlib.Path, name: str, height: int) -> None:
    """Takes a picture of a page's first view."""
    picture = ROOT / "docs" / "pictures" / name
    options = [f"--window-size=1280,{height}", "--hide-scrollbars", f"--screenshot={picture}"]
    subprocess.run(["chromium", "--headless", "--no-sandbox", *options, page.as_uri()], check=True)


def main(folder: pathlib.Path) -> None:
    """Makes plans and reports, and takes the pictures."""
    page = folder / "report.html"
    shutil.copy(ROOT / "docs/results/gpu/profile.json", folder)
    run(f"plan {MODEL} --profile profile.json --for 9.0 -o plan.json", folder)
    run(f"report plan.json --model {MODEL} --for 9.0 --title GoogLeNet -o report.html", folder)
    take_picture(page, "report.png", height=1660)
    run("tune MobileNetV2 --fresh -o tuned.json", folder)
    run("report tuned.json --title MobileNetV2 -o report.html", folder)
    take_picture(page, "report_cpu.png", height=720)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(pathlib.Path(name))

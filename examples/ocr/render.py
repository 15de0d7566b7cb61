"""Renders text lines as a scanner or a camera would see them, as JPEG.

Called by autotune, as pipeline.yaml says; each function is given how many lines are wanted and the
study's seed, and returns requests of the pipeline. The same seed gives the same lines.

To look at them: ``python examples/ocr/render.py FOLDER`` writes the evaluation's images there,
named by number and text, and their texts to expected.txt beside this file.
"""

import io
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

EXPECTED = Path(__file__).with_name("expected.txt")
EVALUATED = 200
"""Lines of the evaluation: these and their texts stay, whatever a study's seed is."""
WORKLOAD, CALIBRATION, EVALUATION = range(3)
"""Streams of random numbers: what is evaluated on is neither calibrated on nor the load."""

VOCABULARY = """
about account address after amount answer April August average balance before between bottle bridge
budget button camera cancel center change charge cheese choice client coffee column copper corner
credit custom damage dealer debit degree deposit detail dinner doctor dollar double early effect
eight energy engine entry expiry factor family figure filter final finger flight flower forest
frozen garden ginger global green ground guest handle harbor health height honey hotel house
import income index insure invoice island item January jacket journal July June kitchen label
large ledger legal lemon letter level liquid litre lunch March margin market master meadow meter
middle minute mobile model Monday month morning motor nature needle number object October offer
office orange order outlet owner packet paper parcel past pepper period phone piece plate please
police port post pound power price print profit public quality quarter query quick radio rate
receipt record refund region repair report return river round sample Sunday sauce school season
second serial series share shift signal silver simple single site small sorry spring square stamp
station steel stock street summer supply table target tax tea terms thank third ticket timber title
today tomato total touch tower track trade travel union unit update urgent value vendor village
visit volume wagon water weekly weight west window winter wood yellow yield zero zone
"""
WORDS = VOCABULARY.split()


def workload(count, seed):
    return [{"IMAGE": jpeg} for jpeg, _ in lines(count, seed, WORKLOAD)]


def calibration(count, seed):
    return [{"IMAGE": jpeg} for jpeg, _ in lines(count, seed, CALIBRATION)]


def evaluation(count, seed):  # noqa: ARG001 - expected.txt holds the texts of these
    return [{"IMAGE": jpeg} for jpeg, _ in lines(count, 0, EVALUATION)]


def lines(count, seed, stream):
    """``count`` pairs of an image, as JPEG, and its text."""
    rng = np.random.default_rng([seed, stream])
    return [render(text(rng), rng) for _ in range(count)]


def text(rng):
    """A word, a number, a price, a date, a time or a code: short enough for 160 × 48 pixels."""
    kinds = (
        lambda: str(rng.choice(WORDS)),
        lambda: str(rng.choice(WORDS)).upper(),
        lambda: str(rng.choice(WORDS)).capitalize(),
        lambda: f"{rng.integers(1, 10_000)}.{rng.integers(100):02d}",
        lambda: f"{rng.integers(1, 29):02d}/{rng.integers(1, 13):02d}/{rng.integers(100):02d}",
        lambda: f"{rng.integers(24):02d}:{rng.integers(60):02d}",
        lambda: "".join(rng.choice(list("ABCDEFGHKLMNPRSTUVWXYZ23456789"), 6)),
        lambda: f"No {rng.integers(1, 1000)}",
    )
    return kinds[rng.choice(len(kinds), p=[0.3, 0.1, 0.15, 0.15, 0.1, 0.05, 0.1, 0.05])]()


def render(line, rng):
    """Dark on light or light on dark, small or large, askew, blurred and noisy."""
    size = int(rng.integers(12, 40))
    font = ImageFont.load_default(size)
    left, top, right, bottom = font.getbbox(line)
    margin = max(2, size // 6)
    dark, light = sorted(rng.integers(0, 256, size=2) * (0.45, 1) + (0, 0))
    paper, ink = (light, dark) if rng.random() < 0.8 else (dark, light)
    if abs(paper - ink) < 60:
        paper, ink = 210, 85
    image = Image.new("L", (right - left + 2 * margin, bottom - top + 2 * margin), int(paper))
    ImageDraw.Draw(image).text((margin - left, margin - top), line, fill=int(ink), font=font)
    image = image.rotate(
        rng.uniform(-4, 4), Image.Resampling.BICUBIC, expand=True, fillcolor=int(paper)
    )
    image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0, size / 20)))
    noise = rng.normal(0, rng.uniform(2, 32), size=(image.height, image.width))
    pixels = np.clip(np.asarray(image, dtype=np.float32) + noise, 0, 255).astype(np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).convert("RGB").save(content, "JPEG", quality=int(rng.integers(30, 90)))
    return content.getvalue(), line


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    rendered = lines(EVALUATED, 0, EVALUATION)
    for number, (jpeg, line) in enumerate(rendered):
        (folder / f"{number:03d} {line.replace('/', '-')}.jpg").write_bytes(jpeg)
    EXPECTED.write_text("".join(f"{line}\n" for _, line in rendered), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
